package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/edged/pods/shutdown"
	"github.com/edgecore-io/edgecore/edged/serve/servingcert"
	"github.com/edgecore-io/edgecore/metamanager/store"
)

func (d *joinDevice) reset(stdin string, args ...string) (string, error) {
	d.t.Helper()
	o := &resetOptions{
		globalOptions: &globalOptions{Config: d.config()},
		service:       d.service,
		tokenFile:     filepath.Join(d.dir, "bootstrap"),
		fresh:         func(string) []byte { return d.fresh },
	}
	cmd := o.command()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	var out bytes.Buffer
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{}, args...)) // never nil, for which cobra takes those of the test
	d.calls = nil
	err := cmd.ExecuteContext(d.t.Context())
	return out.String(), err
}

// joined is a device that has joined, with a store that was used.
func joined(t *testing.T) (*joinDevice, string) {
	t.Helper()
	d := newJoinDevice(t)
	path := filepath.Join(d.dir, "state", "edgecore.db")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(d.dir, "root")
	d.mustJoin("", "-t", d.token(""), "-i", "edge1", "--set", "database.dataSource="+path, "--set",
		"modules.edged.rootDirectory="+root)
	port := servingcert.New(servingcert.Options{Dir: servingcert.Dir(root), Node: "edge1", IPs: func() []string {
		return nil
	}})
	if _, err := port.Get(nil); err != nil {
		t.Fatal(err)
	}
	s, _, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path + ".corrupt-20261121", filepath.Join(d.dir, "bootstrap")} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return d, path
}

