package evict

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
)

// TestSoftThreshold: a disk that is a little short for longer than a while costs a pod, which is given less time to end than
// it asked for; and nobody goes before.
func TestSoftThreshold(t *testing.T) {
	t.Parallel()
	const grace, most = 12 * time.Second, 2 * time.Second
	signals := t.TempDir()
	n := newNode(t, agent.Options{Dir: small(t, "size=96m"), Kubelet: map[string]any{
		"evictionHard": map[string]any{"memory.available": "10Mi", "nodefs.available": "10Mi"},
		"evictionSoft": map[string]any{"nodefs.available": "45Mi"}, "evictionSoftGracePeriod": map[string]any{"nodefs.available": grace.String()},
		"evictionMaxPodGracePeriod": int(most.Seconds()), "evictionPressureTransitionPeriod": "3s",
	}}, signals,
		pod(signals, "quiet", ""),
		pod(signals, "filler", "trap '' TERM; "+writes(1, 60)), // 36 MiB are left, at most
	)
	n.until("all start", running("quiet", "filler"))
	began := time.Now()
	n.tell("filler")
	n.condition(health.DiskPressure, true)
	pods := n.until("the disk", evicted("filler", "The node was low on resource: ephemeral-storage. Threshold quantity: 45Mi, available: ", "quiet"))
	if took := time.Since(began); took < grace {
		t.Errorf("evicted after %v, before its grace period of %v", took, grace)
	}
	ended := pods["filler"].Status.ContainerStatuses[0].State.Terminated
	if ended == nil || ended.ExitCode != 137 {
		t.Fatalf("it ended as %+v, want it killed", ended)
	}
	for _, c := range pods["filler"].Status.Conditions {
		if took := ended.FinishedAt.Sub(c.LastTransitionTime.Time); c.Type == v1.DisruptionTarget && took > 20*time.Second {
			t.Errorf("it was killed %v after it was told to end, want %v", took, most)
		}
	}
	n.condition(health.DiskPressure, false)
	n.well()
}

// TestDiskOfImages: where the runtime has a disk of its own, what fills it is what counts: images that nobody uses go first, then
// the pod that writes into its container, and not the one with as much in a volume.
func TestDiskOfImages(t *testing.T) {
	t.Parallel()
	signals := t.TempDir()
	n := newNodeOn(t, testenv.Options{Root: small(t, "size=256m")}, agent.Options{Kubelet: map[string]any{
		"evictionHard":      map[string]any{"memory.available": "10Mi", "imagefs.available": "60Mi"},
		"imageMinimumGCAge": "0s", "imageGCHighThresholdPercent": 100,
		"evictionPressureTransitionPeriod": "3s",
	}}, signals,
		pod(signals, "quiet", ""),
		pod(signals, "volume", writes(4, 25)+"; touch /signals/written"),
		pod(signals, "layer", strings.ReplaceAll(writes(1, 1000), "/data/", "/")),
	)
	n.until("all start", running("quiet", "volume", "layer"))
	n.tell("volume")
	testenv.Poll(t, patience, func() error {
		_, err := os.Stat(filepath.Join(signals, "written"))
		return err
	})
	n.tell("layer")
	n.until("the disk of the images", evicted("layer", "The node was low on resource: ephemeral-storage. Threshold quantity: 60Mi, available: ", "quiet", "volume"))
	n.condition(health.DiskPressure, false)
	if got := n.metric(`kubelet_evictions{eviction_signal="imagefs.available"}`); got != "1" {
		t.Errorf("%q evictions for want of room for images, want 1", got)
	}
	n.well()
}
