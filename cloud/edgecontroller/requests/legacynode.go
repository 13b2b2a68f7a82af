package requests

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// legacyHandlers carry out the requests that only edgecores before 1.12 make.
type legacyHandlers struct {
	asNode, own kubernetes.Interface
	nodes       *nodeHandlers
	pods        *podHandlers
	late        *lateStatuses
	endpoints   Endpoints
	hub         Hub
	// awaitRateLimit waits while a node exceeds its rate limit.
	awaitRateLimit func(ctx context.Context, r *request) error
}

// Requests of edgecores before 1.12 (docs/wire.md, Requests of the node).

type oldNodeStatus struct {
	UID             types.UID
	Status          v1.NodeStatus
	ExtendResources map[v1.ResourceName][]extendResource
}

type extendResource struct {
	Name     string `json:"name,omitempty"`
	Type     string `json:"type,omitempty"`
	Capacity any    `json:"capacity,omitempty"`
}

type oldPodStatus struct {
	UID    types.UID
	Name   string
	Status v1.PodStatus
}

// oldNodeResource returns the resource of the answer to a nodestatus.
func oldNodeResource(r *request) string {
	return resource.Key{Namespace: r.key.Namespace, Type: resource.TypeNode, Name: r.key.Name}.String()
}

// registerOldNode registers a node; an existing Node counts as success.
func (h *legacyHandlers) registerOldNode(ctx context.Context, r *request) result {
	_, err := h.nodes.register(ctx, r)
	if err == nil || apierrors.IsAlreadyExists(err) {
		return result{content: model.OK, resource: oldNodeResource(r)}
	}
	return result{content: err.Error(), resource: oldNodeResource(r)}
}

func (h *legacyHandlers) updateOldNodeStatus(ctx context.Context, r *request) result {
	err := ownNode(r)
	var told *oldNodeStatus
	if err == nil {
		told, err = decode[oldNodeStatus](r, `node status, {"UID":..,"Status":..}`)
	}
	if err == nil {
		err = retry.RetryOnConflict(retry.DefaultRetry, func() error { return h.applyOldNodeStatus(ctx, r.node, told) })
	}
	res := okOr(err)
	res.resource = oldNodeResource(r)
	return res
}

func (h *legacyHandlers) applyOldNodeStatus(ctx context.Context, name string, told *oldNodeStatus) error {
	nodes := h.asNode.CoreV1().Nodes()
	node, err := nodes.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	annotations, err := extendAnnotations(node.Annotations, told.ExtendResources)
	if err != nil {
		return err
	}
	node.Annotations = annotations
	status := told.Status
	status.Conditions = mergeNodeConditions(node.Status.Conditions, status.Conditions)
	// Set by others: the attach controller, and the server of the kubelet API for the edge.
	status.VolumesAttached, status.DaemonEndpoints = node.Status.VolumesAttached, node.Status.DaemonEndpoints
	h.endpoints.Complete(name, &status)
	node.Status = status
	_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	if !apierrors.IsForbidden(err) {
		return err
	}
	// NodeRestriction refuses a write whose taints differ from the stored ones before the API server compares versions.
	if now, getErr := nodes.Get(ctx, name, metav1.GetOptions{}); getErr == nil &&
		now.ResourceVersion != node.ResourceVersion {
		return apierrors.NewConflict(v1.Resource("nodes"), name, err)
	}
	return err
}

// extendAnnotations adds an annotation for each extended resource.
func extendAnnotations(have map[string]string, extend map[v1.ResourceName][]extendResource) (map[string]string, error) {
	out := maps.Clone(have)
	for name, resources := range extend {
		if name == marks.InstanceAnnotation || name == marks.CloudcoreAnnotation {
			continue
		}
		text, err := json.Marshal(resources)
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = map[string]string{}
		}
		key := string(name)
		if name == "nvidia.com/gpu" {
			key = "huawei.com/gpu-status"
		}
		out[key] = string(text)
	}
	return out, nil
}

