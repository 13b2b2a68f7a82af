package requests

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/edgecore-io/edgecore/cloud/apihealth"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
)

// nodeHandlers carry out requests about the Node of a node.
type nodeHandlers struct {
	asNode, own kubernetes.Interface
	caches      Caches
	sessions    *sessions.Sessions
	endpoints   Endpoints
	hub         Hub
	// localIP and NodeLabels are those of Options.
	localIP    string
	nodeLabels func(node string) map[string]string
}

// splitLabels splits a registering node's labels into those that a node may set itself, those that cloudcore sets for
// it (that it is an edge node), and those that neither may: reserved names of Kubernetes with which a node could
// attract workloads.
func splitLabels(labels map[string]string) (own, granted map[string]string, refused []string) {
	own, granted = map[string]string{}, map[string]string{}
	for key, value := range labels {
		switch {
		case (key == marks.EdgeLabel || key == marks.AgentLabel) && value == "":
			granted[key] = value
		case canSetLabel(key):
			own[key] = value
		default:
			refused = append(refused, key)
		}
	}
	slices.Sort(refused)
	return own, granted, refused
}

// canSetLabel reports whether NodeRestriction lets a node set a label on itself.
func canSetLabel(key string) bool {
	namespace, _, _ := strings.Cut(key, "/")
	in := func(suffix string) bool { return namespace == suffix || strings.HasSuffix(namespace, "."+suffix) }
	switch {
	case !strings.Contains(key, "/"):
		return true
	case in(v1.LabelNamespaceNodeRestriction):
		return false
	case in("kubernetes.io"), in("k8s.io"):
		return kubeletapis.IsKubeletLabel(key)
	}
	return true
}

func ownNode(r *request) error {
	if r.key.Name != r.node {
		return forbidden(r.key, "node %s may only speak for itself; it asked for node %s", r.node, r.key.Name)
	}
	return nil
}

// registerNode creates the Node (docs/wire.md, Registration).
func (h *nodeHandlers) registerNode(ctx context.Context, r *request) result {
	node, err := h.register(ctx, r)
	if err != nil {
		return written(nil, err, false)
	}
	return written(h.endpoints.ForDevice(node), nil, false)
}

func (h *nodeHandlers) register(ctx context.Context, r *request) (*v1.Node, error) {
	if err := ownNode(r); err != nil {
		return nil, err
	}
	node, err := decode[v1.Node](r, "Node")
	if err != nil {
		return nil, err
	}
	if node.Name != r.node {
		return nil, badRequest(r.key, "the content is node %q", node.Name)
	}
	own, granted, refused := splitLabels(node.Labels)
	granted[marks.EdgeLabel] = ""
	node.Labels = own
	node.ResourceVersion, node.UID = "", ""
	dropReserved(node)
	h.endpoints.Complete(r.node, &node.Status)
	if h.localIP != "" {
		if node.Annotations == nil {
			node.Annotations = map[string]string{}
		}
		node.Annotations[marks.CloudcoreAnnotation] = h.localIP
	}
	created, err := h.createNode(ctx, node, granted)
	if err != nil {
		return nil, err
	}
	h.sessions.Registered(r.node)
	klog.InfoS("Node registered", "node", r.node)
	logLeftOut(r.node, refused)
	return created, nil
}

// logLeftOut logs which labels of a node were left out. The node finds them missing in its Node.
func logLeftOut(node string, refused []string) {
	if len(refused) > 0 {
		klog.InfoS("Labels of a node left out, as only administrators may set them; use kubectl label", "node", node,
			"labels", refused[:min(len(refused), 10)], "leftOut", len(refused))
	}
}