// left are the files below a device's folder, without those of the service.
func left(t *testing.T, d *joinDevice) []string {
	t.Helper()
	list := []string{}
	err := filepath.WalkDir(d.dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			list = append(list, strings.TrimPrefix(path, d.dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestReset(t *testing.T) {
	d, _ := joined(t)
	limit := filepath.Join(d.service.Root, shutdown.ConfFile) // which the agent raised
	if err := errors.Join(os.MkdirAll(filepath.Dir(limit), 0o755), os.WriteFile(limit, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	out, err := d.reset("yes\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := left(t, d); len(got) > 0 {
		t.Errorf("left = %v, want nothing", got)
	}
	if _, err := os.Stat(limit); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("logind's limit: Stat = %v, want it removed", err)
	}
	for _, dir := range []string{"certs", "config"} {
		if _, err := os.Stat(filepath.Join(d.dir, dir)); err == nil {
			t.Errorf("Stat(%s) = nil, want the empty folder removed", filepath.Join(d.dir, dir))
		}
	}
	if diff := cmp.Diff([]string{"disable --now edgecore.service", "daemon-reload"}, d.calls); diff != "" {
		t.Errorf("systemctl (-want +got):\n%s", diff)
	}
	for _, want := range []string{
		"of node edge1", "Type yes", "Stopped and removed edgecore.service", "Removed certificates", "Removed store",
		"Removed configuration",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("output, want %q in it:\n%s", want, out)
		}
	}
	_, err = d.reset("", "--force")
	if err == nil || !strings.Contains(err.Error(), d.config()) || !strings.Contains(err.Error(), "nothing was done") ||
		len(d.calls) > 0 {
		t.Errorf("reset with a missing configuration = %v, calls of systemctl %v; want an error that names %s, and "+
			"none: the default places may be another agent's", err, d.calls, d.config())
	}
	d.mustJoin("", "-t", d.token(""), "-i", "edge1") // and the device can come back
}

// TestResetWithThePackage: the configuration is what it was when the package was installed, so that the service can
// start again.
func TestResetWithThePackage(t *testing.T) {
	d, _ := joined(t)
	d.fresh = []byte("apiVersion: edgecore.config.kubeedge.io/v1alpha2\nkind: EdgeCore\n# as packaged\n")
	put(t, d.config()+".bak", "x")
	out, err := d.reset("", "--force")
	if err != nil || !strings.Contains(out, "what it was when the package was installed") ||
		d.read(d.config()) != string(d.fresh) {
		t.Errorf("reset = %v, configuration %q, want %q:\n%s", err, d.read(d.config()), d.fresh, out)
	}
	if diff := cmp.Diff([]string{"config/edgecore.yaml"}, left(t, d)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestResetAsks(t *testing.T) {
	d, _ := joined(t)
	before := left(t, d)
	for _, answer := range []string{"", "no\n", "y\n", "YES\n"} {
		if _, err := d.reset(answer); err == nil ||
			!strings.Contains(err.Error(), "aborted: answer yes or use --force; nothing was done") {
			t.Errorf("reset with answer %q = %v, want that nothing was done", answer, err)
		}
	}
	if diff := cmp.Diff(before, left(t, d)); diff != "" || len(d.calls) > 0 {
		t.Errorf("calls of systemctl = %v, want none; what is left (-want +got):\n%s", d.calls, diff)
	}
}

func TestResetKeepsPods(t *testing.T) {
	d, path := joined(t)
	out, err := d.reset("yes\n", "--keep-pods")
	if err != nil || strings.Contains(out, "store") {
		t.Errorf("reset --keep-pods = %v, want no error and no word of the store:\n%s", err, out)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the store is gone: %v", err)
	}
	if _, err := os.Stat(d.config()); err == nil {
		t.Errorf("Stat(%s) = nil, want the configuration removed", d.config())
	}
}

// TestResetUnderAnAgent: an agent that systemd did not start is not robbed of its store.
func TestResetUnderAnAgent(t *testing.T) {
	d, path := joined(t)
	s, _, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.reset("", "--force")
	if err == nil || !strings.Contains(err.Error(), "an agent runs with store "+path+": stop it") {
		t.Errorf("reset = %v, want that an agent runs with store %s", err, path)
	}
	if _, err := d.files().Load(); err != nil {
		t.Errorf("the certificates: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err = d.reset("", "--force"); err != nil {
		t.Error(err)
	}
}

func TestResetFails(t *testing.T) {
	d, _ := joined(t)
	before := left(t, d)
	d.fail = errors.New("systemctl disable: exit status 1: no D-Bus")
	if _, err := d.reset("", "-f"); err == nil || !strings.Contains(err.Error(), "no D-Bus; nothing else was touched") {
		t.Errorf("reset = %v, want the error of systemctl and that nothing else was touched", err)
	}
	d.fail = nil
	if err := os.WriteFile(d.config(), []byte("kind: Edge\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.reset("", "-f"); err == nil ||
		!strings.Contains(err.Error(), "the configuration says what to remove") {
		t.Errorf("reset = %v, want that the configuration says what to remove", err)
	}
	if diff := cmp.Diff(before, left(t, d)); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
}

// TestResetOthersUnits: a unit of someone else's is switched off and stays; none at all is no error.
func TestResetOthersUnits(t *testing.T) {
	d, _ := joined(t)
	if err := os.WriteFile(d.service.UnitFile(), []byte("[Unit]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := d.reset("", "-f"); err != nil || !strings.Contains(out, "Stopped and disabled") {
		t.Errorf("reset = %v, want the service stopped and disabled:\n%s", err, out)
	}
	if got := d.read(d.service.UnitFile()); got != "[Unit]\n" {
		t.Errorf("unit = %q, want %q as before", got, "[Unit]\n")
	}
	d, _ = joined(t)
	d.fail = errors.New("systemctl disable: exit status 1: Unit file edgecore.service does not exist.")
	if out, err := d.reset("", "-f"); err != nil || !strings.Contains(out, "There is no service") {
		t.Errorf("reset = %v, want that there is no service:\n%s", err, out)
	}
	d, _ = joined(t)
	if err := os.RemoveAll(filepath.Join(d.service.Root, "run")); err != nil {
		t.Fatal(err)
	}
	if out, err := d.reset("", "-f"); err != nil || !strings.Contains(out, "systemd does not run here") ||
		len(d.calls) > 0 {
		t.Errorf("reset = %v, calls %v; want none and that systemd does not run:\n%s", err, d.calls, out)
	}
}

// TestResetRemovesCopies: nothing of the store is left, whatever a migration or a repair has put beside it.
func TestResetRemovesCopies(t *testing.T) {
	d, path := joined(t)
	for _, suffix := range []string{
		".before-3", ".before-4.partial", ".rebuild", ".rebuild-journal", ".corrupt-x-wal",
	} {
		if err := os.WriteFile(path+suffix, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.reset("", "--force"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) > 0 {
		t.Errorf("%d files left of the store, %v; want none", len(left), err)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}
