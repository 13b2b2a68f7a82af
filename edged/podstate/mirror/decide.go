package mirror

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/source"
)

// action is what is to be done about a name.
type action string

const (
	nothing action = ""
	create  action = "create"
	remove  action = "remove"
	tell    action = "tell its status"
)

// decide says what is to be done about a name; see the table of the package. It is pure.
func decide(p *pair, linked bool) action {
	switch {
	case p.mirror == nil && p.static != nil && linked:
		return create
	case p.mirror == nil:
		return nothing
	case p.static != nil && shows(p.mirror, p.static):
		return tell
	case p.ended == p.mirror.UID:
		return nothing // the cloud is to say that it is gone
	}
	return remove
}

// shows reports whether a mirror pod is that of a static pod, and is to stay.
func shows(mirror, static *v1.Pod) bool {
	return mirror.DeletionTimestamp == nil &&
		mirror.Annotations[v1.MirrorPodAnnotationKey] == static.Annotations[source.AnnotationHash]
}

// Is reports whether a pod is a mirror pod.
func Is(pod *v1.Pod) bool {
	_, is := pod.Annotations[v1.MirrorPodAnnotationKey]
	return is
}

// Of returns the mirror pod of a static pod, as the API server takes it from this node: it belongs to the Node, so that
// it goes with it, names no service account, and leaves the priority to its class.
func Of(static *v1.Pod, node *v1.Node) *v1.Pod {
	spec := static.Spec.DeepCopy()
	spec.Priority, spec.PreemptionPolicy = nil, nil
	spec.ServiceAccountName, spec.DeprecatedServiceAccount = "", ""
	annotations := maps.Clone(static.Annotations)
	annotations[v1.MirrorPodAnnotationKey] = static.Annotations[source.AnnotationHash]
	return &v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: static.Name, Namespace: static.Namespace, Labels: maps.Clone(static.Labels), Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: ptr.To(true),
			}},
		},
		Spec: *spec,
	}
}
