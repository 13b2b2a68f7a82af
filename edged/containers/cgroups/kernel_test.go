package cgroups

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// drivers are those that this machine can have: systemd has to be what it was booted with. Each machine of
// package test/vm has both.
func drivers() []string {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return []string{DriverCgroupfs}
	}
	return []string{DriverCgroupfs, DriverSystemd}
}

// onEachDriver runs a test below a root of its own, and looks for what it leaves.
func onEachDriver(t *testing.T, name string, test func(t *testing.T, opts Options)) {
	for _, driver := range drivers() {
		t.Run(driver, func(t *testing.T) {
			root := fmt.Sprintf("/edgecore-test-%s-%d", name, os.Getpid())
			opts := Options{
				Root:            root,
				Driver:          driver,
				PerQOS:          true,
				PodPids:         50,
				ResourceOptions: ResourceOptions{CFSQuota: true},
			}
			t.Cleanup(func() {
				m := New(opts)
				for _, what := range []string{"RemoveAll", "second RemoveAll"} {
					if err := m.RemoveAll(); err != nil {
						t.Errorf("%s: %v, want no error", what, err)
					}
				}
				for _, dir := range m.dirs(m.root()) {
					if _, err := os.Stat(dir); err == nil {
						t.Errorf("%s exists after RemoveAll, want it removed", dir)
					}
				}
				if units := unitsOf(t, m); driver == DriverSystemd && units != "" {
					t.Errorf("units after RemoveAll = %q, want none", units)
				}
			})
			test(t, opts)
		})
	}
}

// unitsOf lists what systemd knows of the root.
func unitsOf(t *testing.T, m *Manager) string {
	t.Helper()
	if m.opts.Driver != DriverSystemd {
		return ""
	}
	out, err := exec.Command("systemctl", "list-units", "--all", "--plain", "--no-legend",
		strings.TrimSuffix(m.root().slice(), ".slice")+"*").CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl: %v, want no error\n%s", err, out)
	}
	return string(out)
}

func setUp(t *testing.T, opts Options) *Manager {
	t.Helper()
	m := New(opts)
	if err := m.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// value reads a value of a cgroup, by its name in v1 or in v2.
func value(t *testing.T, m *Manager, p path, v1, v2 string) string {
	t.Helper()
	file := v1
	if cgroups.IsCgroup2UnifiedMode() {
		file = v2
	}
	for _, dir := range m.dirs(p) {
		if data, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
			return strings.TrimSpace(string(data))
		}
	}
	return "no " + file
}

// values are all that this package sets of a cgroup: weight, quota, memory, pids.
func values(t *testing.T, m *Manager, p path) string {
	t.Helper()
	return strings.Join([]string{
		value(t, m, p, "cpu.shares", "cpu.weight"), value(t, m, p, "cpu.cfs_quota_us", "cpu.max"),
		value(t, m, p, "memory.limit_in_bytes", "memory.max"), value(t, m, p, "pids.max", "pids.max"),
	}, ", ")
}

// either picks what is right for this machine's version.
func either(v1, v2 string) string {
	if cgroups.IsCgroup2UnifiedMode() {
		return v2
	}
	return v1
}

// TestRealCgroups makes and removes groups in the kernel of this machine.
func TestRealCgroups(t *testing.T) {
	onEachDriver(t, "real", func(t *testing.T, opts Options) {
		m := setUp(t, opts)
		burst := pod("11-22", resources("cpu=100m", "cpu=200m memory=32Mi"))
		guaranteed := pod("33-44", resources("", "cpu=1500m memory=64Mi"))
		best := pod("55-66", resources("", ""))
		for _, p := range []*v1.Pod{burst, guaranteed, best, burst} {
			if err := m.EnsurePod(p); err != nil {
				t.Fatal(err)
			}
		}
		check := func(when string) {
			t.Helper()
			const unlimited = "9223372036854771712"
			for _, c := range []struct {
				p    path
				want string
			}{
				{m.podPath(burst), either("102, 20000, 33554432, 50", "4, 20000 100000, 33554432, 50")},
				{m.podPath(guaranteed), either("1536, 150000, 67108864, 50", "59, 150000 100000, 67108864, 50")},
				{m.podPath(best), either("2, -1, "+unlimited+", 50", "1, max 100000, max, 50")},
				{m.classPath(v1.PodQOSBurstable), either("102, -1, "+unlimited+", max", "4, max 100000, max, max")},
				{m.classPath(v1.PodQOSBestEffort), either("2, -1, "+unlimited+", max", "1, max 100000, max, max")},
				{m.classPath(v1.PodQOSGuaranteed), either("1024, -1, "+unlimited+", max", "100, max 100000, max, max")},
			} {
				if diff := cmp.Diff(c.want, values(t, m, c.p)); diff != "" {
					t.Errorf("%s: %s (-want +got)\n%s", when, c.p.cgroupfs(), diff)
				}
			}
		}
		check("made")
		if opts.Driver == DriverSystemd {
			if out, err := exec.Command("systemctl", "daemon-reload").CombinedOutput(); err != nil {
				t.Fatalf("systemctl daemon-reload: %v, want no error\n%s", err, out)
			}
			check("after systemd read its units again")
		}
		// An agent that was killed comes back and finds what is there.
		m = setUp(t, opts)
		want := []types.UID{"11-22", "33-44", "55-66"}
		if uids, err := m.Pods(); err != nil || !cmp.Equal(uids, want) {
			t.Errorf("pods %v, %v; want %v", uids, err, want)
		}
		for _, p := range []*v1.Pod{burst, guaranteed, best} {
			if err := m.EnsurePod(p); err != nil {
				t.Fatal(err)
			}
		}
		check("after a restart")
		for _, uid := range append(want, want...) {
			if err := m.RemovePod(uid); err != nil {
				t.Errorf("RemovePod(%s): %v, want no error", uid, err)
			}
		}
		if uids, err := m.Pods(); err != nil || len(uids) != 0 {
			t.Errorf("pods %v, %v after the removal, want none", uids, err)
		}
	})
}

