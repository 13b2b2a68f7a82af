package shutdown

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// systemCritical is the priority from which on pods are critical.
const systemCritical = 2000000000

// Group is the pods from a priority on, up to that of the next group.
type Group struct {
	Priority int32
	Grace    time.Duration
}

// Batch is what ends together.
type Batch struct {
	Grace time.Duration
	Pods  []*v1.Pod
}

// GroupsOf reads the groups from the configuration; there are none if a shutdown does not wait for pods.
func GroupsOf(c *kubeletconfig.KubeletConfiguration) []Group {
	var groups []Group
	for _, e := range c.ShutdownGracePeriodByPodPriority {
		groups = append(groups, Group{e.Priority, time.Duration(e.ShutdownGracePeriodSeconds) * time.Second})
	}
	if all, critical := c.ShutdownGracePeriod.Duration, c.ShutdownGracePeriodCriticalPods.Duration; len(groups) == 0 &&
		all > 0 {
		groups = []Group{{0, all - critical}, {systemCritical, critical}}
	}
	smallsort.SortFunc(groups, func(a, b Group) int { return cmp.Compare(a.Priority, b.Priority) })
	return groups
}

// Assign puts each pod into its group: the last one whose priority is not above the pod's, or else the first. There is
// a batch for each group.
func Assign(groups []Group, pods []*v1.Pod) []Batch {
	batches := make([]Batch, len(groups))
	for i, g := range groups {
		batches[i].Grace = g.Grace
	}
	for _, pod := range pods {
		priority, in := ptr.Deref(pod.Spec.Priority, 0), 0
		for i, g := range groups {
			if g.Priority <= priority {
				in = i
			}
		}
		batches[in].Pods = append(batches[in].Pods, pod)
	}
	return batches
}

// graceOf is what the containers of a pod have: their own time, but no more than the group's.
func graceOf(pod *v1.Pod, group time.Duration) time.Duration {
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
		return min(time.Duration(*own)*time.Second, group)
	}
	return group
}

// total is what all groups may take.
func total(groups []Group) (sum time.Duration) {
	for _, g := range groups {
		sum += g.Grace
	}
	return sum
}

// fit shortens the groups so that all of them together take no more than there is.
func fit(groups []Group, has time.Duration) []Group {
	want := total(groups)
	if want <= has {
		return groups
	}
	out := slices.Clone(groups)
	for i := range out {
		out[i].Grace = time.Duration(float64(out[i].Grace) * float64(has) / float64(want))
	}
	return out
}
