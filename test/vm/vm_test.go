package vm_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/vm"
)

func TestMain(m *testing.M) {
	if os.Getenv(daemon.SlowdownEnv) == "" {
		os.Setenv(daemon.SlowdownEnv, "4") // the limit of a wait: a machine under emulation is slow
	}
	leak.VerifyTestMain(m)
}

// boot makes a machine and switches it on; it goes when the test ends.
func boot(t *testing.T, opts vm.Options) *vm.VM {
	t.Helper()
	began := time.Now()
	m, err := vm.New(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the machine's console:\n%s", daemon.Tail(m.Console(), 40))
		}
		if err := m.Remove(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("made in %v", time.Since(began).Round(time.Second))
	began = time.Now()
	if err := m.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("up in %v", time.Since(began).Round(time.Second))
	return m
}

// sh runs a script in the machine.
func sh(t *testing.T, m *vm.VM, script string) string {
	t.Helper()
	out, err := m.Shell(t.Context(), script)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// TestMachine: what the other tests take for granted. It reboots, loses its power and is shut down, and
// keeps what was on its disk.
func TestMachine(t *testing.T) {
	m := boot(t, vm.Options{})
	for command, want := range map[string]string{
		"cat /proc/1/comm":                             "systemd",
		"stat -f -c %T /sys/fs/cgroup":                 "cgroup2fs",
		"ls /sys/class/net":                            "lo",
		"systemctl is-system-running --wait || true":   "running",
		"systemctl --failed --no-legend --plain | cat": "",
		"containerd --version | cut -d' ' -f1":         "containerd",
		"grep -w -o -e cpu -e memory -e pids /sys/fs/cgroup/cgroup.controllers | sort | xargs": "cpu memory pids",
	} {
		if got := sh(t, m, command); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	if err := m.WriteFile(t.Context(), "/var/lib/kept", "yes", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, way := range []struct {
		name string
		do   func() error
	}{
		{"reboot", func() error { return m.Reboot(t.Context()) }},
		{"power cut", func() error {
			if err := m.Cut(); err != nil {
				return err
			}
			return m.Boot(t.Context())
		}},
		{"shutdown", func() error {
			if err := m.Shutdown(t.Context()); err != nil {
				return err
			}
			return m.Boot(t.Context())
		}},
	} {
		began := time.Now()
		if err := way.do(); err != nil {
			t.Fatalf("%s: %v, want no error", way.name, err)
		}
		t.Logf("%s: back in %v", way.name, time.Since(began).Round(time.Second))
		if got, err := m.ReadFile(t.Context(), "/var/lib/kept"); err != nil || string(got) != "yes" {
			t.Errorf("the file after a %s = %q, %v, want \"yes\"", way.name, got, err)
		}
	}
}
