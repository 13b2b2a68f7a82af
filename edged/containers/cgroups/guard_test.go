package cgroups

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ownRoot makes a Manager below a root of the test's own.
func ownRoot(t *testing.T, name string) (*Manager, string) {
	t.Helper()
	root := fmt.Sprintf("/edgecore-test-%s-%d", name, os.Getpid())
	m := New(Options{Root: root, PerQOS: true})
	if err := m.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.RemoveAll(); err != nil {
			t.Error(err)
		}
	})
	return m, root
}

// TestRemovalStaysInside: a UID that leads out of the pods' place harms nobody there.
func TestRemovalStaysInside(t *testing.T) {
	m, _ := ownRoot(t, "inside")
	neighbour := m.root().join("neighbour")
	if err := m.apply(neighbour, Resources{}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cat") // which ends well when its input does, and not if it is killed before
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(input.Close(), cmd.Wait()); err != nil {
			t.Errorf("the neighbour ended with %v, want it to live to the end of its input", err)
		}
		if err := m.remove(neighbour); err != nil {
			t.Error(err)
		}
	})
	for _, dir := range m.dirs(neighbour) {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)),
			0); err != nil {
			t.Fatal(err)
		}
	}
	for _, uid := range []types.UID{"/../../neighbour", "", "..", "a/b"} {
		if err := m.RemovePod(uid); err == nil {
			t.Errorf("RemovePod(%q) = nil, want an error", uid)
		}
		if err := m.EnsurePod(pod(string(uid), resources("", ""))); err == nil {
			t.Errorf("EnsurePod(%q) = nil, want an error", uid)
		}
	}
}

// TestSetupKeepsShares: it may come after the first pods, and again.
func TestSetupKeepsShares(t *testing.T) {
	onEachDriver(t, "shares", func(t *testing.T, opts Options) {
		m := setUp(t, opts)
		shares := func() string {
			return value(t, m, m.classPath(v1.PodQOSBurstable), "cpu.shares", "cpu.weight")
		}
		empty := shares()
		if err := m.EnsurePod(pod("1", resources("cpu=500m", ""))); err != nil {
			t.Fatal(err)
		}
		want := shares()
		if want == empty {
			t.Fatalf("with a pod %s, without one %s", want, empty)
		}
		if err := m.Setup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := shares(); got != want {
			t.Errorf("after Setup %s, before %s", got, want)
		}
	})
}

// TestMissingControllersLimitNothing: a Raspberry Pi has no memory cgroup, and runs pods all the same.
func TestMissingControllersLimitNothing(t *testing.T) {
	all := Resources{CPUShares: 2, CPUQuota: 3, CPUPeriod: 4, Memory: 5, Pids: 6}
	for _, c := range []struct {
		missing string
		want    Resources
	}{
		{"", all},
		{"memory", Resources{CPUShares: 2, CPUQuota: 3, CPUPeriod: 4, Pids: 6}},
		{"pids", Resources{CPUShares: 2, CPUQuota: 3, CPUPeriod: 4, Memory: 5}},
		{"cpu memory pids", Resources{}},
	} {
		if diff := cmp.Diff(c.want, offered(all, strings.Fields(c.missing))); diff != "" {
			t.Errorf("without %q (-want +got):\n%s", c.missing, diff)
		}
	}
}
