package systemd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const packagedConfig = "/etc/edgecore/edgecore.yaml"

// machine is a folder with a systemd that records its calls, and answers with fail.
type machine struct {
	*Service
	t     *testing.T
	calls []string
	fail  error
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t}
	m.Service = &Service{
		Root:    t.TempDir(),
		Program: "/usr/bin/edgecore",
		Systemctl: func(_ context.Context, args ...string) error {
			m.calls = append(m.calls, strings.Join(args, " "))
			return m.fail
		},
	}
	if err := os.MkdirAll(filepath.Join(m.Root, "run/systemd/system"), 0o755); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) put(path, text string) {
	m.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		m.t.Fatal(err)
	}
}

// unit returns the administrator's unit; "" is none.
func (m *machine) unit() string {
	text, err := os.ReadFile(m.UnitFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Fatal(err)
	}
	return string(text)
}

// TestInstall: a unit that an earlier join wrote goes when the package's does the same; one of KubeEdge's does not.
func TestInstall(t *testing.T) {
	const foreign = "[Service]\nExecStart=/usr/local/bin/edgecore\n"
	ours := Unit("/usr/bin/edgecore", packagedConfig)
	earlier := Unit("/usr/local/bin/edgecore", "/etc/kubeedge/config/edgecore.yaml")
	for name, c := range map[string]struct {
		before   string // the administrator's unit
		packaged bool
		did      string
		after    string
	}{
		"nothing":                       {"", false, "Wrote service ", ours},
		"the same":                      {ours, false, "is installed", ours},
		"an earlier join":               {earlier, false, "Wrote service ", ours},
		"KubeEdge's":                    {foreign, false, "(the one before is ", ours},
		"the package":                   {"", true, "is the package's", ""},
		"the package, and a join":       {earlier, true, "is the package's", ""},
		"the package, and KubeEdge's":   {foreign, true, "(the one before is ", ours},
		"the package, and the same one": {ours, true, "is the package's", ""},
	} {
		m := newMachine(t)
		if c.before != "" {
			m.put(m.UnitFile(), c.before)
		}
		if c.packaged {
			m.put(filepath.Join(m.Root, "lib/systemd/system", Name), ours)
		}
		did, err := m.Install(packagedConfig)
		if err != nil || !strings.Contains(did, c.did) {
			t.Errorf("%s: Install = %q, %v; want %q", name, did, err, c.did)
		}
		if diff := cmp.Diff(c.after, m.unit()); diff != "" {
			t.Errorf("%s: unit (-want +got):\n%s", name, diff)
		}
		kept, err := os.ReadFile(m.UnitFile() + ".bak")
		if want := c.before == foreign; (err == nil) != want || want && string(kept) != foreign {
			t.Errorf("%s: copy of the unit = %q, %v; want one: %v", name, kept, err, want)
		}
		if len(m.calls) > 0 {
			t.Errorf("%s: systemctl %v, want it not called", name, m.calls)
		}
	}
}

func TestStart(t *testing.T) {
	m := newMachine(t)
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"daemon-reload", "enable edgecore.service", "restart edgecore.service"}
	if diff := cmp.Diff(want, m.calls); diff != "" {
		t.Errorf("systemctl (-want +got):\n%s", diff)
	}
	m.calls, m.fail = nil, errors.New("no D-Bus")
	if err := m.Start(t.Context()); !errors.Is(err, m.fail) || len(m.calls) != 1 {
		t.Errorf("Start = %v after %v, want %v after one call", err, m.calls, m.fail)
	}
}

// TestRemove: a unit of someone else's is switched off and stays; none at all is not an error.
func TestRemove(t *testing.T) {
	ours := Unit("/usr/bin/edgecore", packagedConfig)
	for name, c := range map[string]struct {
		unit  string
		fail  error
		did   string
		err   string
		left  string
		calls int
	}{
		"ours":        {ours, nil, "Stopped and removed edgecore.service", "", "", 2},
		"another's":   {"[Unit]\n", nil, "Stopped and disabled edgecore.service", "", "[Unit]\n", 1},
		"the package": {"", nil, "Stopped and disabled edgecore.service", "", "", 1},
		"none":        {"", errors.New("Unit file edgecore.service does not exist."), "There is no service", "", "", 1},
		"not loaded":  {"", errors.New("Unit edgecore.service not loaded."), "There is no service", "", "", 1},
		"it goes on":  {ours, errors.New("no D-Bus"), "", "no D-Bus", ours, 1},
	} {
		m := newMachine(t)
		m.fail = c.fail
		if c.unit != "" {
			m.put(m.UnitFile(), c.unit)
		}
		did, err := m.Remove(t.Context())
		if !strings.Contains(did, c.did) || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: Remove = %q, %v; want %q, %q", name, did, err, c.did, c.err)
		}
		if diff := cmp.Diff(c.left, m.unit()); diff != "" || len(m.calls) != c.calls {
			t.Errorf("%s: systemctl %v, want %d calls; unit left (-want +got):\n%s", name, m.calls, c.calls, diff)
		}
	}
	m := newMachine(t)
	if err := os.RemoveAll(filepath.Join(m.Root, "run")); err != nil {
		t.Fatal(err)
	}
	did, err := m.Remove(t.Context())
	if err != nil || !strings.Contains(did, "systemd does not run here") || len(m.calls) > 0 {
		t.Errorf("Remove without systemd = %q, %v, calls %v; want that it does not run, and no calls", did, err,
			m.calls)
	}
}
