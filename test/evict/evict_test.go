package evict

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/cgroups"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
)

// holdsMemory is a static pod with 70 MiB.
const holdsMemory = `apiVersion: v1
kind: Pod
metadata: {name: static}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: m, emptyDir: {medium: Memory}}]
  containers:
  - name: main
    image: edgecore.local/demo:1
    command: [sh, -c, "trap 'exit 0' TERM; dd if=/dev/zero of=/m/f bs=1M count=70 2>/dev/null; while true; do sleep 1 & wait; done"]
    volumeMounts: [{name: m, mountPath: /m}]
`

// TestShortOfEverything runs a node out of memory, disk, inodes and the processes of a pod, one after another. Each time the
// pod goes that takes it, and the node has enough again; the pods that keep to what they asked for, those of higher
// priority and the static one run on, and so does the node.
func TestShortOfEverything(t *testing.T) {
	t.Parallel()
	const mi = 1 << 20
	signals := t.TempDir()
	n := newNode(t, agent.Options{
		Dir: small(t, "size=96m,nr_inodes=6000"),
		Kubelet: map[string]any{
			// All pods together have 500 MiB.
			"kubeReserved":                     map[string]any{"memory": strconv.FormatInt(memTotal(t)-500*mi, 10)},
			"evictionHard":                     map[string]any{"memory.available": "100Mi", "nodefs.available": "30Mi", "nodefs.inodesFree": "25%"},
			"evictionPressureTransitionPeriod": "3s", "podPidsLimit": 100,
		},
	}, signals,
		pod(signals, "quiet", ""),
		pod(signals, "asked", writes(5, 18), inMemory, requests(v1.ResourceMemory, "100Mi")),
		pod(signals, "important", writes(5, 10), inMemory, priority(1000)),
		pod(signals, "greedy", writes(2, 220), inMemory, requests(v1.ResourceMemory, "10Mi")),
		pod(signals, "keeps", writes(1, 10), requests(v1.ResourceEphemeralStorage, "15Mi")),
		pod(signals, "filler", writes(1, 1000)),
		pod(signals, "tiny", "i=0; while [ $i -lt 20000 ]; do : > /data/$i; i=$((i+1)); done"),
		pod(signals, "forks", "while true; do sleep 1000 & done"),
	)
	if err := n.WriteManifest("static.yaml", holdsMemory); err != nil {
		t.Fatal(err)
	}
	n.until("all start", running("quiet", "asked", "important", "greedy", "keeps", "filler", "tiny", "forks", "static"))
	for _, code := range []health.Code{health.MemoryPressure, health.DiskPressure, health.PIDPressure} {
		n.condition(code, false)
	}
	others := []string{"quiet", "asked", "important", "static"}
	n.memory(append(others, "keeps", "filler", "tiny", "forks"))
	others = append(others, "keeps")
	n.disk(append(others, "tiny", "forks"))
	n.inodes(append(others, "forks"))
	n.processes(others)
	if got := n.events("Evicted"); len(got) != 3 {
		t.Errorf("events: %q, want those of three pods", got)
	}
}

// memory: 90 MiB that were asked for, 50 of a higher priority and 70 of a static pod stay.
func (n *node) memory(others []string) {
	n.t.Helper()
	for _, name := range []string{"asked", "important", "greedy"} {
		n.tell(name)
	}
	n.until("memory", evicted("greedy", "The node was low on resource: memory. Threshold quantity: 100Mi, available: ", others...))
	if got := n.metric(`kubelet_evictions{eviction_signal="allocatableMemory.available"}`); got != "1" {
		n.t.Errorf("%q evictions for want of memory, want 1", got)
	}
	if got := n.events("Evicted"); len(got) != 1 || !strings.Contains(got[0], "greedy: The node was low on resource: memory") {
		n.t.Errorf("events: %q", got)
	}
	if got := n.events("EvictionThresholdMet"); len(got) == 0 || !strings.HasSuffix(got[0], "Attempting to reclaim memory") {
		n.t.Errorf("events: %q", got)
	}
	n.condition(health.MemoryPressure, false) // there is enough again
	n.well()
}

// disk: what was asked for stays.
func (n *node) disk(others []string) {
	n.t.Helper()
	n.tell("keeps")
	n.tell("filler")
	n.until("the disk", evicted("filler", "The node was low on resource: ephemeral-storage. Threshold quantity: 30Mi, available: ", others...))
	n.condition(health.DiskPressure, false)
	n.well()
}

// inodes, to the last one: faster than anybody looks.
func (n *node) inodes(others []string) {
	n.t.Helper()
	n.tell("tiny")
	n.until("inodes", evicted("tiny", "The node was low on resource: inodes. Threshold quantity: ", others...))
	n.condition(health.DiskPressure, false)
	n.well()
}

// processes: a pod has no more than it may.
func (n *node) processes(others []string) {
	n.t.Helper()
	n.tell("forks")
	n.until("processes", func(pods map[string]*v1.Pod) error {
		if p := pods["forks"]; p.Status.ContainerStatuses[0].RestartCount == 0 {
			return fmt.Errorf("%s: its shell goes on though it cannot fork: %+v", p.Name, p.Status.ContainerStatuses)
		}
		return running(others...)(pods)
	})
	n.condition(health.PIDPressure, false)
	n.well()
	n.until("in the end", running(others...))
}

// TestShortOfProcesses: a pod that takes the machine's processes goes, and the others run on.
func TestShortOfProcesses(t *testing.T) {
	t.Parallel()
	signals := t.TempDir()
	// So many may come from others on this machine meanwhile, and so many come from the pod.
	const spare, forks = 1000, 2500
	n := newNode(t, agent.Options{Kubelet: map[string]any{
		"evictionHard": map[string]any{"pid.available": strconv.FormatInt(cgroups.MaxPIDs()-threads(t)-spare, 10)}, "evictionPressureTransitionPeriod": "3s",
	}}, signals,
		pod(signals, "quiet", ""),
		pod(signals, "forks", fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep 1000 & i=$((i+1)); done", forks)),
	)
	n.until("all start", running("quiet", "forks"))
	n.tell("forks")
	n.until("processes", evicted("forks", "The node was low on resource: pids. Threshold quantity: ", "quiet"))
	n.condition(health.PIDPressure, false)
	n.well()
	if got := n.metric(`kubelet_evictions{eviction_signal="pid.available"}`); got != "1" {
		t.Errorf("%q evictions for want of processes, want 1", got)
	}
}

// threads is how many processes and threads the machine has.
func threads(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	var load [3]float64
	var runnable, all int64
	if _, err := fmt.Sscanf(string(text), "%f %f %f %d/%d", &load[0], &load[1], &load[2], &runnable, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// memTotal is the machine's memory, in bytes.
func memTotal(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	var kb int64
	if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kb); err != nil {
		t.Fatal(err)
	}
	return kb << 10
}
