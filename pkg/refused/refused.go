// Package refused makes the stub that a node stores of an object that is too large for it: what identifies the object,
// and why it was refused. Such a stub takes about 1 KB, whatever the object's size.
package refused

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reason is the reason of the status and the event of a pod that was refused.
const Reason = "OutOfPodBytes"

// The annotations of stubs. The API server accepts such names from nobody, so that no other object has them.
const (
	annotationSize    = "refused: size"
	annotationVersion = "refused: version"
	annotationMessage = "refused: message"
)

const (
	// maxContainers limits the containers of the stub of a pod that has ended; maxText limits each text.
	maxContainers = 32
	maxText       = 256
)

// Stub says why an object was refused.
type Stub struct {
	// Size is that of the whole object, in bytes.
	Size int
	// Version is the whole object's wire.Version, for the inventory: the cloud does not send it again.
	Version string
	// Message names the size, the limit and the remedy.
	Message string
}

// Of returns what a stub says; ok is false for any other object.
func Of(annotations map[string]string) (stub Stub, ok bool) {
	text, ok := annotations[annotationSize]
	if !ok {
		return Stub{}, false
	}
	size, err := strconv.Atoi(text)
	return Stub{size, annotations[annotationVersion], annotations[annotationMessage]}, err == nil
}

func (s Stub) meta(obj *metav1.ObjectMeta) metav1.ObjectMeta {
	out := metav1.ObjectMeta{
		Namespace:                  obj.Namespace,
		Name:                       obj.Name,
		UID:                        obj.UID,
		ResourceVersion:            obj.ResourceVersion,
		Generation:                 obj.Generation,
		CreationTimestamp:          obj.CreationTimestamp,
		DeletionTimestamp:          obj.DeletionTimestamp,
		DeletionGracePeriodSeconds: obj.DeletionGracePeriodSeconds,
		Annotations: map[string]string{
			annotationSize:    strconv.Itoa(s.Size),
			annotationVersion: s.Version,
			annotationMessage: s.Message,
		},
	}
	if hash, is := obj.Annotations[v1.MirrorPodAnnotationKey]; is {
		out.Annotations[v1.MirrorPodAnnotationKey] = truncate(hash)
	}
	return out
}

// Pod returns the stub of a pod: enough to report and to delete it. A mirror pod stays one. Of the containers, it has
// the names and images.
func (s Stub) Pod(pod *v1.Pod) *v1.Pod {
	out := &v1.Pod{ObjectMeta: s.meta(&pod.ObjectMeta), Spec: v1.PodSpec{
		NodeName:                      truncate(pod.Spec.NodeName),
		RestartPolicy:                 v1.RestartPolicy(truncate(string(pod.Spec.RestartPolicy))),
		TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
	}}
	for i := range pod.Spec.Containers[:min(len(pod.Spec.Containers), maxContainers)] {
		c := &pod.Spec.Containers[i]
		short := v1.Container{Name: truncate(c.Name), Image: truncate(c.Image)}
		out.Spec.Containers = append(out.Spec.Containers, short)
	}
	return out
}

// Object returns the stub of a ConfigMap or a Secret.
func (s Stub) Object(obj *metav1.ObjectMeta) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: s.meta(obj)}
}

func truncate(text string) string { return text[:min(len(text), maxText)] }
