// Package resize decides how running pods get other amounts of cpu and memory: which part of a change the node
// allocates, and what to do to a container whose amounts differ from the allocated ones. It is pure.
//
// A pod has three sets of amounts: those that it asks for (its spec), those that the node has allocated to it, which it
// keeps until all of what it asks for fits, and those with which each container really runs. Source: "Resize CPU and
// Memory Resources assigned to Containers" in the Kubernetes documentation.
package resize

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/edgecore-io/edgecore/edged/podstate/admission"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// resized are the resources that can be changed.
var resized = [...]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory}

// Amounts are the cpu and memory of a pod's containers, by their names; and under Whole those of the pod as a whole,
// where it has any.
type Amounts map[string]v1.ResourceRequirements

// Whole is the name of the pod as a whole.
const Whole = ""

// Of returns the amounts in a pod's spec.
func Of(pod *v1.Pod) Amounts {
	out := Amounts{}
	if pod.Spec.Resources != nil {
		out[Whole] = of(pod.Spec.Resources)
	}
	each(pod, func(c *v1.Container) { out[c.Name] = of(&c.Resources) })
	return out
}

func each(pod *v1.Pod, f func(*v1.Container)) {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			f(&list[i])
		}
	}
}

func of(r *v1.ResourceRequirements) v1.ResourceRequirements {
	return v1.ResourceRequirements{Requests: part(r.Requests), Limits: part(r.Limits)}
}

func part(list v1.ResourceList) v1.ResourceList {
	var out v1.ResourceList
	for _, name := range resized {
		if q, ok := list[name]; ok {
			if out == nil {
				out = v1.ResourceList{}
			}
			out[name] = q
		}
	}
	return out
}

// Told returns the allocated amounts that the previous status reports: they survive restarts of the agent there. A
// container that it does not list has what it asks for. A status may name more resources than the spec does, such as a
// limit that a container has from its pod: those are left out.
func Told(pod *v1.Pod, status *v1.PodStatus) Amounts {
	out := Of(pod)
	if asks, ok := out[Whole]; ok && status.Resources != nil {
		out[Whole] = Named(asks, status.AllocatedResources, status.Resources.Limits)
	}
	for _, list := range [][]v1.ContainerStatus{status.InitContainerStatuses, status.ContainerStatuses} {
		for _, s := range list {
			if asks, ok := out[s.Name]; ok && s.Resources != nil {
				out[s.Name] = Named(asks, s.AllocatedResources, s.Resources.Limits)
			}
		}
	}
	return out
}

// Named returns requests and limits of the resources that asks names.
func Named(asks v1.ResourceRequirements, requests, limits v1.ResourceList) v1.ResourceRequirements {
	only := func(asks, list v1.ResourceList) v1.ResourceList {
		out := part(list)
		maps.DeleteFunc(out, func(name v1.ResourceName, _ resource.Quantity) bool {
			_, ok := asks[name]
			return !ok
		})
		if len(out) == 0 {
			return nil
		}
		return out
	}
	return v1.ResourceRequirements{Requests: only(asks.Requests, requests), Limits: only(asks.Limits, limits)}
}

// Effective returns the cpu and memory of a container's cgroup: its own, and the limits of the pod as a whole where the
// container has none. whole is nil for a pod without.
func Effective(whole *v1.ResourceRequirements, own v1.ResourceRequirements) v1.ResourceRequirements {
	out := of(&own)
	if whole == nil {
		return out
	}
	for _, name := range resized {
		have, limit := out.Limits[name], whole.Limits[name]
		if !have.IsZero() || limit.IsZero() {
			continue
		}
		if out.Limits == nil {
			out.Limits = v1.ResourceList{}
		}
		out.Limits[name] = limit
	}
	return out
}

// Same reports whether two containers have the same amounts.
func Same(a, b v1.ResourceRequirements) bool {
	return equality.Semantic.DeepEqual(of(&a), of(&b))
}

// Put returns a requirement with other amounts of what can be changed; the rest stays.
func Put(r v1.ResourceRequirements, amounts v1.ResourceRequirements) v1.ResourceRequirements {
	r.Requests, r.Limits = put(r.Requests, amounts.Requests), put(r.Limits, amounts.Limits)
	return r
}

