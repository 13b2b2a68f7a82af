package requests

import (
	"context"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// eventHandlers record the events that nodes report.
type eventHandlers struct {
	asNode kubernetes.Interface
	pods   *knownPods
}

// eventPatch is the content of an event's patch.
type eventPatch struct {
	Event     *v1.Event `json:"event"`
	PatchData string    `json:"patchData"`
}

// ownEvent checks that an event is from the node and about the node or a pod on it. It accepts any pod that is gone,
// since last events come late. It completes an event without a source: the source is the node.
func (h *eventHandlers) ownEvent(ctx context.Context, r *request, e *v1.Event) error {
	if e.Name != r.key.Name || e.Namespace != r.key.Namespace {
		return badRequest(r.key, "the content is event %s/%s", e.Namespace, e.Name)
	}
	for _, host := range []string{e.Source.Host, e.ReportingInstance} {
		if host != "" && host != r.node {
			return forbidden(r.key, "its source is %s, and node %s sent it", host, r.node)
		}
	}
	if e.Source.Host == "" && e.ReportingInstance == "" { // without either, the event could not be changed later
		e.Source.Host = r.node
	}
	about := e.InvolvedObject
	switch about.Kind {
	case "Node":
		if about.Name != r.node {
			return forbidden(r.key, "it is about node %s, and node %s sent it", about.Name, r.node)
		}
		return nil
	case "Pod":
		if about.Namespace != e.Namespace {
			return forbidden(r.key, "it is about a pod of namespace %s", about.Namespace)
		}
		pod, err := h.pods.podOf(ctx, about.Namespace, about.Name)
		if err != nil {
			return err
		}
		if pod != nil && pod.Spec.NodeName != r.node && (about.UID == "" || about.UID == pod.UID) {
			return forbidden(r.key, "it is about pod %s/%s, which is not bound to node %s", about.Namespace, about.Name,
				r.node)
		}
		return nil
	}
	return forbidden(r.key, "it is about a %s; nodes may report events only about themselves and their "+
		"pods", about.Kind)
}

// eventResult is the result of an event. Most edges expect no answer, so errors are also logged.
func eventResult(r *request, err error) result {
	if err != nil {
		klog.V(1).InfoS("Event of a node not recorded", "node", r.node, "event", r.key.String(), "err", err)
	}
	return okOr(err)
}

func (h *eventHandlers) createEvent(ctx context.Context, r *request) result {
	e, err := decode[v1.Event](r, "Event")
	if err == nil {
		err = h.ownEvent(ctx, r, e)
	}
	if err == nil {
		err = h.recordEvent(ctx, e)
	}
	return eventResult(r, err)
}

// updateEvent works like createEvent: both store the event whether it exists (a repeated request) or not (events live
// for only an hour).
func (h *eventHandlers) updateEvent(ctx context.Context, r *request) result {
	return h.createEvent(ctx, r)
}

// recordEvent creates the event, or updates the existing one of that name.
func (h *eventHandlers) recordEvent(ctx context.Context, e *v1.Event) error {
	events := h.asNode.CoreV1().Events(e.Namespace)
	fresh := *e
	fresh.ResourceVersion, fresh.UID, fresh.ManagedFields = "", "", nil
	_, err := events.Create(ctx, &fresh, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	return h.changeEvent(ctx, e, eventChanges{
		"count": e.Count, "message": e.Message, "lastTimestamp": e.LastTimestamp, "series": e.Series,
	})
}

// patchEvent patches an event, or creates it if it no longer exists.
func (h *eventHandlers) patchEvent(ctx context.Context, r *request) result {
	p, err := decode[eventPatch](r, `patch of an event, {"event":..,"patchData":".."}`)
	if err == nil && (p.Event == nil || p.PatchData == "") {
		err = badRequest(r.key, `the content lacks "event" or "patchData"`)
	}
	if err == nil {
		err = h.ownEvent(ctx, r, p.Event)
	}
	if err == nil {
		err = h.applyEventPatch(ctx, r, p)
	}
	return eventResult(r, err)
}

func (h *eventHandlers) applyEventPatch(ctx context.Context, r *request, p *eventPatch) error {
	changes, err := readEventPatch([]byte(p.PatchData))
	if err != nil {
		return badRequest(r.key, "%v", err)
	}
	err = h.changeEvent(ctx, p.Event, changes)
	if apierrors.IsNotFound(err) {
		return h.recordEvent(ctx, p.Event)
	}
	return err
}
