package desired

import (
	"fmt"
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/lookups"
	"github.com/edgecore-io/edgecore/pkg/memsize"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Limits of a pod that its node does not have, as far as is known, and that is sent because it is being deleted.
const (
	// endingContainers limits its containers, and endingHookBytes the hooks and ports of all of them.
	endingContainers = 16
	endingHookBytes  = 4 << 10
	// endingBytes is the most that it takes, by caches.ContentSize.
	endingBytes = 24 << 10
)

// maxImage is the length of the longest image that a pod is sent because it is being deleted. Images may have grown
// since the node got the pod.
const maxImage = 1 << 10

// sendEnding returns what a node is sent of a pod that is withheld and being deleted: its deletion, with no more than
// it takes to end the pod.
func (d *Objects) sendEnding(node string, key resource.Key, pod *v1.Pod) (*cloudhub.Object, error) {
	send := func(pod *v1.Pod) (*cloudhub.Object, error) {
		return caches.ToSend(key, endingPod(pod, d.room.admitted(node, pod.UID)))
	}
	if !caches.IsTrimmed(pod) {
		return send(pod)
	}
	size := min(int64(caches.SizeOf(pod)), d.wholeSent.Share())
	if !d.wholeSent.Take(node, size) {
		return nil, fmt.Errorf("%s has %d KiB: %w", key, size>>10, errLargePodsOnTheirWay)
	}
	defer d.wholeSent.Return(node, size)
	var object *cloudhub.Object
	err := d.lookups.LargePod(d.ctx, key, func(whole *v1.Pod) (err error) {
		if whole == nil || whole.UID != pod.UID || whole.DeletionTimestamp == nil {
			return fmt.Errorf("read %s: %w", key, lookups.ErrPodsMissing) // the watch is about to tell
		}
		object, err = send(whole)
		return err
	})
	return object, err
}

// endingPod returns what it takes to end a pod. Of one that its node has, the spec is no larger than the node has it:
// only tolerations and ephemeral containers can have been added, and longer images. Of another one, the names of some
// containers are left, and their hooks if these are short, in case that the node has it all the same.
func endingPod(pod *v1.Pod, has bool) *v1.Pod {
	out := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:                  pod.Namespace,
			Name:                       pod.Name,
			UID:                        pod.UID,
			ResourceVersion:            pod.ResourceVersion,
			CreationTimestamp:          pod.CreationTimestamp,
			DeletionTimestamp:          pod.DeletionTimestamp,
			DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
		},
		Status: v1.PodStatus{Phase: pod.Status.Phase, StartTime: pod.Status.StartTime},
	}
	if hash, is := pod.Annotations[v1.MirrorPodAnnotationKey]; is && len(hash) <= caches.TrimmedMost {
		out.Annotations = map[string]string{v1.MirrorPodAnnotationKey: hash}
	}
	if has {
		out.Spec = pod.Spec
		out.Spec.Tolerations, out.Spec.EphemeralContainers = nil, nil
		out.Spec.InitContainers = withoutLongImages(pod.Spec.InitContainers)
		out.Spec.Containers = withoutLongImages(pod.Spec.Containers)
		return out
	}
	out.Spec = v1.PodSpec{
		NodeName:                      pod.Spec.NodeName,
		RestartPolicy:                 pod.Spec.RestartPolicy,
		TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
	}
	hooks := 0
	for _, c := range pod.Spec.Containers[:min(len(pod.Spec.Containers), endingContainers)] {
		name := c.Name[:min(len(c.Name), validation.DNS1123LabelMaxLength)]
		left := v1.Container{Name: name, Lifecycle: c.Lifecycle, Ports: c.Ports}
		out.Spec.Containers = append(out.Spec.Containers, left)
		hooks += memsize.Of(reflect.ValueOf(c.Lifecycle)) + memsize.Of(reflect.ValueOf(c.Ports))
	}
	if hooks > endingHookBytes {
		for i := range out.Spec.Containers {
			out.Spec.Containers[i].Lifecycle, out.Spec.Containers[i].Ports = nil, nil
		}
	}
	return out
}

func withoutLongImages(containers []v1.Container) []v1.Container {
	out := slices.Clone(containers)
	for i := range out {
		if len(out[i].Image) > maxImage {
			out[i].Image = ""
		}
	}
	return out
}
