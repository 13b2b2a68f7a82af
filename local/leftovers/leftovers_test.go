package leftovers

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/edged/pods/shutdown"
	"github.com/edgecore-io/edgecore/edged/serve/servingcert"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/metaserver/devicecert"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// device is a folder with everything that an agent, a pod and a join leave.
type device struct {
	t   *testing.T
	dir string
	cfg *v1alpha2.EdgeCore
}

func newDevice(t *testing.T) *device {
	t.Helper()
	d := &device{t: t, dir: t.TempDir(), cfg: v1alpha2.Default()}
	own, hub := &d.cfg.Modules.Edged, &d.cfg.Modules.EdgeHub
	own.RootDirectory = d.path("root")
	own.TailoredKubeletConfig.PodLogsDir = d.path("logs")
	hub.TLSCAFile, hub.TLSCertFile = d.path("ca/ca.crt"), d.path("certs/server.crt")
	hub.TLSPrivateKeyFile = d.path("certs/server.key")
	d.cfg.Database.DataSource = d.path("db/edgecore.db")
	if err := os.Mkdir(d.path("db"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.openStore()() // makes it
	for _, name := range []string{
		"ca/ca.crt", "certs/server.crt", "certs/server.key", "config/edgecore.yaml", "config/edgecore.yaml.bak",
		"token",
		"db/edgecore.db.corrupt-1", "root/images.keep", "root/pods/u1/etc-hosts", "logs/default_web_u1/main/0.log",
		"logs/default_db_u2/main/0.log", // of a pod without a folder
		shutdown.ConfFile,
	} {
		d.put(name)
	}
	for _, name := range pki(own.RootDirectory) {
		d.put(strings.TrimPrefix(name, d.dir+"/"))
	}
	return d
}

// pki are the certificates and keys that the agent makes below its root folder.
func pki(root string) []string {
	return append(servingcert.Files(root), devicecert.Files(servingcert.Dir(root))...)
}

func (d *device) path(name string) string { return filepath.Join(d.dir, name) }

func (d *device) put(name string) {
	d.t.Helper()
	path := d.path(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600)); err != nil {
		d.t.Fatal(err)
	}
}

// openStore uses the store as an agent does, until done is called.
func (d *device) openStore() (done func()) {
	d.t.Helper()
	s, _, err := store.Open(d.t.Context(), d.cfg.Database.DataSource, store.Options{})
	if err != nil {
		d.t.Fatal(err)
	}
	return func() {
		if err := s.Close(); err != nil {
			d.t.Error(err)
		}
	}
}

// files returns the files of the device, without those of pods, which a removal leaves.
func (d *device) files() []string {
	d.t.Helper()
	var list []string
	err := filepath.WalkDir(d.dir, func(path string, e fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, d.dir+"/")
		if err == nil && !e.IsDir() && !strings.HasPrefix(name, "logs/") && !strings.HasPrefix(name, "root/") {
			list = append(list, name)
		}
		return err
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return list
}

// removal removes everything, and adds to did what is reported.
func (d *device) removal(did *[]string) Removal {
	return Removal{
		Config:    d.path("config/edgecore.yaml"),
		TokenFile: d.path("token"),
		Root:      d.dir,
		Report: func(text string) {
			*did = append(*did, strings.ReplaceAll(text, d.dir+"/", ""))
		},
	}
}

func TestOf(t *testing.T) {
	d := newDevice(t)
	d.put("root/pods/u\n3/x") // cannot be told in a line
	var whole, folders []string
	for _, path := range Of(d.cfg) {
		name := strings.TrimPrefix(path, d.dir+"/")
		switch {
		case strings.HasSuffix(name, "/"):
			folders = append(folders, name)
		case len(folders) > 0:
			t.Errorf("%s comes after a folder, want files first", name)
		default:
			whole = append(whole, name)
		}
	}
	for _, want := range []string{
		"ca/ca.crt", "certs/server.crt", "certs/server.key", "db/edgecore.db", "db/edgecore.db.corrupt-1",
		"logs/default_web_u1", "root/images.keep", "root/pods/u1",
	} {
		if !slices.Contains(whole, want) {
			t.Errorf("left over = %v, want %s in it", whole, want)
		}
	}
	for _, bad := range []string{"logs/default_db_u2", "config/edgecore.yaml", "root/pods/u\n3", "root/checkpoints"} {
		if slices.Contains(whole, bad) {
			t.Errorf("left over = %q, want it without %q", whole, bad)
		}
	}
	if !slices.IsSorted(whole) {
		t.Errorf("left over = %v, want it sorted", whole)
	}
	for _, want := range []string{"root/pods/", "root/", "logs/", "certs/", "ca/", "db/", ContainerLinks + "/"} {
		if !slices.Contains(folders, want) {
			t.Errorf("folders = %v, want %s in them", folders, want)
		}
	}
	if inner, outer := slices.Index(folders, "root/pods/"), slices.Index(folders, "root/"); inner > outer {
		t.Errorf("folders = %v, want root/pods/ before root/", folders)
	}
}

// TestOfRelativePaths: a path that is not absolute means something else in another folder.
func TestOfRelativePaths(t *testing.T) {
	cfg := v1alpha2.Default()
	cfg.Modules.Edged.RootDirectory, cfg.Database.DataSource = "root", "db/edgecore.db"
	for _, path := range Of(cfg) {
		if !filepath.IsAbs(path) {
			t.Errorf("left over = %s, want absolute paths alone", path)
		}
	}
}

func TestRemove(t *testing.T) {
	const stored = "Removed store db/edgecore.db and its copies"
	for name, c := range map[string]struct {
		change func(*Removal)
		left   []string
		did    []string
	}{
		"everything": {
			func(*Removal) {}, nil,
			[]string{"Removed certificates", stored, "Removed configuration config/edgecore.yaml"},
		},
		"all but the store": {
			func(r *Removal) {
				r.KeepStore = true
			}, []string{"db/edgecore.db", "db/edgecore.db.corrupt-1", "db/edgecore.db.reserve"},
			[]string{"Removed certificates", "Removed configuration config/edgecore.yaml"},
		},
		"with the package": {
			func(r *Removal) { r.Fresh = []byte("fresh") }, []string{"config/edgecore.yaml"},
			[]string{
				"Removed certificates", stored,
				"Made configuration config/edgecore.yaml what it was when the package was installed",
			},
		},
	} {
		d := newDevice(t)
		var did []string
		r := d.removal(&did)
		c.change(&r)
		if err := Remove(d.cfg, r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.left, d.files()); diff != "" {
			t.Errorf("%s: files left (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(c.did, did); diff != "" {
			t.Errorf("%s: reported (-want +got):\n%s", name, diff)
		}
		if text, err := os.ReadFile(r.Config); r.Fresh != nil && string(text) != "fresh" {
			t.Errorf("%s: configuration = %q, %v; want fresh", name, text, err)
		}
		for _, path := range pki(d.cfg.Modules.Edged.RootDirectory) {
			if _, err := os.Stat(path); err == nil {
				t.Errorf("%s: %s is left, want it removed", name, path)
			}
		}
		if err := Remove(d.cfg, r); err != nil {
			t.Errorf("%s, again: %v, want no error when nothing is left", name, err)
		}
	}
}

// TestRemoveUnderAnAgent: an agent that runs keeps its files.
func TestRemoveUnderAnAgent(t *testing.T) {
	d := newDevice(t)
	defer d.openStore()()
	var did []string
	err := Remove(d.cfg, d.removal(&did))
	if want := "an agent runs with store " + d.cfg.Database.DataSource; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("Remove = %v, want an error with %q", err, want)
	}
	if _, err := os.Stat(d.path("certs/server.key")); err != nil || len(did) > 0 {
		t.Errorf("key: %v, reported %v; want the key left and nothing reported", err, did)
	}
}

// TestRemoveGoesOn: what cannot be removed does not keep the rest, but for the configuration, which the next try needs.
func TestRemoveGoesOn(t *testing.T) {
	d := newDevice(t)
	if err := os.Remove(d.path("token")); err != nil {
		t.Fatal(err)
	}
	d.put("token/full/file") // a folder that is not empty
	var did []string
	err := Remove(d.cfg, d.removal(&did))
	if err == nil || !strings.Contains(err.Error(), "certificates: remove "+d.path("token")) {
		t.Errorf("Remove = %v, want the error of the token", err)
	}
	if diff := cmp.Diff([]string{"Removed store db/edgecore.db and its copies"}, did); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(d.path("config/edgecore.yaml")); err != nil {
		t.Errorf("configuration: %v, want it kept", err)
	}
}
