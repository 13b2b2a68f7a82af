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

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
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
	out := run(t, m, driver, program, "-test.run", "^("+strings.Join(tests, "|")+")$")
	for _, name := range tests {
		if !strings.Contains(out, "--- PASS: "+name+" ") {
			t.Errorf("the output has no \"--- PASS: %s\", want one", name)
		}
	}
	t.Logf("%s with driver %s took %v", program, driver, time.Since(began).Round(time.Second))
}

// run runs a test binary in a machine and returns what it said.
func run(t *testing.T, m *vm.VM, driver, program string, args ...string) string {
	t.Helper()
	var out strings.Builder
	env := []string{
		daemon.SlowdownEnv + "=" + slowdown, testenv.CgroupDriverEnv + "=" + driver,
		agent.BinaryEnv + "=/payload/edgecore", images.ArchiveEnv + "=/payload/images.tar",
		kube.BinariesEnv + "=/payload/kube", containerd.Programs2Env + "=/payload/containerd2",
	}
	args = append([]string{"/payload/" + program, "-test.v", "-test.timeout=90m"}, args...)
	if err := m.Stream(t.Context(), io.MultiWriter(&out, &lines{t: t}), env, args...); err != nil {
		t.Error(err)
	}
	return out.String()
}

// podRows are the rows of test/conformance that depend on cgroups, and some of what else differs with the kernel.
var podRows = []string{
	"resources-guaranteed", "resources-best-effort", "resources-burstable", "pod-resources", "resize-in-place",
	"resize-restart",
	"exit-codes", "users-groups", "seccomp", "sysctls", "probe-exec", "sidecar-job", "emptydir", "recursive-read-only",
	"active-deadline",
}

// TestPodsOnCgroup2: what a pod asks for of cgroups and the kernel it gets on cgroup v2 under systemd, too.
func TestPodsOnCgroup2(t *testing.T) {
	files := payload(t, "./test/conformance")
	binaries, err := kube.Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kubectl"} {
		files["kube/"+name] = filepath.Join(binaries, name)
	}
	manifests := filepath.Join("..", "..", "deploy", "cloudcore")
	for _, name := range []string{"base/rbac.yaml", "base/policy.yaml", "base/devices.yaml",
		"crds/kustomization.yaml", "crds/objectsyncs.yaml", "crds/clusterobjectsyncs.yaml",
		"crds/devices.yaml", "crds/devicemodels.yaml", "crds/devicestatuses.yaml"} {
		files["cloudcore-manifests/"+name] = filepath.Join(manifests, name)
	}
	if files["cloudcore"], err = cloud.Build(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	m := boot(t, vm.Options{Payload: files, MemoryMB: 2048, Network: true})
	out := run(t, m, cgroups.DriverSystemd, "conformance.test", "-test.parallel", "2", "-test.run",
		"^TestPods$/^containerd1$/^("+strings.Join(podRows, "|")+")$",
		"-edgecore", "/payload/edgecore", "-cloudcore", "/payload/cloudcore", "-manifests",
		"/payload/cloudcore-manifests")
	for _, name := range podRows {
		if !strings.Contains(out, "--- PASS: TestPods/containerd1/"+name+" ") {
			t.Errorf("the output has no \"--- PASS: TestPods/containerd1/%s\", want one", name)
		}
	}
}

// TestCheckpoint: on a kernel of which CRIU takes checkpoints, so does the agent.
func TestCheckpoint(t *testing.T) {
	files := payload(t, "./test/edge")
	containerd2, err := containerd.Build2(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		files["containerd2/"+name] = filepath.Join(filepath.Dir(containerd2), name)
	}
	m := boot(t, vm.Options{Payload: files, Packages: []string{"criu"}})
	if out := run(t, m, cgroups.DriverSystemd, "edge.test", "-test.run", "^TestCheckpoint$"); !strings.Contains(out,
		"the checkpoint has ") {
		t.Errorf("output = %s\nwant \"the checkpoint has \" in it", out)
	}
}

// fullEnv asks for what takes longer than continuous integration waits; `make test-all AREA=vm FULL=1` sets it.
const fullEnv = "EDGECORE_TEST_FULL"

// TestSuites runs what the project's own tests show on cgroup v1 and without systemd once more, on cgroup v2
// under systemd, with each cgroup driver.
func TestSuites(t *testing.T) {
	both, systemd := []string{"TestPodsRunAsTheySay"}, []string{"TestStrangersAndOrphans"}
	packages := []string{"./edged/containers/cgroups", "./edged/node/eviction", "./test/edge"}
	full := os.Getenv(fullEnv) != ""
	if full {
		packages = append(packages, "./test/stats")
		both = append(both, "TestKill9Adopts", "TestReboot", "TestRuntimeRestart")
		systemd = append(systemd, "TestEverythingRemovedBehindItsBack", "TestRestartPolicies", "TestStoredPods",
			"TestChangedManifest")
	}
	m := boot(t, vm.Options{Payload: payload(t, packages...), MemoryMB: 1536})
	t.Run("cgroups", func(t *testing.T) {
		// With systemd as pid 1 each of them runs with both drivers.
		suite(t, m, "", "cgroups.test", "TestRealCgroups", "TestRemovalEndsWhatRuns", "TestSetupKeepsShares",
			"TestRemovalStaysInside", "TestLimitOfAllPods", "TestReserved")
	})
	t.Run("eviction", func(t *testing.T) {
		suite(t, m, "", "eviction.test", "TestKernelSaysThatMemoryGetsShort", "TestSystemPressure")
	})
	t.Run("edge systemd", func(t *testing.T) {
		suite(t, m, cgroups.DriverSystemd, "edge.test", slices.Concat(both, systemd)...)
	})
	t.Run("edge cgroupfs", func(t *testing.T) {
		suite(t, m, cgroups.DriverCgroupfs, "edge.test", both...)
	})
	if full {
		t.Run("stats", func(t *testing.T) { suite(t, m, cgroups.DriverSystemd, "stats.test", "TestStats") })
	}
}
