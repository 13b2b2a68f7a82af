package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/edgecore-io/edgecore/edged/podstate/admission"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// DiskUse is what is taken of a file system.
type DiskUse struct{ Bytes, Inodes int64 }

func (d DiskUse) plus(o DiskUse) DiskUse { return DiskUse{d.Bytes + o.Bytes, d.Inodes + o.Inodes} }

// ContainerUsage is what a container takes.
type ContainerUsage struct {
	Name string
	// Memory is its working set.
	Memory int64
	// Disk is what it wrote into its root file system, and its logs.
	Disk int64
}

// PodUsage is what a pod takes. Amounts that are not known are 0.
type PodUsage struct {
	Pod *v1.Pod
	// Memory is the working set. Unmeasured: the pod runs, and it is not known.
	Memory     int64
	Unmeasured bool
	// RootFS is what its containers wrote into their root file systems, Logs their logs, Volumes the volumes that are
	// its own.
	RootFS, Logs, Volumes DiskUse
	Processes             int64
	Containers            []ContainerUsage
}

// Layout says which file systems are the same.
type Layout struct {
	// Images: images are on a file system of their own, not on that of the agent's folder.
	Images bool
	// Layers: what containers write is on the file system of the images. It matters only where Images.
	Layers bool
}

// disk is what ending a pod gives back to the file system of a signal.
func (l Layout) disk(s Signal, u *PodUsage) DiskUse {
	own := u.Logs.plus(u.Volumes)
	if !l.Images {
		return own.plus(u.RootFS)
	}
	switch s {
	case NodeFS, NodeFSInodes:
		if l.Layers {
			return own
		}
		return own.plus(u.RootFS)
	case ContainerFS, ContainerFSInodes:
		if l.Layers {
			return u.RootFS
		}
		return own.plus(u.RootFS)
	}
	if l.Layers {
		return u.RootFS
	}
	return DiskUse{} // images only
}

// use is what a pod takes of what a signal is about, and what it asked for.
func use(s Signal, l Layout, u *PodUsage) (used, asked int64) {
	switch s.Resource() {
	case v1.ResourceMemory:
		return u.Memory, request(u.Pod, v1.ResourceMemory)
	case v1.ResourceEphemeralStorage:
		return l.disk(s, u).Bytes, request(u.Pod, v1.ResourceEphemeralStorage)
	case resourceInodes:
		return l.disk(s, u).Inodes, 0
	}
	return u.Processes, 0
}

func request(pod *v1.Pod, name v1.ResourceName) int64 {
	q := admission.Requests(pod)[name]
	return q.Value()
}

// Rank returns the pods that may go, the first to go first: for memory those that run and cannot be measured, since
// they may use any amount; then those that use more than they asked for before those that do not, then those of lower
// priority, then those that use the most beyond what they asked for. Processes are not asked for: there it is priority,
// then use. Critical pods are not among them.
func Rank(s Signal, l Layout, pods []PodUsage) []PodUsage {
	type ranked struct {
		PodUsage
		unknown  bool
		exceeds  bool
		priority int32
		excess   int64
	}
	var list []ranked
	for _, p := range pods {
		if admission.Critical(p.Pod) {
			continue
		}
		used, asked := use(s, l, &p)
		r := ranked{PodUsage: p, exceeds: used > asked, excess: used - asked}
		r.unknown = p.Unmeasured && s.Resource() == v1.ResourceMemory
		if s == PIDs {
			r.exceeds = false
		}
		if p.Pod.Spec.Priority != nil {
			r.priority = *p.Pod.Spec.Priority
		}
		list = append(list, r)
	}
	smallsort.SortStableFunc(list, func(a, b ranked) int {
		return cmp.Or(first(a.unknown, b.unknown), first(a.exceeds, b.exceeds), cmp.Compare(a.priority, b.priority),
			cmp.Compare(b.excess, a.excess),
			cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	out := make([]PodUsage, len(list))
	for i, r := range list {
		out[i] = r.PodUsage
	}
	return out
}

// first sorts true before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

const lowOn = "The node was low on resource: "

// The annotations of an eviction's event, as the kubelet's.
const (
	annotationContainers      = "offending_containers"
	annotationContainersUsage = "offending_containers_usage"
	annotationPod             = "offending_pod"
	annotationPodUsage        = "offending_pod_usage"
	annotationResource        = "starved_resource"
)

// Message says why a pod goes: what the node is short of, and which containers use more of it than they asked for. The
// annotations say the same for programs.
func Message(t Threshold, seen Observations, u PodUsage) (message string, annotations map[string]string) {
	name := t.Signal.Resource()
	var text strings.Builder
	fmt.Fprintf(&text, lowOn+"%s. ", name)
	if o, known := seen[t.Signal]; known {
		fmt.Fprintf(&text, "Threshold quantity: %s, available: %s. ", amount(t.Signal, t.Value.Of(o.Capacity)),
			amount(t.Signal, o.Available))
	}
	annotations = map[string]string{annotationResource: string(name)}
	if r := u.Pod.Spec.Resources; r != nil && name == v1.ResourceMemory {
		if asked, has := r.Requests[name]; has {
			used := amount(t.Signal, u.Memory)
			fmt.Fprintf(&text, "Pod %s was using %s, request is %s, has larger consumption of %s. ", u.Pod.Name, used,
				asked.String(), name)
			annotations[annotationPod], annotations[annotationPodUsage] = u.Pod.Name, used
		}
	}
	var offenders, usages []string
	for _, c := range slices.Concat(u.Pod.Spec.InitContainers, u.Pod.Spec.Containers) {
		at := slices.IndexFunc(u.Containers, func(k ContainerUsage) bool { return k.Name == c.Name })
		if at < 0 {
			continue
		}
		var used int64
		switch name {
		case v1.ResourceMemory:
			used = u.Containers[at].Memory
		case v1.ResourceEphemeralStorage:
			used = u.Containers[at].Disk
		default:
			continue
		}
		asked := c.Resources.Requests[name]
		if used > asked.Value() {
			fmt.Fprintf(&text, "Container %s was using %s, request is %s, has larger consumption of %s. ", c.Name,
				amount(t.Signal, used), asked.String(), name)
			offenders, usages = append(offenders, c.Name), append(usages, amount(t.Signal, used))
		}
	}
	annotations[annotationContainers], annotations[annotationContainersUsage] = strings.Join(offenders, ","),
		strings.Join(usages, ",")
	return text.String(), annotations
}

// Was reports whether a message is one of Message.
func Was(message string) bool { return strings.HasPrefix(message, lowOn) }

// Describe says how a threshold stands.
func (t *Threshold) Describe(seen Observations) string {
	o := seen[t.Signal]
	return fmt.Sprintf("%s is %s, and should be %s or more", t.Signal, amount(t.Signal, o.Available),
		amount(t.Signal, t.Value.Of(o.Capacity)))
}

func amount(s Signal, n int64) string { return resource.NewQuantity(n, s.format()).String() }