// createNode creates a Node with the labels that make it a device's. A node may not set those, so cloudcore creates it
// in its own name, after the API server confirmed that the node might create it without them. The Node never exists
// without these labels: only they show that it was registered through a cloudcore, and a device gets nothing from a
// Node that was not.
func (h *nodeHandlers) createNode(ctx context.Context, node *v1.Node, granted map[string]string) (*v1.Node, error) {
	_, err := h.asNode.CoreV1().Nodes().Create(ctx, node,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return nil, err
	}
	labelled := node.DeepCopy()
	if labelled.Labels == nil {
		labelled.Labels = map[string]string{}
	}
	maps.Copy(labelled.Labels, granted)
	if h.nodeLabels != nil {
		maps.Copy(labelled.Labels, h.nodeLabels(node.Name))
	}
	if r, _, ok := h.hub.ToRecord(node.Name, cloudhub.Record{}); ok {
		metav1.SetMetaDataAnnotation(&labelled.ObjectMeta, marks.InstanceAnnotation, r.String())
	}
	return h.own.CoreV1().Nodes().Create(apihealth.ForNode(ctx, node.Name), labelled, metav1.CreateOptions{})
}

// queryNode returns the node's own Node. Our edgecore asks when it starts, and before it rejects a pod because of its
// Node: the cache may be older than the pod, or than the edge's last report. KubeEdge's edgecores ask all the time.
func (h *nodeHandlers) queryNode(ctx context.Context, r *request) result {
	if err := ownNode(r); err != nil {
		return failed(err)
	}
	if node := h.caches.Node(r.node); node != nil && !r.capable {
		return found(node, nil)
	}
	node, err := h.asNode.CoreV1().Nodes().Get(ctx, r.node, metav1.GetOptions{})
	return found(h.endpoints.ForDevice(node), err)
}

// updateNode adds and changes labels and annotations. It removes none: the node may have an outdated view of what
// others set. As at registration, labels that a node may not set are left out: they do not keep it from the others.
func (h *nodeHandlers) updateNode(ctx context.Context, r *request) result {
	node, err := h.changeNode(ctx, r)
	switch {
	case err == nil:
		return result{content: ok().content, version: node.ResourceVersion}
	case r.capable:
		return failed(err)
	}
	// KubeEdge's edgecore would store the error as its Node.
	klog.V(1).InfoS("Node not updated as its edge asked", "node", r.node, "err", err)
	return result{none: true}
}

func (h *nodeHandlers) changeNode(ctx context.Context, r *request) (*v1.Node, error) {
	if err := ownNode(r); err != nil {
		return nil, err
	}
	wanted, err := decode[v1.Node](r, "Node")
	if err != nil {
		return nil, err
	}
	now := h.caches.Node(r.node)
	if now == nil {
		if now, err = h.asNode.CoreV1().Nodes().Get(ctx, r.node, metav1.GetOptions{}); err != nil {
			return nil, err
		}
	}
	labels, annotations := differing(now.Labels, wanted.Labels), differing(now.Annotations, wanted.Annotations)
	delete(annotations, marks.CloudcoreAnnotation)
	delete(annotations, marks.InstanceAnnotation)
	labels, _, refused := splitLabels(labels)
	logLeftOut(r.node, refused)
	if len(labels)+len(annotations) == 0 {
		return now, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": now.UID, "labels": labels, "annotations": annotations},
	})
	if err != nil {
		return nil, err
	}
	return h.asNode.CoreV1().Nodes().Patch(ctx, r.node, types.MergePatchType, patch, metav1.PatchOptions{})
}

// differing returns the wanted pairs that are missing or different.
func differing(now, wanted map[string]string) map[string]string {
	out := maps.Clone(wanted)
	maps.DeleteFunc(out, func(key, value string) bool {
		have, is := now[key]
		return is && have == value
	})
	return out
}

// patchNodeStatus applies a strategic merge patch to the Node's status.
func (h *nodeHandlers) patchNodeStatus(ctx context.Context, r *request) result {
	err := ownNode(r)
	patch := r.content
	if err == nil {
		var fields map[string]json.RawMessage
		if fields, err = patchText(r); err == nil {
			err = checkReserved(r, fields)
		}
	}
	if err == nil {
		if patch, err = h.endpoints.Tunnelled(r.node, patch); err != nil {
			err = badRequest(r.key, "its content: %v", err)
		}
	}
	if err != nil {
		return written(nil, err, false)
	}
	node, err := h.asNode.CoreV1().Nodes().Patch(ctx, r.node, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	return patched(r, node, err)
}
