// Package events records what happens to pods as v1.Events. They are kept in memory, the newest of each
// kind once with a count, and nothing is written to the disk; a sink may take them further.
package events

import (
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// Reasons of events that more than one package records; those of one package are its own.
const (
	FailedMountVolume               = "FailedMount"
	FailedCreatePodContainer        = "FailedCreatePodContainer"
	FailedToRetrieveImagePullSecret = "FailedToRetrieveImagePullSecret"
	InvalidEnvironmentVariableNames = "InvalidEnvironmentVariableNames"
)

// keep is how many different events are remembered: the ones of the last hours on a small node.
const keep = 256

// component is who records them.
const component = "edgecore"

// Recorder records events. Its methods may be called from any goroutine.
type Recorder struct {
	node string
	sink func(v1.Event, *v1.Pod)
	now  func() time.Time

	mu sync.Mutex
	// events are in the order of their last occurrence, the oldest first.
	events []*v1.Event
}

// New makes a recorder for a node. sink, which may be nil, is called with each event and its pod; it must not block.
func New(node string, sink func(v1.Event, *v1.Pod)) *Recorder {
	return &Recorder{node: node, sink: sink, now: time.Now}
}

// Eventf records an event of a pod.
func (r *Recorder) Eventf(pod *v1.Pod, eventType, reason, format string, args ...any) {
	r.record(pod, "", eventType, reason, fmt.Sprintf(format, args...))
}

// ContainerEventf records an event of a container.
func (r *Recorder) ContainerEventf(pod *v1.Pod, c *v1.Container, eventType, reason, format string, args ...any) {
	r.record(pod, fieldPath(pod, c.Name), eventType, reason, fmt.Sprintf(format, args...))
}

func fieldPath(pod *v1.Pod, container string) string {
	list := "containers"
	if slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool { return c.Name == container }) {
		list = "initContainers"
	}
	return "spec." + list + "{" + container + "}"
}

func (r *Recorder) record(pod *v1.Pod, field, eventType, reason, message string) {
	now := metav1.Time{Time: r.now()}
	r.mu.Lock()
	event, repeated := r.find(pod, field, eventType, reason, message)
	if repeated {
		event.Count++
	} else {
		event = r.make(pod, field, eventType, reason, message, now)
	}
	event.LastTimestamp = now
	r.events = append(r.events, event)
	if len(r.events) > keep {
		r.events = slices.Delete(r.events, 0, len(r.events)-keep)
	}
	out := *event
	r.mu.Unlock()
	if !repeated {
		klog.V(2).InfoS("Event", "pod", klog.KObj(pod), "field", field, "type", eventType, "reason", reason, "message", message)
	}
	if r.sink != nil {
		r.sink(out, pod)
	}
}

// find takes the event that says the same out of the list.
func (r *Recorder) find(pod *v1.Pod, field, eventType, reason, message string) (*v1.Event, bool) {
	for i, e := range slices.Backward(r.events) {
		if e.InvolvedObject.UID == pod.UID && e.InvolvedObject.FieldPath == field && e.Type == eventType && e.Reason == reason && e.Message == message {
			r.events = slices.Delete(r.events, i, i+1)
			return e, true
		}
	}
	return nil, false
}

func (r *Recorder) make(pod *v1.Pod, field, eventType, reason, message string, now metav1.Time) *v1.Event {
	return &v1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s.%x", pod.Name, now.UnixNano()), Namespace: pod.Namespace,
		},
		InvolvedObject: v1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			ResourceVersion: pod.ResourceVersion, FieldPath: field,
		},
		Reason: reason, Message: message, Type: eventType, Count: 1, FirstTimestamp: now,
		Source:              v1.EventSource{Component: component, Host: r.node},
		ReportingController: component, ReportingInstance: r.node,
	}
}

// List returns the events, the oldest first.
func (r *Recorder) List() []v1.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]v1.Event, len(r.events))
	for i, e := range r.events {
		out[i] = *e
	}
	return out
}
