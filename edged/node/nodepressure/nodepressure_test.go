package nodepressure

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/edged/node/eviction"
	"github.com/edgecore-io/edgecore/edged/node/stats"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func TestObservations(t *testing.T) {
	use := stats.NodeUsage{
		Memory: stats.Memory{CapacityBytes: 1000, AvailableBytes: 400}, PodsKnown: true, PodsWorkingSet: 150,
		MaxPIDs: 100, RunningPIDs: 30,
		NodeFS:  stats.FS{Known: true, CapacityBytes: 500, AvailableBytes: 50, Inodes: 60, InodesFree: 6},
		ImageFS: stats.FS{Known: true, CapacityBytes: 700, AvailableBytes: 70}, // a file system that counts no inodes
	}
	want := eviction.Observations{
		eviction.Memory: {Available: 400, Capacity: 1000}, eviction.AllocatableMemory: {Available: 50, Capacity: 200},
		eviction.PIDs:   {Available: 70, Capacity: 100},
		eviction.NodeFS: {Available: 50, Capacity: 500}, eviction.NodeFSInodes: {Available: 6, Capacity: 60},
		eviction.ImageFS: {Available: 70, Capacity: 700},
	}
	if diff := cmp.Diff(want, observations(use, 200)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	delete(want, eviction.AllocatableMemory)
	if diff := cmp.Diff(want, observations(use, 0)); diff != "" {
		t.Errorf("without a limit of pods (-want +got):\n%s", diff)
	}
	if got := observations(stats.NodeUsage{}, 200); len(got) > 0 {
		t.Errorf("observations of nothing: %v, want none", got)
	}
}

func TestLayout(t *testing.T) {
	fs := func(device uint64) stats.FS { return stats.FS{Known: device > 0, Device: device} }
	for _, c := range []struct {
		node, image, container uint64
		want                   eviction.Layout
	}{
		{1, 1, 1, eviction.Layout{}}, {1, 0, 0, eviction.Layout{}},
		{1, 2, 2, eviction.Layout{Images: true, Layers: true}}, {1, 2, 0, eviction.Layout{Images: true, Layers: true}},
		{1, 2, 1, eviction.Layout{Images: true}},
	} {
		got := Layout(stats.NodeUsage{NodeFS: fs(c.node), ImageFS: fs(c.image), ContainerFS: fs(c.container)})
		if got != c.want {
			t.Errorf("Layout(%d, %d, %d) = %+v, want %+v", c.node, c.image, c.container, got, c.want)
		}
	}
}

func TestContainerMemory(t *testing.T) {
	want := []eviction.ContainerUsage{{Name: "a", Memory: 2}, {Name: "b", Memory: 1}}
	if diff := cmp.Diff(want, containerMemory(map[string]uint64{"b": 1, "a": 2})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := containerMemory(nil); got != nil {
		t.Errorf("containerMemory(nil) = %v, want nil", got)
	}
}
