// Package events records what happens to pods and to the node as v1.Events. They are kept in memory, the newest of each
// kind once with a count, and nothing is written to the disk; a sink may take them further. Events that differ in
// their words alone become one when there are many of them, so that none pushes the others out.
package events

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Reasons of events that more than one package records; those of one package are its own.
const (
	FailedKillPod                   = "FailedKillPod"
	FailedSync                      = "FailedSync"
	FailedMountVolume               = "FailedMount"
	FailedCreatePodContainer        = "FailedCreatePodContainer"
	FailedToRetrieveImagePullSecret = "FailedToRetrieveImagePullSecret"
	InvalidEnvironmentVariableNames = "InvalidEnvironmentVariableNames"
)

// keep is how many different events are remembered: the ones of the last hours on a small node.
const keep = 256

// maxMessage bounds the message of an event in bytes, so that the cloud accepts the event even if each byte is escaped
// as six. What is in messages comes from containers, runtimes and plugins.
const maxMessage = 32 << 10

// component is who records events, as everybody knows it: filters and dashboards select source=kubelet.
const component = "kubelet"

// Interface is what other packages ask of a Recorder.
type Interface interface {
	Eventf(pod *v1.Pod, eventType, reason, format string, args ...any)
	ContainerEventf(pod *v1.Pod, c *v1.Container, eventType, reason, format string, args ...any)
	NodeEventf(eventType, reason, format string, args ...any)
}

// Recorder records events. Its methods may be called from any goroutine.
type Recorder struct {
	node string
	sink func(v1.Event, *v1.Pod)
	now  func() time.Time

	mu sync.Mutex
	// events are in the order of their last occurrence, the oldest first.
	events  []*event
	similar similar
}

// New makes a recorder for a node. sink, which may be nil, is called with each event and its pod, nil for the node's
// own; it must not block.
func New(node string, sink func(v1.Event, *v1.Pod)) *Recorder {
	return &Recorder{node: node, sink: sink, now: time.Now, similar: newSimilar()}
}

// Eventf records an event of a pod.
func (r *Recorder) Eventf(pod *v1.Pod, eventType, reason, format string, args ...any) {
	r.record(pod, ofPod(pod, ""), eventType, reason, fmt.Sprintf(format, args...))
}

// AnnotatedEventf records an event of a pod with annotations, which are those of its first occurrence.
func (r *Recorder) AnnotatedEventf(
	pod *v1.Pod, annotations map[string]string, eventType, reason, format string, args ...any,
) {
	of := ofPod(pod, "")
	of.annotations = annotations
	r.record(pod, of, eventType, reason, fmt.Sprintf(format, args...))
}

// ContainerEventf records an event of a container.
func (r *Recorder) ContainerEventf(pod *v1.Pod, c *v1.Container, eventType, reason, format string, args ...any) {
	r.record(pod, ofPod(pod, fieldPath(pod, c.Name)), eventType, reason, fmt.Sprintf(format, args...))
}

func fieldPath(pod *v1.Pod, container string) string {
	list := "containers"
	if slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool { return c.Name == container }) {
		list = "initContainers"
	}
	if slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool {
		return c.Name == container
	}) {
		list = "ephemeralContainers"
	}
	return "spec." + list + "{" + container + "}"
}

// NodeEventf records an event of the node.
func (r *Recorder) NodeEventf(eventType, reason, format string, args ...any) {
	// A node's UID is its name, as kubelets have it: kubectl describe node looks for that.
	r.record(nil, subject{
		kind: "Node", namespace: v1.NamespaceDefault, name: r.node, uid: types.UID(r.node),
	}, eventType, reason, fmt.Sprintf(format, args...))
}

// record records an event; pod is what it is about, nil for the node.
func (r *Recorder) record(pod *v1.Pod, of subject, eventType, reason, message string) {
	message = shortened(message)
	now := r.now()
	r.mu.Lock()
	text, combined := r.similar.message(similarity{of.uid, of.fieldPath, eventType, reason}, message, now)
	e, repeated := r.find(of, eventType, reason, text, combined)
	if !repeated {
		e = &event{subject: of, eventType: eventType, reason: reason, first: now}
	}
	e.message, e.last = text, now
	e.count++
	r.events = append(r.events, e)
	if len(r.events) > keep {
		r.events = slices.Delete(r.events, 0, len(r.events)-keep)
	}
	out := e.v1(r.node)
	r.mu.Unlock()
	if !repeated {
		klog.V(2).InfoS("Event", "object", klog.KRef(out.InvolvedObject.Namespace, of.name), "field", of.fieldPath,
			"type", eventType, "reason", reason, "message", text)
	}
	if r.sink != nil {
		r.sink(out, pod)
	}
}

// shortened is a message that fits into an event: one that is too long ends in three dots.
func shortened(message string) string {
	const more = "..."
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage-len(more)], "") + more
}

// find takes the event that says the same out of the list; of combined ones that is any of the same kind.
func (r *Recorder) find(of subject, eventType, reason, message string, combined bool) (*event, bool) {
	for i, e := range slices.Backward(r.events) {
		if e.uid != of.uid || e.fieldPath != of.fieldPath || e.eventType != eventType || e.reason != reason {
			continue
		}
		if e.message == message || combined && strings.HasPrefix(e.message, combinedPrefix) {
			r.events = slices.Delete(r.events, i, i+1)
			return e, true
		}
	}
	return nil, false
}

// Probe returns once the lock of the recorder was free.
func (r *Recorder) Probe() {
	r.mu.Lock()
	defer r.mu.Unlock()
}

// List returns the events, the oldest first.
func (r *Recorder) List() []v1.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]v1.Event, len(r.events))
	for i, e := range r.events {
		out[i] = e.v1(r.node)
	}
	return out
}
