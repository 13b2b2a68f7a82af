package desired

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/podfacts"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// change holds the arguments of one call of Hub.Changed.
type change struct {
	node string
	key  resource.Key
}

// podChanges returns the changes for nodes in a pod's event; old is nil for a new pod, now for a deleted one. Objects
// that a pod refers to come before it, so that the node has them when it starts the pod. A change of the status alone
// counts only if it is in conditions that readiness gates name and that the node does not set itself.
func podChanges(old, now *v1.Pod) []change {
	var out []change
	tell := func(pod *v1.Pod, keys ...resource.Key) {
		if pod.Spec.NodeName == "" {
			return
		}
		for _, k := range keys {
			out = append(out, change{pod.Spec.NodeName, k})
		}
	}
	switch {
	case old == nil && now == nil:
	case old == nil:
		tell(now, podfacts.References(now)...)
		tell(now, caches.PodKey(now))
	case now == nil:
		tell(old, caches.PodKey(old))
		tell(old, podfacts.References(old)...)
	case old.Spec.NodeName != now.Spec.NodeName || old.UID != now.UID:
		// A new pod of the same name: the two events in between were missed.
		out = append(podChanges(old, nil), podChanges(nil, now)...)
	case samePod(old, now):
	default:
		before, after := podfacts.References(old), podfacts.References(now)
		for _, k := range after {
			if !slices.Contains(before, k) {
				tell(now, k)
			}
		}
		tell(now, caches.PodKey(now))
		for _, k := range before {
			if !slices.Contains(after, k) {
				tell(now, k)
			}
		}
	}
	return out
}

func samePod(a, b *v1.Pod) bool {
	return caches.SameMeta(&a.ObjectMeta, &b.ObjectMeta) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec) &&
		sameGates(a, b)
}

// sameGates reports whether the conditions of the readiness gates are unchanged.
func sameGates(a, b *v1.Pod) bool {
	stand := func(pod *v1.Pod, kind v1.PodConditionType) v1.ConditionStatus {
		if i := slices.IndexFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == kind
		}); i >= 0 {
			return pod.Status.Conditions[i].Status
		}
		return ""
	}
	return !slices.ContainsFunc(b.Spec.ReadinessGates, func(g v1.PodReadinessGate) bool {
		return stand(a, g.ConditionType) != stand(b, g.ConditionType)
	})
}
