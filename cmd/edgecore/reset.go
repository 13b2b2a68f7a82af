package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgecore-io/edgecore/deploy/systemd"
	"github.com/edgecore-io/edgecore/edged/servingcert"
	"github.com/edgecore-io/edgecore/edged/shutdown"
	"github.com/edgecore-io/edgecore/edgehub/certificates"
	"github.com/edgecore-io/edgecore/edgehub/join"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/metamanager/store/copies"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/configfile"
)

// resetOptions are the flags of reset.
type resetOptions struct {
	*globalOptions
	force, keepPods bool
	tokenFile       string // of KubeEdge's installer
	// fresh is what a configuration is made from again; nil where it goes.
	fresh   func(file string) []byte
	service *systemd.Service // nil is the real one
}

func newResetCommand(opts *globalOptions) *cobra.Command {
	return (&resetOptions{
		globalOptions: opts, tokenFile: certificates.DefaultTokenFile, fresh: func(file string) []byte {
			return configfile.Fresh("/", file)
		},
	}).command()
}

func (o *resetOptions) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Undo a join: remove service, certificates, configuration and store",
		Long: `Undo a join. This stops and removes the service, and removes the certificates, the configuration and the store with its
copies, including reports that were not sent yet. Static manifests, logs, images and the contents of the pods' volumes stay.

The cloud is not contacted. It keeps the Node object until somebody removes it: kubectl delete node NAME.

Containers are not touched: they run until the device is switched off. An agent that is started later keeps the pods that
are in its store, and ends the others. With --keep-pods the store stays, so that an agent that joins the same cloud again
keeps the pods running. Without it, the next agent ends them. To end them now, run edgecore end-pods before the reset.`,
		Example: `  edgecore reset                 # asks first
  edgecore reset --force         # for scripts
  edgecore reset --keep-pods     # to join the same cloud again, and keep the pods running`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVarP(&o.force, "force", "f", false, "do not ask")
	cmd.Flags().BoolVar(&o.keepPods, "keep-pods", false, "keep the store, and with it the pods")
	return cmd
}

func (o *resetOptions) run(ctx context.Context, in io.Reader, out io.Writer) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	if !o.force {
		what := "the service, the certificates, the configuration and the store"
		if o.keepPods {
			what = "the service, the certificates and the configuration"
		}
		fmt.Fprintf(out, "This removes %s of node %s.\nType yes to go on: ", what, cfg.Modules.Edged.HostnameOverride)
		line, err := bufio.NewReader(in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if strings.TrimSpace(line) != "yes" {
			return errors.New("aborted: answer yes or use --force; nothing was done")
		}
	}
	s := o.service
	if s == nil {
		if s, err = systemd.NewService(); err != nil {
			return err
		}
	}
	did, err := s.Remove(ctx)
	if err != nil {
		return fmt.Errorf("service: %w; nothing else was touched", err)
	}
	fmt.Fprintln(out, did)
	var limits []string
	for _, file := range shutdown.ConfFiles() {
		limits = append(limits, filepath.Join(s.Root, file))
	}
	return errors.Join(removeAll(limits...), o.removeFiles(out, cfg))
}

// load reads the configuration, which says where things lie. Without one the defaults do.
func (o *resetOptions) load() (*v1alpha2.EdgeCore, error) {
	cfg, _, err := v1alpha2.Load(o.Config)
	switch {
	case err == nil:
		return cfg, nil
	case errors.Is(err, fs.ErrNotExist):
		return v1alpha2.Default(), nil
	}
	return nil,
		fmt.Errorf("%w\nthe configuration says what to remove: correct it, or remove it to use the default places", err)
}

// removeFiles removes what the agent and join have made. It goes on after an error, to leave as little as it can.
func (o *resetOptions) removeFiles(out io.Writer, cfg *v1alpha2.EdgeCore) error {
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
		fmt.Fprintln(out, "Removed", what)
	}
	note("certificates", errors.Join(files.Remove(), removeAll(o.tokenFile),
		removeAll(servingcert.Files(cfg.Modules.Edged.RootDirectory)...)))
	if !o.keepPods {
		note("store "+db+" and its copies", copies.Remove(db))
	}
	// The last, since it says where the others are.
	if fresh := o.fresh(o.Config); fresh != nil {
		if err := errors.Join(certs.WriteFile(o.Config, fresh), removeAll(o.Config+".bak")); err != nil {
			return errors.Join(append(errs, fmt.Errorf("configuration %s: %w", o.Config, err))...)
		}
		fmt.Fprintln(out, "Made configuration", o.Config, "what it was when the package was installed")
	} else {
		note("configuration "+o.Config, removeAll(o.Config, o.Config+".bak"))
	}
	for _, dir := range []string{
		filepath.Dir(files.CA), filepath.Dir(files.Cert), filepath.Dir(o.Config),
		servingcert.Dir(cfg.Modules.Edged.RootDirectory),
	} {
		_ = os.Remove(dir) // if nothing of others is in it
	}
	return errors.Join(errs...)
}

func removeAll(names ...string) error {
	var errs []error
	for _, name := range names {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
