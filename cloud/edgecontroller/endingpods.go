package edgecontroller

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// endingContainers limits the containers of a pod that never started and is sent because it is being deleted.
const endingContainers = 32

// sendEnding returns what a node is sent of a pod that is withheld and being deleted: its deletion, with no more than
// it takes to end the pod.
func (c *Controller) sendEnding(node string, key resource.Key, pod *v1.Pod) (*cloudhub.Object, error) {
	if isTrimmed(pod) {
		size := min(int64(sizeOf(pod)), c.wholeSent.Share())
		if !c.wholeSent.Take(node, size) {
			return nil, fmt.Errorf("%s has %d KiB: %w", key, size>>10, errLargePodsOnTheirWay)
		}
		defer c.wholeSent.Return(node, size)
		leave, err := c.wholeReads.acquire(c.ctx)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", key, err)
		}
		defer leave()
		whole, err := confirmed(c, key, c.clients.Own.CoreV1().Pods(key.Namespace).Get)
		switch {
		case err != nil:
			return nil, err
		case whole == nil || whole.UID != pod.UID || whole.DeletionTimestamp == nil:
			return nil, fmt.Errorf("read %s: %w", key, errPodsMissing) // the watch is about to tell
		}
		pod = whole
	}
	return toSend(key, endingPod(pod, c.room.admitted(node, pod.UID)))
}

// endingPod returns what it takes to end a pod. Of one that its node has, the spec is no larger than the node has it:
// only tolerations and ephemeral containers can have been added. Of another one, the names of some containers and their
// hooks are left, in case that it has it all the same.
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
	if hash, is := pod.Annotations[v1.MirrorPodAnnotationKey]; is && len(hash) <= trimmedMost {
		out.Annotations = map[string]string{v1.MirrorPodAnnotationKey: hash}
	}
	if has {
		out.Spec = pod.Spec
		out.Spec.Tolerations, out.Spec.EphemeralContainers = nil, nil
		return out
	}
	out.Spec = v1.PodSpec{
		NodeName:                      pod.Spec.NodeName,
		RestartPolicy:                 pod.Spec.RestartPolicy,
		TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
	}
	for hooks := true; ; hooks = false {
		out.Spec.Containers = nil
		for _, c := range pod.Spec.Containers[:min(len(pod.Spec.Containers), endingContainers)] {
			left := v1.Container{Name: c.Name, Image: c.Image}
			if hooks {
				left.Lifecycle, left.Ports = c.Lifecycle, c.Ports
			}
			out.Spec.Containers = append(out.Spec.Containers, left)
		}
		if !hooks || contentSize(out) <= trimBytes {
			return out
		}
	}
}
