// Package evictions decides which tolerations keep a pod on its node while that is offline, and when they are set.
package evictions

import (
	"hash/fnv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A pod's tolerations are changed some time after it was bound, so that no API write lies in the path of its start,
// its metadata.generation stays as its owner expects while it starts, and pods that end soon are left alone. The time
// is a share of the time for which the pod tolerates a node that is not ready or unreachable: 300 s, unless the pod
// or the API server's flags say otherwise; longer times count as 300 s.
//
//	when                                            300 s   share
//	after the pod was seen Running                   60 s    1/5
//	but at the latest after it was bound            120 s    2/5
//	spread over pods that came together, up to      +60 s    1/5
//	the node counts as not ready or unreachable       0 s      0
//	the pod tolerates it for no time at all           0 s      0
//
// So each pod is done 180 s (3/5) after it was bound. The worst case is a node that falls silent just when the pod
// was bound: its lease was renewed up to 20 s before, the node lifecycle controller waits 40 s from then (50 s since
// Kubernetes 1.32; --node-monitor-grace-period), adds the taint, and the taint eviction controller waits for the
// pod's 300 s: the eviction comes after 320 s at the earliest. A cloudcore that runs sees the node's condition and
// patches in that moment, with 300 s to go; and if none does, the pod's own time comes 140 s before.
//
// If every cloudcore stops, nobody patches. Pods whose time had come before are safe for however long that lasts. Of
// the others, bound less than 180 s before, none is evicted if a cloudcore is back within 320 s: it finds the nodes
// not ready, and patches at once. Anyone who wants no such window sets the two tolerations in the pod's template, which
// also keeps its generation at 1.
const (
	longestTolerance = 300 * time.Second // what Kubernetes adds to pods without such tolerations
	// Divisors of the toleration time.
	shareRunning = 5
	shareSpread  = 5
)

// shareBound returns 2/5 of the toleration time.
func shareBound(tolerated time.Duration) time.Duration { return 2 * tolerated / 5 }

// tolerated returns how long a pod certainly stays on a node that is not ready or unreachable, at most
// longestTolerance. It is 0 if the pod lacks a toleration for one of the taints.
func tolerated(tolerations []v1.Toleration) time.Duration {
	shortest := longestTolerance
	for _, key := range UnlimitedTaints() {
		taint := v1.Taint{Key: key, Effect: v1.TaintEffectNoExecute}
		matched := false
		for i := range tolerations {
			t := &tolerations[i]
			if !Tolerates(t, &taint) {
				continue
			}
			matched = true
			// The comparison in seconds cannot overflow.
			if s := t.TolerationSeconds; s != nil && *s < int64(shortest/time.Second) {
				shortest = time.Duration(max(*s, 0)) * time.Second
			}
		}
		if !matched {
			return 0
		}
	}
	return shortest
}

// PatchDelay returns how long a pod on a reachable node may wait for its tolerations. It never exceeds 3/5 of the
// toleration time, whatever other clocks say.
func PatchDelay(pod *v1.Pod, now time.Time) time.Duration {
	limit := tolerated(pod.Spec.Tolerations)
	wait := min(max(boundAt(pod).Add(shareBound(limit)).Sub(now), 0), shareBound(limit))
	if pod.Status.Phase == v1.PodRunning {
		wait = min(wait, limit/shareRunning)
	}
	return wait + spread(pod.UID, limit/shareSpread)
}

// boundAt returns when a pod was bound to its node: when the scheduler bound it, or when it was created for the node.
func boundAt(pod *v1.Pod) time.Time {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == v1.PodScheduled && c.Status == v1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

// spread returns a part of a duration that is constant for one pod and even over many.
func spread(uid types.UID, over time.Duration) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(uid)) // never fails
	return time.Duration(float64(over) * float64(h.Sum32()) / (1 << 32))
}
