package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/cgroups"
	v1 "k8s.io/api/core/v1"
)

// TestLimitOfAllPods: the kernel has the limits of all pods together, and gives them up when they are not asked for any
// more.
func TestLimitOfAllPods(t *testing.T) {
	onEachDriver(t, "limit", func(t *testing.T, opts Options) {
		check := func(when, want string) {
			t.Helper()
			m := New(opts)
			if diff := cmp.Diff(want, values(t, m, m.classPath(v1.PodQOSGuaranteed))); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		opts.Pods = Resources{CPUShares: 1536, Memory: 256 << 20, Pids: 500}
		setUp(t, opts)
		check("limited", either("1536, -1, 268435456, 500", "59, max 100000, 268435456, 500"))
		opts.Pods.Memory = 128 << 20
		setUp(t, opts)
		check("less", either("1536, -1, 134217728, 500", "59, max 100000, 134217728, 500"))
		opts.Pods = Resources{CPUShares: 1024}
		m := setUp(t, opts)
		check("not limited", either("1024, -1, 9223372036854771712, max", "100, max 100000, max, max"))
		for _, dir := range []string{m.PodsMemcg(), filepath.Dir(m.PodsPressure())} {
			if _, err := os.Stat(dir); dir != "" && dir != "." && err != nil {
				t.Error(err)
			}
		}
		if v2 := cgroups.IsCgroup2UnifiedMode(); v2 != (m.PodsMemcg() == "") || v2 == (m.PodsPressure() == "") {
			t.Errorf("cgroup v2 %v, memory cgroup %q, pressure %q; want pressure on v2 only",
				v2, m.PodsMemcg(), m.PodsPressure())
		}
	})
}

// TestReserved: a cgroup of others gets its limits where it is there; where it is not, pods have theirs all the same.
func TestReserved(t *testing.T) {
	onEachDriver(t, "reserved", func(t *testing.T, opts Options) {
		m := setUp(t, opts)
		system := m.root().join("system")
		if err := m.apply(system, Resources{}); err != nil {
			t.Fatal(err)
		}
		name := system.cgroupfs()
		if opts.Driver == DriverSystemd {
			name = "/" + system.slice()
		}
		opts.Pods = Resources{Memory: 64 << 20}
		opts.Reserved = []Reserved{
			{
				Key: "enforceNodeAllocatable: kube-reserved", Cgroup: "/nowhere.slice",
				Resources: Resources{Memory: 1 << 20},
			},
			{
				Key: "enforceNodeAllocatable: system-reserved", Cgroup: name,
				Resources: Resources{CPUShares: 512, Memory: 32 << 20, Pids: 77},
			},
		}
		m = New(opts)
		err := m.Setup(t.Context())
		if _, limit := errors.AsType[*LimitError](err); !limit ||
			!strings.Contains(fmt.Sprint(err),
				"cgroup /nowhere.slice does not exist; create it, or remove its entry from enforceNodeAllocatable") {
			t.Errorf("Setup: %v, want a LimitError that names /nowhere.slice", err)
		}
		if got, want := values(t, m, system),
			either("512, -1, 33554432, 77", "20, max 100000, 33554432, 77"); got != want {
			t.Errorf("the system's cgroup has %q, want %q", got, want)
		}
		if got := values(t, m, m.classPath(v1.PodQOSGuaranteed)); !strings.Contains(got, "67108864") {
			t.Errorf("the pods' cgroup has %q, want 67108864 bytes", got)
		}
		if err := m.remove(system); err != nil {
			t.Error(err)
		}
	})
}

func TestGiven(t *testing.T) {
	for _, c := range []struct{ driver, text, want string }{
		{DriverCgroupfs, "/system.slice", "/system.slice"}, {DriverCgroupfs, "a/b", "/a/b"},
		{DriverSystemd, "/system.slice", "/system"}, {DriverSystemd, "/a.slice/a-b.slice", "/a/b"},
		{DriverSystemd, "/a/b", "/a/b"}, {DriverSystemd, "/", "/"},
	} {
		if got := New(Options{Driver: c.driver}).parsePath(c.text).cgroupfs(); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.driver, c.text, got, c.want)
		}
	}
}

func TestMaxPIDs(t *testing.T) {
	if n := MaxPIDs(); n < 1000 {
		t.Errorf("MaxPIDs = %d, want 1000 or more", n)
	}
}