// maxOldStatuses is the maximum number of statuses in one request; KubeEdge's nodes have 110 pods by default.
const maxOldStatuses = 250

// updateOldPodStatus takes the status of one pod or a list of them; each counts as a request of the node. The answer is
// "OK", or the first error.
func (h *legacyHandlers) updateOldPodStatus(ctx context.Context, r *request) result {
	var told []oldPodStatus
	if r.key.Name == "" {
		list, err := decode[[]oldPodStatus](r, "list of pod statuses")
		if err != nil {
			return failed(err)
		}
		told = *list
	} else {
		one, err := decode[oldPodStatus](r, `pod status, {"UID":..,"Name":..,"Status":..}`)
		if err != nil {
			return failed(err)
		}
		one.Name = r.key.Name
		told = []oldPodStatus{*one}
	}
	if len(told) > maxOldStatuses {
		return failed(tooLarge(r, fmt.Errorf("has %d statuses, limit %d", len(told), maxOldStatuses)))
	}
	var first error
	for i := range told {
		if i > 0 { // the request itself was already counted
			if err := h.awaitRateLimit(ctx, r); err != nil {
				return failed(err)
			}
		}
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error { return h.applyOldPodStatus(ctx, r, &told[i]) })
		if first == nil {
			first = err
		}
	}
	return okOr(first)
}

func (h *legacyHandlers) applyOldPodStatus(ctx context.Context, r *request, reported *oldPodStatus) error {
	key := resource.Key{Namespace: r.key.Namespace, Type: resource.TypePod, Name: reported.Name}
	pods := h.asNode.CoreV1().Pods(r.key.Namespace)
	pod, err := h.own.CoreV1().Pods(r.key.Namespace).Get(ctx, reported.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && pod.UID != reported.UID {
		// The edge learns that the pod is gone or replaced.
		h.hub.Holds(r.node, key, reported.UID)
		return nil
	}
	if err != nil {
		return err
	}
	if pod.Spec.NodeName != r.node {
		return forbidden(key, "it is not bound to node %s", r.node)
	}
	if r.waited() && h.late.changedSince(r, pod) {
		return outdated(r, reported.Name)
	}
	pod.Status = mergeOldStatus(pod.Status, reported.Status)
	read := pod.ResourceVersion
	pod, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	if apierrors.IsForbidden(err) {
		// As with the Node: admission compares the labels with the stored ones.
		now, getErr := h.own.CoreV1().Pods(r.key.Namespace).Get(ctx, reported.Name, metav1.GetOptions{})
		if getErr == nil && now.ResourceVersion != read {
			return apierrors.NewConflict(v1.Resource("pods"), reported.Name, err)
		}
	}
	if err != nil {
		return err
	}
	if pod.DeletionTimestamp == nil || !ended(&pod.Status) {
		return nil
	}
	return h.pods.removePod(ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &reported.UID},
	})
}

// mergeOldStatus returns the reported status with the conditions that others set.
func mergeOldStatus(have, reported v1.PodStatus) v1.PodStatus {
	out := reported
	out.Conditions = nil
	for _, c := range have.Conditions {
		if !hasCondition(reported.Conditions, c.Type) {
			out.Conditions = append(out.Conditions, c)
		}
	}
	out.Conditions = append(out.Conditions, reported.Conditions...)
	if out.QOSClass == "" {
		out.QOSClass = have.QOSClass
	}
	return out
}

func hasCondition(conditions []v1.PodCondition, kind v1.PodConditionType) bool {
	for i := range conditions {
		if conditions[i].Type == kind {
			return true
		}
	}
	return false
}

// ended reports whether no container is running.
func ended(status *v1.PodStatus) bool {
	if status.Phase == v1.PodSucceeded || status.Phase == v1.PodFailed {
		return true
	}
	for _, s := range status.ContainerStatuses {
		if s.State.Terminated == nil && s.State.Waiting == nil {
			return false
		}
	}
	return true
}
