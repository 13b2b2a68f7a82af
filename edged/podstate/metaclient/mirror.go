package metaclient

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// CreatePod makes a pod, which has to be the mirror of a static one; apierrors.IsAlreadyExists tells one that is there.
// It needs the cloud.
func (c *Client) CreatePod(ctx context.Context, pod *v1.Pod) (*v1.Pod, error) {
	return act[v1.Pod](ctx, c, model.OpInsert, resource.Key{
		Namespace: pod.Namespace, Type: resource.TypePod, Name: pod.Name,
	}, pod)
}

// ReportMirrorStatus queues the status of a mirror pod for the cloud; it is durable on return. The status under that
// name in the store is that of the static pod, and stays: see KeepStatus.
func (c *Client) ReportMirrorStatus(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error {
	return c.putStatus(ctx, model.OpUpdate, resource.TypePodPatch, pod, status)
}