func put(list, amounts v1.ResourceList) v1.ResourceList {
	out := v1.ResourceList{}
	for name, q := range list {
		if !slices.Contains(resized[:], name) {
			out[name] = q
		}
	}
	for name, q := range amounts {
		out[name] = q
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// On returns a pod with these amounts in its spec: the pod itself where it has them.
func (a Amounts) On(pod *v1.Pod) *v1.Pod {
	same := true
	whole, ok := a[Whole]
	if ok && pod.Spec.Resources != nil {
		same = Same(*pod.Spec.Resources, whole)
	}
	each(pod, func(c *v1.Container) {
		have, ok := a[c.Name]
		same = same && (!ok || Same(c.Resources, have))
	})
	if same {
		return pod
	}
	out := pod.DeepCopy()
	if ok && out.Spec.Resources != nil {
		*out.Spec.Resources = Put(*out.Spec.Resources, whole)
	}
	each(out, func(c *v1.Container) {
		if have, ok := a[c.Name]; ok {
			c.Resources = Put(c.Resources, have)
		}
	})
	return out
}

// Larger returns the larger of each amount of a and b: the room that a pod needs while it goes from one to the other.
func Larger(a, b Amounts) Amounts {
	out := Amounts{}
	for name, x := range a {
		y := b[name]
		out[name] = v1.ResourceRequirements{
			Requests: larger(x.Requests, y.Requests), Limits: larger(x.Limits, y.Limits),
		}
	}
	return out
}

func larger(a, b v1.ResourceList) v1.ResourceList {
	out := a.DeepCopy()
	for name, q := range b {
		if have, ok := out[name]; ok && have.Cmp(q) < 0 {
			out[name] = q
		}
	}
	return out
}

// Admit decides whether a pod gets the amounts that it asks for, beside others as they are allocated; nil is yes. The
// reason is Infeasible where the node is too small, else that of a pod which is refused: OutOfcpu, OutOfmemory.
func Admit(pod *v1.Pod, allocatable v1.ResourceList, others []*v1.Pod) *observed.Reason {
	wants := admission.Requests(pod)
	for _, name := range resized {
		capacity, known := allocatable[name]
		want := wants[name]
		if known && want.Cmp(capacity) > 0 {
			return &observed.Reason{
				Reason: v1.PodReasonInfeasible,
				Message: fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", name,
					amount(name, wants), amount(name, allocatable)),
			}
		}
	}
	for _, name := range resized {
		if _, known := allocatable[name]; !known {
			continue
		}
		used := int64(0)
		for _, o := range others {
			used += amount(name, admission.Requests(o))
		}
		want, capacity := amount(name, wants), amount(name, allocatable)
		if used+want > capacity {
			return &observed.Reason{
				Reason: "OutOf" + string(name),
				Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
					name, want, used, capacity),
			}
		}
	}
	return nil
}

// KeepsSwap refuses a resize that would change how much a container may swap, which follows from its memory request;
// nil is yes. A container that is restarted for it gets a new amount. swaps reports whether a container of a pod may
// swap.
func KeepsSwap(pod, allocated *v1.Pod, swaps func(*v1.Pod, *v1.Container) bool) *observed.Reason {
	before := map[string]*v1.Container{}
	each(allocated, func(c *v1.Container) { before[c.Name] = c })
	var why *observed.Reason
	each(pod, func(c *v1.Container) {
		has := before[c.Name]
		if has == nil || has.Resources.Requests.Memory().Equal(*c.Resources.Requests.Memory()) ||
			slices.ContainsFunc(has.ResizePolicy, func(p v1.ContainerResizePolicy) bool {
				return p.ResourceName == v1.ResourceMemory && p.RestartPolicy == v1.RestartContainer
			}) {
			return
		}
		if swaps(pod, c) || swaps(allocated, has) {
			why = &observed.Reason{
				Reason:  v1.PodReasonInfeasible,
				Message: "In-place resize of containers with swap is not supported.",
			}
		}
	})
	return why
}

// amount is thousandths of a cpu, or bytes.
func amount(name v1.ResourceName, list v1.ResourceList) int64 {
	q := list[name]
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// Restarts reports whether a container has to be started again to go from one set of amounts to another, by its policy.
func Restarts(c *v1.Container, from, to v1.ResourceRequirements) bool {
	return slices.ContainsFunc(c.ResizePolicy, func(p v1.ContainerResizePolicy) bool {
		if p.RestartPolicy != v1.RestartContainer {
			return false
		}
		return changed(p.ResourceName, from.Requests, to.Requests) || changed(p.ResourceName, from.Limits, to.Limits)
	})
}

func changed(name v1.ResourceName, from, to v1.ResourceList) bool {
	a, was := from[name]
	b, is := to[name]
	return was != is || a.Cmp(b) != 0
}
