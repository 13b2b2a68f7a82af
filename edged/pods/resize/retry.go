package resize

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/admission"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Waiting is a pod that asks for other amounts than those that it was allocated.
type Waiting struct {
	// Pod has the amounts that it asks for, Allocated those that it has.
	Pod, Allocated *v1.Pod
	// Since is when it was deferred; zero if it is new.
	Since time.Time
}

// Order sorts pods in the order in which they are resized: those that shrink first, then by priority, then Guaranteed
// ones, then those that have waited longest.
func Order(waiting []Waiting) {
	smallsort.SortStableFunc(waiting, func(a, b Waiting) int {
		return cmp.Or(
			compareBool(a.grows(), b.grows()),
			cmp.Compare(priority(b.Pod), priority(a.Pod)),
			compareBool(admission.QOS(a.Pod) != v1.PodQOSGuaranteed, admission.QOS(b.Pod) != v1.PodQOSGuaranteed),
			compareBool(a.Since.IsZero(), b.Since.IsZero()),
			a.Since.Compare(b.Since),
		)
	})
}

// compareBool sorts false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// grows reports whether the pod asks for more cpu or memory than it has.
func (w *Waiting) grows() bool {
	asks, has := admission.Requests(w.Pod), admission.Requests(w.Allocated)
	return slices.ContainsFunc(resized[:], func(name v1.ResourceName) bool {
		return amount(name, asks) > amount(name, has)
	})
}

func priority(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}
