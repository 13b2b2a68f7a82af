package events

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// event is what a Recorder keeps of an event: a third of the size of a v1.Event.
type event struct {
	subject
	eventType, reason, message string
	count                      int32
	first, last                time.Time
}

// subject is what an event is about. The event is in the same namespace as its pod; events of a node are in "default".
type subject struct {
	kind                                        string // Pod or Node
	namespace, name, resourceVersion, fieldPath string
	uid                                         types.UID
	annotations                                 map[string]string
}

func ofPod(pod *v1.Pod, fieldPath string) subject {
	return subject{
		kind:            "Pod",
		namespace:       pod.Namespace,
		name:            pod.Name,
		resourceVersion: pod.ResourceVersion,
		fieldPath:       fieldPath,
		uid:             pod.UID,
	}
}

// v1 returns the event as the API has it, reported by a node.
func (e *event) v1(node string) v1.Event {
	return v1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s.%x", e.name, e.first.UnixNano()), Namespace: e.namespace, Annotations: e.annotations,
		},
		InvolvedObject:      e.reference(),
		Reason:              e.reason,
		Message:             e.message,
		Type:                e.eventType,
		Count:               e.count,
		FirstTimestamp:      metav1.Time{Time: e.first},
		LastTimestamp:       metav1.Time{Time: e.last},
		Source:              v1.EventSource{Component: component, Host: node},
		ReportingController: component,
		ReportingInstance:   node,
	}
}

// reference refers to the subject as kubelets do: nodes have no namespace.
func (s *subject) reference() v1.ObjectReference {
	ref := v1.ObjectReference{Kind: s.kind, Name: s.name, UID: s.uid}
	if s.kind == "Pod" {
		ref.APIVersion, ref.Namespace = "v1", s.namespace
		ref.ResourceVersion, ref.FieldPath = s.resourceVersion, s.fieldPath
	}
	return ref
}
