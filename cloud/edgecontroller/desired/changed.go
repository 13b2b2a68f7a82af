package desired

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/podfacts"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// PodChanged takes an event of a pod: old is nil for a new one, now for a deleted one.
func (d *Objects) PodChanged(old, now *v1.Pod) {
	d.podLists.changed(old, now)
	changes := podChanges(old, now)
	sameContent := old != nil && now != nil && len(changes) == 0
	change := d.room.changed(old, now, sameContent) // before the hub asks for them
	for _, ch := range changes {
		d.hub.Changed(ch.node, ch.key)
	}
	d.roomChanged(change)
	if len(changes) == 0 && old != nil && now != nil && old.ResourceVersion != now.ResourceVersion &&
		now.Spec.NodeName != "" {
		d.hub.StatusChanged(now.Spec.NodeName, caches.PodKey(now))
	}
	if len(changes) == 0 {
		return
	}
	for _, pod := range []*v1.Pod{old, now} {
		if pod != nil && (old == nil || now == nil || old.UID != now.UID) {
			d.services.servicesChanged(pod)
		}
	}
}

// decided decides about the room of a node's pods.
func (d *Objects) decided(node string) {
	change := d.room.decide(node)
	d.roomChanged(change)
	if len(change.withheld) > 0 {
		d.fullNodes.Keys.Add(node)
	}
}

// roomChanged marks pods that are not withheld any more, and before each the objects that it refers to. Pods that are
// withheld now get an event. Those that are ending are marked too: of these their nodes may have more than they are to.
// Decisions that are due are queued.
func (d *Objects) roomChanged(change roomChange) {
	for node, after := range change.due {
		d.decideRoom(node, after)
	}
	for _, p := range change.released {
		pod := d.caches.Pod(p.key.Namespace, p.key.Name)
		if pod == nil || pod.UID != p.uid {
			continue
		}
		for _, key := range podfacts.References(pod) {
			d.hub.Changed(pod.Spec.NodeName, key)
		}
		d.hub.Changed(pod.Spec.NodeName, p.key)
	}
	for _, p := range change.withheld {
		if pod := d.caches.Pod(p.key.Namespace, p.key.Name); p.ending() && pod != nil && pod.UID == p.uid {
			d.hub.Changed(pod.Spec.NodeName, p.key)
		}
	}
	d.notices.add(change.withheld)
}

// NamedEvent returns the handler of ConfigMaps or Secrets. A new version may have the same content: the hub compares it
// with what each node has.
func (d *Objects) NamedEvent(kind string) func(old, now *metav1.PartialObjectMetadata) {
	return func(old, now *metav1.PartialObjectMetadata) {
		known := cmp.Or(now, old)
		key := resource.Key{Namespace: known.Namespace, Type: kind, Name: known.Name}
		if now == nil {
			d.contents.Forget(key)
		} else {
			d.contents.Expire(key, now.ResourceVersion)
		}
		if old != nil && now != nil && old.UID == now.UID && old.ResourceVersion == now.ResourceVersion {
			return
		}
		d.namedChanged(kind, known)
	}
}

// namedChanged marks a ConfigMap or Secret on the nodes whose pods name it.
func (d *Objects) namedChanged(kind string, obj metav1.Object) {
	key := resource.Key{Namespace: obj.GetNamespace(), Type: kind, Name: obj.GetName()}
	told := map[string]bool{}
	for _, pod := range d.caches.PodsNaming(key) {
		if node := pod.Spec.NodeName; !told[node] {
			told[node] = true
			d.hub.Changed(node, key)
		}
	}
}

// ServiceEvent takes a change of a Service; old is nil for a new one, now for a deleted one.
func (d *Objects) ServiceEvent(old, now *v1.Service) { d.services.serviceEvent(old, now) }

// WithheldPods counts the pods that are withheld from their nodes, by the reason.
func (d *Objects) WithheldPods() map[string]int {
	count := map[string]int{}
	for why, n := range d.room.withheldPods() {
		count[why.String()] = n
	}
	return count
}

// FullCount counts the nodes whose pods do not all have room.
func (d *Objects) FullCount() int { return d.room.fullNodes() }
