package vm_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/edged/cgroups"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/vm"
)

// slowdown is how much longer than here things may take in a machine: emulation, on cores that others use, too.
const slowdown = "10"

// payload builds edgecore and the test binaries of packages, and names them with the images as they are
// called in a machine.
func payload(t *testing.T, packages ...string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{}
	for _, pkg := range packages {
		name := filepath.Base(pkg) + ".test"
		files[name] = filepath.Join(dir, name)
		if err := vm.BuildTest(t.Context(), files[name], pkg); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if files["edgecore"], err = agent.Build(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if files["images.tar"], err = images.Archive(t.Context()); err != nil {
		t.Fatal(err)
	}
	return files
}

// lines logs what is written to it, line by line.
type lines struct {
	t    *testing.T
	rest []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		l.t.Logf("| %s", line)
		l.rest = rest
	}
}

// suite runs tests of a test binary in a machine. A pattern that matches nothing passes, so each that is
// named has to say that it has passed.
func suite(t *testing.T, m *vm.VM, driver, program string, tests ...string) {
	t.Helper()
	began := time.Now()
	var out strings.Builder
	env := []string{
		daemon.SlowdownEnv + "=" + slowdown, testenv.CgroupDriverEnv + "=" + driver,
		agent.BinaryEnv + "=/payload/edgecore", images.ArchiveEnv + "=/payload/images.tar",
	}
	pattern := "^(" + strings.Join(tests, "|") + ")$"
	err := m.Stream(t.Context(), io.MultiWriter(&out, &lines{t: t}), env, "/payload/"+program, "-test.v", "-test.timeout=90m", "-test.run", pattern)
	if err != nil {
		t.Error(err)
	}
	for _, name := range tests {
		if !strings.Contains(out.String(), "--- PASS: "+name+" ") {
			t.Errorf("%s has not passed", name)
		}
	}
	t.Logf("%s with driver %s took %v", program, driver, time.Since(began).Round(time.Second))
}

// fullEnv asks for what takes longer than continuous integration waits; `make test-vm FULL=1` sets it.
const fullEnv = "EDGECORE_TEST_FULL"

// TestSuites runs what the project's own tests show on cgroup v1 and without systemd once more, on cgroup v2
// under systemd, with each cgroup driver.
func TestSuites(t *testing.T) {
	both, systemd := []string{"TestPodsRunAsTheySay"}, []string{"TestStrangersAndOrphans"}
	if os.Getenv(fullEnv) != "" {
		both = append(both, "TestKill9Adopts", "TestReboot", "TestRuntimeRestart")
		systemd = append(systemd, "TestEverythingRemovedBehindItsBack", "TestRestartPolicies", "TestStoredPods", "TestChangedManifest")
	}
	m := boot(t, vm.Options{Payload: payload(t, "./edged/cgroups", "./test/edge")})
	t.Run("cgroups", func(t *testing.T) {
		// With systemd as pid 1 each of them runs with both drivers.
		suite(t, m, "", "cgroups.test", "TestRealCgroups", "TestRemovalEndsWhatRuns", "TestSetupKeepsShares", "TestRemovalStaysInside")
	})
	t.Run("edge systemd", func(t *testing.T) {
		suite(t, m, cgroups.DriverSystemd, "edge.test", slices.Concat(both, systemd)...)
	})
	t.Run("edge cgroupfs", func(t *testing.T) {
		suite(t, m, cgroups.DriverCgroupfs, "edge.test", both...)
	})
}
