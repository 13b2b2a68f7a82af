package requests

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// knownPods finds pods.
type knownPods struct {
	own    kubernetes.Interface
	caches Caches
}

// podHandlers carry out requests about pods: their statuses, their ends, and the mirrors of static pods.
type podHandlers struct {
	asNode, own kubernetes.Interface
	pods        *knownPods
	late        *lateStatuses
	// whole returns the whole of a pod that may be trimmed.
	whole func(ctx context.Context, pod *v1.Pod) (*v1.Pod, error)
	// reported is called for each status that the API server has stored.
	reported func(node string, pod *v1.Pod)
}

// podOf returns a pod from the cache, or from the API server if the cache lacks it; nil if there is none. It may be
// trimmed.
func (k *knownPods) podOf(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	if pod := k.caches.Pod(namespace, name); pod != nil {
		return pod, nil
	}
	pod, err := k.own.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return pod, err
}

func (h *podHandlers) queryPod(ctx context.Context, r *request) result {
	pod, err := h.pods.podOf(ctx, r.key.Namespace, r.key.Name)
	switch {
	case err != nil:
		return failed(err)
	case pod == nil:
		return failed(apierrors.NewNotFound(gr(r.key.Type), r.key.Name))
	case pod.Spec.NodeName != r.node:
		return failed(forbidden(r.key, "it is not bound to node %s", r.node))
	}
	pod, err = h.whole(ctx, pod)
	return found(pod, err)
}

// createMirrorPod creates the mirror pod of a static pod; NodeRestriction admission verifies that it is one.
func (h *podHandlers) createMirrorPod(ctx context.Context, r *request) result {
	pod, err := decode[v1.Pod](r, "Pod")
	switch {
	case err != nil:
	case pod.Name != r.key.Name || pod.Namespace != r.key.Namespace:
		err = badRequest(r.key, "the content is pod %s/%s", pod.Namespace, pod.Name)
	case pod.Spec.NodeName != r.node || pod.Annotations[v1.MirrorPodAnnotationKey] == "":
		err = forbidden(r.key, "node %s may only create the mirror pods of its own static pods", r.node)
	}
	if err != nil {
		return written(nil, err, false)
	}
	pod.ResourceVersion, pod.UID = "", ""
	created, err := h.asNode.CoreV1().Pods(r.key.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return h.mirrorExists(ctx, r, pod, err)
	}
	return written(created, err, false)
}

// mirrorExists is the result of a mirror pod whose name is taken: the pod that is there if it is the mirror of the same
// static pod, or else err. KubeEdge's edgecores since 1.23 read the object beside that error, and panic without one.
func (h *podHandlers) mirrorExists(ctx context.Context, r *request, pod *v1.Pod, err error) result {
	there, getErr := h.pods.podOf(ctx, r.key.Namespace, r.key.Name)
	if getErr == nil && there != nil {
		there, getErr = h.whole(ctx, there)
	}
	if getErr != nil {
		err = getErr
	} else if there != nil && there.Spec.NodeName == r.node &&
		there.Annotations[v1.MirrorPodAnnotationKey] == pod.Annotations[v1.MirrorPodAnnotationKey] {
		return written(there, nil, false)
	}
	return result{content: objectResponse{Object: &v1.Pod{}, Err: &statusError{asStatus(err)}}}
}

// deletion decodes a node's report that a pod ended: DeleteOptions with the pod's UID, or from edgecores before 1.12
// the bare UID.
func deletion(r *request) (metav1.DeleteOptions, error) {
	var options metav1.DeleteOptions
	if len(r.content) > 0 && r.content[0] != '{' {
		uid := types.UID(r.content)
		if string(uid) == "null" {
			uid = ""
		}
		options = metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	} else if err := json.Unmarshal(r.content, &options); err != nil {
		return options, badRequest(r.key, "the content is not a DeleteOptions: %v", err)
	}
	if options.Preconditions == nil || options.Preconditions.UID == nil || *options.Preconditions.UID == "" {
		return options, badRequest(r.key, "the content has no UID: a node may delete only the pod whose UID it names")
	}
	return metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), // the containers are stopped
		Preconditions:      &metav1.Preconditions{UID: options.Preconditions.UID},
	}, nil
}

// deletePod removes a pod whose containers the node has stopped. It succeeds if the pod is gone or replaced; but the
// API server's admission may lag and not know an existing pod yet.
func (h *podHandlers) deletePod(ctx context.Context, r *request) result {
	options, err := deletion(r)
	if err != nil {
		return failed(err)
	}
	return okOr(h.removePod(ctx, r.key.Namespace, r.key.Name, options))
}

// removePod removes the pod that the options name by UID, in the name of the context's node.
func (h *podHandlers) removePod(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error {
	_, err := retryUnknownPod(ctx, func() (none struct{}, err error) {
		err = h.asNode.CoreV1().Pods(namespace).Delete(ctx, name, options)
		// A webhook may deny the request with any code, so the pod itself is read.
		unknown := apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsGone(err) ||
			apierrors.IsForbidden(err)
		if unknown && h.isAnother(ctx, namespace, name, *options.Preconditions.UID) {
			err = nil
		}
		return none, err
	})
	// The edge would take these for the end of the pod.
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsGone(err) {
		err = apierrors.NewServiceUnavailable(fmt.Sprintf("pod %s/%s exists, and the API server does not delete it: %v",
			namespace, name, err))
	}
	return err
}

// isAnother reports whether the pod of that name now has another UID, or is gone: the API server then refuses the node
// because of the new pod, which may be bound elsewhere.
func (h *podHandlers) isAnother(ctx context.Context, namespace, name string, uid types.UID) bool {
	pod, err := h.own.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err) || err == nil && pod.UID != uid
}

// patchPodStatus applies a strategic merge patch to a pod's status; metadata.uid identifies the pod.
func (h *podHandlers) patchPodStatus(ctx context.Context, r *request) result {
	uid, err := patchedUID(r)
	if err != nil {
		return written(nil, err, false)
	}
	content, err := h.late.currentStatus(r, uid)
	var pod *v1.Pod
	if err == nil {
		pod, err = h.asNode.CoreV1().Pods(r.key.Namespace).Patch(ctx, r.key.Name, types.StrategicMergePatchType,
			content, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		err = h.late.refusedStatus(ctx, r, uid, err)
	}
	if err == nil {
		h.reported(r.node, pod)
	}
	return patched(r, pod, err)
}

func patchedUID(r *request) (types.UID, error) {
	fields, err := patchText(r)
	if err != nil {
		return "", err
	}
	var meta struct {
		UID types.UID `json:"uid"`
	}
	if raw := fields["metadata"]; raw != nil {
		if err := json.Unmarshal(raw, &meta); err != nil {
			return "", badRequest(r.key, "metadata of the patch: %v", err)
		}
	}
	if meta.UID == "" {
		return "", badRequest(r.key, "the patch has no metadata.uid: it could hit another pod of that name")
	}
	return meta.UID, nil
}