// TestRemovalEndsWhatRuns: a container of a pod that has ended is in a cgroup of its own below that of the pod.
func TestRemovalEndsWhatRuns(t *testing.T) {
	onEachDriver(t, "ends", func(t *testing.T, opts Options) {
		m := setUp(t, opts)
		p := pod("1", resources("", ""))
		if err := m.EnsurePod(p); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		enter(t, m, m.podPath(p).join("container"), cmd.Process.Pid)
		if err := m.RemovePod("1"); err != nil {
			t.Error(err)
		}
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "signal") {
			t.Errorf("the container's process ended with %v, want a signal", err)
		}
		if m.exists(m.podPath(p)) {
			t.Errorf("exists(%v) after RemovePod = true, want false", m.podPath(p))
		}
	})
}

// TestRemovalOfTheRest: an agent that was killed may have removed a pod's cgroup from some hierarchies only, and a
// runtime may have left a container's empty one in another.
func TestRemovalOfTheRest(t *testing.T) {
	m, _ := ownRoot(t, "rest")
	p := pod("1", resources("", ""))
	if err := m.EnsurePod(p); err != nil {
		t.Fatal(err)
	}
	dirs := slices.DeleteFunc(m.dirs(m.podPath(p)), func(dir string) bool { return !exists(dir) })
	if err := os.Mkdir(filepath.Join(dirs[0], "container"), 0o755); err != nil {
		t.Fatal(err)
	}
	if last := dirs[len(dirs)-1]; len(dirs) > 1 {
		if err := os.Remove(last); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.RemovePod("1"); err != nil {
		t.Error(err)
	}
	for _, dir := range dirs {
		if exists(dir) {
			t.Errorf("%s exists after RemovePod, want it removed", dir)
		}
	}
}

// enter puts a process into a cgroup the way a runtime does: systemd's runtime asks for a scope.
func enter(t *testing.T, m *Manager, p path, pid int) {
	t.Helper()
	config := &cgroups.Cgroup{Resources: &cgroups.Resources{SkipDevices: true}, Path: p.cgroupfs()}
	if m.opts.Driver == DriverSystemd {
		config = &cgroups.Cgroup{
			Resources:   config.Resources,
			Systemd:     true,
			Parent:      p.parent().slice(),
			ScopePrefix: "test",
			Name:        p[len(p)-1] + strconv.Itoa(pid),
		}
	}
	lib, err := manager.New(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := lib.Apply(pid); err != nil {
		t.Fatal(err)
	}
}

// TestResizePod: a pod that runs gets other limits; one that has no cgroup gets none.
func TestResizePod(t *testing.T) {
	onEachDriver(t, "resize", func(t *testing.T, opts Options) {
		m := setUp(t, opts)
		p := pod("77-88", resources("", "cpu=100m memory=64Mi"))
		if err := m.ResizePod(p); err != nil || m.exists(m.podPath(p)) {
			t.Errorf("a pod without a cgroup: %v, exists %v; want no error and no cgroup", err, m.exists(m.podPath(p)))
		}
		if err := m.EnsurePod(p); err != nil {
			t.Fatal(err)
		}
		for _, size := range []string{"cpu=200m memory=128Mi", "cpu=50m memory=32Mi"} {
			p = pod("77-88", resources("", size))
			if err := m.ResizePod(p); err != nil {
				t.Fatal(err)
			}
			limit := p.Spec.Containers[0].Resources.Limits
			quota := limit.Cpu().MilliValue() * 100
			want := either(fmt.Sprint(quota), fmt.Sprint(quota, " 100000")) + ", " + fmt.Sprint(limit.Memory().Value())
			if got := values(t, m, m.podPath(p)); !strings.Contains(got, want) {
				t.Errorf("%v: %s, want %s", size, got, want)
			}
		}
	})
}
