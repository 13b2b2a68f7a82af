package evict

import (
	"os"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// TestSoftThreshold: a disk that is a little short costs a pod only when that has lasted for the threshold's grace
// period, and the pod gets less time to end than its own hour.
func TestSoftThreshold(t *testing.T) {
	t.Parallel()
	signals := t.TempDir()
	n := newNode(t, env.NodeOptions{
		Agent: agent.Options{Dir: small(t, "size=96m,nr_inodes=6000"), Kubelet: map[string]any{
			"evictionHard": map[string]any{"memory.available": "10Mi", "nodefs.available": "10Mi",
				"nodefs.inodesFree": "25%"},
			"evictionSoft":              map[string]any{"nodefs.available": "45Mi"},
			"evictionSoftGracePeriod":   map[string]any{"nodefs.available": "1h"},
			"evictionMaxPodGracePeriod": 2, "evictionPressureTransitionPeriod": "1s",
		}},
	}, signals,
		pod(signals, "quiet", ""),
		pod(signals, "filler", "trap '' TERM; "+fills("/data", 30), grace(3600)),
		pod(signals, "tiny", takesInodes),
	)
	n.Until("all to start", unharmed("quiet", "filler", "tiny"))
	n.tell("filler")
	n.Condition(health.DiskPressure, true)
	// The node ends one pod after another: it is not waiting for anything else when it ends one for a hard threshold.
	n.tell("tiny")
	n.Until("inodes", evicted("tiny", "The node was low on resource: inodes. Threshold quantity: ", "quiet", "filler"))
	n.Condition(health.DiskPressure, true)

	env.Must(t, n.Stop(t.Context()))
	config, err := os.ReadFile(n.Config())
	env.Must(t, err)
	shorter := strings.Replace(string(config), "nodefs.available: 1h", "nodefs.available: 1s", 1)
	if shorter == string(config) {
		t.Fatalf("configuration = %s\nwant \"nodefs.available: 1h\" in it", config)
	}
	env.Must(t, os.WriteFile(n.Config(), []byte(shorter), 0o644))
	env.Must(t, n.Start(t.Context()))
	pods := n.Until("the disk",
		evicted("filler", "The node was low on resource: ephemeral-storage. Threshold quantity: 45Mi, available: ",
			"quiet"))
	if got := pods["filler"].Status.ContainerStatuses[0].State.Terminated; got == nil || got.ExitCode != 137 {
		t.Errorf("filler ended as %+v, want it killed with exit code 137", got)
	}
	n.Condition(health.DiskPressure, false)
	n.works()
}

// TestDiskOfImages: where the runtime has a disk of its own, what fills it is what counts: unused images are removed
// first, then the pod that writes into its container is evicted, and not the one with as much in a volume.
func TestDiskOfImages(t *testing.T) {
	t.Parallel()
	signals := t.TempDir()
	n := newNode(t, env.NodeOptions{
		Runtime: testenv.Options{Root: small(t, "size=256m")},
		Agent: agent.Options{Kubelet: map[string]any{
			"evictionHard":      map[string]any{"memory.available": "10Mi", "imagefs.available": "60Mi"},
			"imageMinimumGCAge": "0s", "imageGCHighThresholdPercent": 100,
			"evictionPressureTransitionPeriod": "1s",
		}},
	}, signals,
		pod(signals, "quiet", ""),
		pod(signals, "volume", writes("volume", 100)),
		pod(signals, "layer", fills("/", 20)),
	)
	n.Until("all to start", unharmed("quiet", "volume", "layer"))
	n.tell("volume")
	n.written("volume")
	n.tell("layer")
	n.Until("the disk of the images",
		evicted("layer", "The node was low on resource: ephemeral-storage. Threshold quantity: 60Mi, available: ",
			"quiet", "volume"))
	n.Condition(health.DiskPressure, false)
	n.evictions("imagefs.available", "1")
	n.works()
}
