// Package leftovers finds what the agent, its pods and a join leave on a device: Of lists it for the Debian package,
// which removes it when it is purged, and Remove undoes a join.
//
// It owns the list of paths. It promises that no path of Of is one that others may have put there, and that Remove goes
// on after an error, to leave as little as it can, and removes the configuration last, since that says where the rest
// is.
package leftovers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
	"github.com/edgecore-io/edgecore/edged/containers/repair"
	"github.com/edgecore-io/edgecore/edged/pods/shutdown"
	"github.com/edgecore-io/edgecore/edged/serve/servingcert"
	"github.com/edgecore-io/edgecore/edgehub/join"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/metamanager/store/copies"
	"github.com/edgecore-io/edgecore/metaserver/address"
	"github.com/edgecore-io/edgecore/metaserver/devicecert"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

// ContainerLinks is the folder of the links to containers' logs that log collectors follow.
const ContainerLinks = "/var/log/containers"

// Of returns the paths of what the agent and its pods have left on this device: first the files and folders that belong
// to them as a whole, sorted, then the folders to remove if they are empty, each with a slash at its end. Nothing in
// them may be mounted any more. Manifests, images and what pods have written to host paths are left out, and so are
// paths with a line break.
func Of(cfg *v1alpha2.EdgeCore) []string {
	own, files := &cfg.Modules.Edged, join.FilesOf(cfg)
	root, db := own.RootDirectory, cfg.Database.DataSource
	whole, _ := copies.Files(db) // what cannot be listed is not removed
	whole = append(whole, configfile.CopiesOf("", db).Paths()...)
	whole = append(whole, files.CA, files.Cert, files.Key)
	whole = append(whole, servingcert.Files(root)...)
	whole = append(whole, devicecert.Files(servingcert.Dir(root))...)
	whole = append(whole,
		filepath.Join(root, "image_manager"),
		imagegc.KeepFile(root),
		repair.RecordFile(root),
		repair.ArchiveDir(root),
		filepath.Join(root, "checkpoints"),
		filepath.Join(root, "plugins", "kubernetes.io"),
		filepath.Join(root, "pod-resources", "kubelet.sock"),
		filepath.Join(root, "device-plugins", "kubelet.sock"),
		filepath.Join(root, "device-plugins", "kubelet_internal_checkpoint"),
	)
	if pods, err := os.ReadDir(filepath.Join(root, "pods")); err == nil {
		for _, p := range pods {
			whole = append(whole, filepath.Join(root, "pods", p.Name()))
			// Logs of pods that the runtime had forgotten; a name with a pattern's characters finds nothing, which is
			// no harm.
			logs, _ := filepath.Glob(filepath.Join(own.TailoredKubeletConfig.PodLogsDir, "*_*_"+p.Name()))
			whole = append(whole, logs...)
		}
	}
	list := slices.DeleteFunc(whole, func(path string) bool {
		_, err := os.Lstat(path)
		return err != nil || !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsAny(path, "\n\r")
	})
	slices.Sort(list)
	list = slices.Compact(list)
	for _, dir := range []string{
		filepath.Join(root, "pods"),
		filepath.Join(root, "plugins"),
		filepath.Join(root, "plugins_registry"),
		filepath.Join(root, "device-plugins"),
		filepath.Join(root, "pod-resources"),
		servingcert.Dir(root),
		root,
		own.TailoredKubeletConfig.PodLogsDir,
		ContainerLinks,
		filepath.Dir(files.Cert),
		filepath.Dir(files.CA),
		filepath.Dir(db),
	} {
		if filepath.IsAbs(dir) && !strings.ContainsAny(dir, "\n\r") {
			list = append(list, dir+"/")
		}
	}
	return list
}

// Removal says what Remove removes.
type Removal struct {
	// Config is the path of the configuration. It becomes Fresh again, and is removed if Fresh is nil.
	Config string
	Fresh  []byte
	// TokenFile is where KubeEdge's installer puts a token.
	TokenFile string
	// Root is the folder below which logind's configuration is: / except in tests.
	Root string
	// KeepStore leaves the store, and with it the pods.
	KeepStore bool
	// Report is called with a sentence about what was done.
	Report func(did string)
}

// Remove removes what the agent and a join have made, apart from the service: certificates, store, configuration, and
// the limit of logind that the agent has raised. It removes only the limit while an agent uses the store.
func Remove(cfg *v1alpha2.EdgeCore, r Removal) error {
	return errors.Join(removeAll(filepath.Join(r.Root, shutdown.ConfFile)), r.removeFiles(cfg))
}

func (r *Removal) removeFiles(cfg *v1alpha2.EdgeCore) error {
	db := cfg.Database.DataSource
	if store.InUse(db) {
		return fmt.Errorf("an agent runs with store %s: stop it, then reset again", db)
	}
	files := join.FilesOf(cfg)
	var errs []error
	note := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
			return
		}
		r.Report("Removed " + what)
	}
	// Without them an agent that finds no configuration does not start.
	if err := removeAll(configfile.CopiesOf(r.Config, db).Paths()...); err != nil {
		errs = append(errs, fmt.Errorf("copies of the configuration: %w", err))
	}
	pki := servingcert.Dir(cfg.Modules.Edged.RootDirectory)
	own := slices.Concat(servingcert.Files(cfg.Modules.Edged.RootDirectory), devicecert.Files(pki))
	note("certificates", errors.Join(files.Remove(), removeAll(r.TokenFile), removeAll(own...)))
	errs = append(errs, removeAddresses(cfg))
	if !r.KeepStore {
		note("store "+db+" and its copies", copies.Remove(db))
	}
	if errors.Join(errs...) != nil {
		return errors.Join(append(errs, fmt.Errorf("configuration %s is kept, since it says what to remove: correct "+
			"the cause, and reset again", r.Config))...)
	}
	if r.Fresh != nil {
		if err := errors.Join(certs.WriteFile(r.Config, r.Fresh), removeAll(r.Config+".bak")); err != nil {
			return errors.Join(append(errs, fmt.Errorf("configuration %s: %w", r.Config, err))...)
		}
		r.Report("Made configuration " + r.Config + " what it was when the package was installed")
	} else {
		note("configuration "+r.Config, removeAll(r.Config, r.Config+".bak"))
	}
	for _, dir := range []string{
		filepath.Dir(files.CA), filepath.Dir(files.Cert), filepath.Dir(r.Config), pki,
	} {
		_ = os.Remove(dir) // if it is empty
	}
	return errors.Join(errs...)
}

// removeAddresses removes the addresses of the Kubernetes API for pods.
func removeAddresses(cfg *v1alpha2.EdgeCore) error {
	addresses, err := cfg.Modules.MetaManager.MetaServer.PodAddresses()
	if err != nil {
		return nil // of a section that is not used, or with which no agent has started
	}
	var errs []error
	for _, a := range addresses {
		errs = append(errs, address.Remove(a.Addr()))
	}
	return errors.Join(errs...)
}

// removeAll removes files, of which any may be missing.
func removeAll(names ...string) error {
	var errs []error
	for _, name := range names {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
