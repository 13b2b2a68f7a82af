package evict

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
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

// TestShortOfEverything runs a node out of memory, disk, inodes and the processes of a pod, one after another. Each
// time the pod that takes them is evicted, and the node has enough again. Pods within their requests, those of higher
// priority and the static one run on, and so does the node.
func TestShortOfEverything(t *testing.T) {
	t.Parallel()
	const mi = 1 << 20
	signals := t.TempDir()
	n := newNode(t, env.NodeOptions{Agent: agent.Options{
		Dir: small(t, "size=96m,nr_inodes=6000"),
		Kubelet: map[string]any{
			// All pods together have 500 MiB.
			"kubeReserved": map[string]any{"memory": strconv.FormatInt(memTotal(t)-500*mi, 10)},
			"evictionHard": map[string]any{"memory.available": "100Mi", "nodefs.available": "30Mi",
				"nodefs.inodesFree": "25%"},
			"evictionPressureTransitionPeriod": "1s", "podPidsLimit": 100,
		},
	}}, signals,
		pod(signals, "quiet", ""),
		pod(signals, "asked", writes("asked", 90), inMemory, requests(v1.ResourceMemory, "100Mi")),
		pod(signals, "important", writes("important", 50), inMemory, priority(1000)),
		// With what the others hold it leaves less than the threshold, and more than nothing.
		pod(signals, "greedy", writes("greedy", 200), inMemory, requests(v1.ResourceMemory, "10Mi")),
		pod(signals, "keeps", writes("keeps", 10), requests(v1.ResourceEphemeralStorage, "15Mi")),
		pod(signals, "filler", fills("/data", 20)),
		pod(signals, "tiny", takesInodes),
		pod(signals, "forks", "while true; do sleep 1000 & done"),
	)
	n.Manifest("static", holdsMemory)
	n.Until("all to start", unharmed("quiet", "asked", "important", "greedy", "keeps", "filler", "tiny", "forks",
		"static"))
	for _, code := range []health.Code{health.MemoryPressure, health.DiskPressure, health.PIDPressure} {
		n.Condition(code, false)
	}
	evictions := 0
	for _, phase := range []struct {
		name    string
		run     func(n *node, others ...string)
		waiting []string // the pods that have not been told to begin when the phase ends
		evicted int
	}{
		{"memory", memory, []string{"filler", "tiny", "forks"}, 1},
		{"disk", disk, []string{"tiny", "forks"}, 1},
		{"inodes", inodes, []string{"forks"}, 1},
		{"processes", processes, nil, 0},
	} {
		t.Run(phase.name, func(t *testing.T) {
			phase.run(n.with(t), slices.Concat(survivors, phase.waiting)...)
			evictions += phase.evicted
		})
	}
	if got := n.Events("Evicted"); len(got) != evictions {
		t.Errorf("events Evicted = %q, want %d", got, evictions)
	}
}

// survivors are the pods of TestShortOfEverything that nothing ends.
var survivors = []string{"quiet", "asked", "important", "static", "keeps"}

// memory: 90 MiB that were requested, 50 of a higher priority and 70 of a static pod stay.
func memory(n *node, others ...string) {
	for _, name := range []string{"asked", "important"} {
		n.tell(name)
		n.written(name)
	}
	n.tell("greedy")
	n.Until("memory", evicted("greedy", "The node was low on resource: memory. Threshold quantity: 100Mi, available: ",
		others...))
	n.evictions("allocatableMemory.available", "1")
	const ofGreedy = "greedy: The node was low on resource: memory"
	if got := n.Events("Evicted"); len(got) != 1 || !strings.Contains(got[0], ofGreedy) {
		n.T.Errorf("events Evicted = %q, want one of greedy for memory", got)
	}
	const reclaim = "Attempting to reclaim memory"
	if got := n.Events("EvictionThresholdMet"); len(got) == 0 || !strings.HasSuffix(got[0], reclaim) {
		n.T.Errorf("events EvictionThresholdMet = %q, want the first to say that memory is reclaimed", got)
	}
	n.Condition(health.MemoryPressure, false) // there is enough again
	n.works()
}

// disk: what was requested stays.
func disk(n *node, others ...string) {
	n.tell("keeps")
	n.written("keeps")
	n.tell("filler")
	const message = "The node was low on resource: ephemeral-storage. Threshold quantity: 30Mi, available: "
	n.Until("the disk", evicted("filler", message, others...))
	n.Condition(health.DiskPressure, false)
	n.works()
}

// inodes, to the last one: faster than the node checks.
func inodes(n *node, others ...string) {
	n.tell("tiny")
	n.Until("inodes", evicted("tiny", "The node was low on resource: inodes. Threshold quantity: ", others...))
	n.Condition(health.DiskPressure, false)
	n.works()
}

// processes: a pod has no more than it may.
func processes(n *node, others ...string) {
	n.tell("forks")
	n.Until("processes", func(pods map[string]*v1.Pod) error {
		if p := pods["forks"]; p.Status.ContainerStatuses[0].RestartCount == 0 {
			return fmt.Errorf("%s: its shell runs on although it cannot fork: %+v", p.Name, p.Status.ContainerStatuses)
		}
		return unharmed(others...)(pods)
	})
	n.Condition(health.PIDPressure, false)
	n.works()
	n.Until("the others in the end", unharmed(others...))
}

// TestShortOfProcesses: a pod that takes the machine's processes is evicted, and the others run on.
func TestShortOfProcesses(t *testing.T) {
	t.Parallel()
	signals := t.TempDir()
	// So many may come from others on this machine meanwhile, and so many come from the pod.
	const spare, forks = 1000, 2500
	n := newNode(t, env.NodeOptions{Agent: agent.Options{Kubelet: map[string]any{
		"evictionHard": map[string]any{
			"pid.available": strconv.FormatInt(cgroups.MaxPIDs()-threads(t)-spare, 10),
		},
		"evictionPressureTransitionPeriod": "1s",
	}}}, signals,
		pod(signals, "quiet", ""),
		pod(signals, "forks", fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep 1000 & i=$((i+1)); done", forks)),
	)
	n.Until("all to start", unharmed("quiet", "forks"))
	n.tell("forks")
	n.Until("processes", evicted("forks", "The node was low on resource: pids. Threshold quantity: ", "quiet"))
	n.Condition(health.PIDPressure, false)
	n.works()
	n.evictions("pid.available", "1")
}

// threads is how many processes and threads the machine has.
func threads(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	env.Must(t, err)
	var load [3]float64
	var runnable, all int64
	_, err = fmt.Sscanf(string(text), "%f %f %f %d/%d", &load[0], &load[1], &load[2], &runnable, &all)
	env.Must(t, err)
	return all
}

// memTotal is the machine's memory, in bytes.
func memTotal(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	env.Must(t, err)
	var kb int64
	_, err = fmt.Sscanf(string(text), "MemTotal: %d kB", &kb)
	env.Must(t, err)
	return kb << 10
}
