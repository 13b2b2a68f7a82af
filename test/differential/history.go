package differential

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// history keeps every state of the pods of a namespace that the API server has had, and their events, until its context
// ends. Steps wait for what is in it: that many waits would keep the API server from its work if each asked it.
type history struct {
	mu   sync.Mutex
	pods map[types.UID][]state
	// gone are the pods that the API server no longer has.
	gone map[types.UID]bool
	// events are the newest states of the events of each pod, by name.
	events map[types.UID]map[string]*v1.Event
}

// state is a pod as the API server had it from a time on.
type state struct {
	pod *v1.Pod
	at  time.Time
}

// watch begins a history and returns when it has begun.
func watch(ctx context.Context, api kubernetes.Interface, namespace string) (*history, error) {
	h := &history{
		pods: map[types.UID][]state{}, gone: map[types.UID]bool{}, events: map[types.UID]map[string]*v1.Event{},
	}
	factory := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithNamespace(namespace))
	pods, events := factory.Core().V1().Pods().Informer(), factory.Core().V1().Events().Informer()
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { h.add(obj, false) },
		UpdateFunc: func(_, obj any) { h.add(obj, false) },
		DeleteFunc: func(obj any) { h.add(obj, true) },
	})
	if err != nil {
		return nil, err
	}
	_, err = events.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    h.addEvent,
		UpdateFunc: func(_, obj any) { h.addEvent(obj) },
	})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced, events.HasSynced) {
		return nil, fmt.Errorf("watch the pods of %s: %w", namespace, context.Cause(ctx))
	}
	return h, nil
}

func (h *history) add(obj any, gone bool) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pods[pod.UID] = append(h.pods[pod.UID], state{pod: pod, at: time.Now()})
	h.gone[pod.UID] = gone
}

func (h *history) addEvent(obj any) {
	event, ok := obj.(*v1.Event)
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	uid := event.InvolvedObject.UID
	if h.events[uid] == nil {
		h.events[uid] = map[string]*v1.Event{}
	}
	h.events[uid][event.Name] = event
}

// latest returns the newest state of a pod; an error says that there is none, or that the pod is gone.
func (h *history) latest(uid types.UID) (*v1.Pod, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	states := h.pods[uid]
	switch {
	case len(states) == 0:
		return nil, errors.New("the pod was not seen yet")
	case h.gone[uid]:
		return nil, errors.New("the pod is gone")
	}
	return states[len(states)-1].pod, nil
}

// isGone reports whether the API server no longer has a pod that was seen.
func (h *history) isGone(uid types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gone[uid]
}

// eventsOf returns the events of a pod, in no order.
func (h *history) eventsOf(uid types.UID) []*v1.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.events[uid]))
}

// of returns the states of a pod, oldest first.
func (h *history) of(uid types.UID) []state {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.pods[uid])
}

// podsOf returns the pods of states.
func podsOf(states []state) []*v1.Pod {
	pods := make([]*v1.Pod, len(states))
	for i, s := range states {
		pods[i] = s.pod
	}
	return pods
}

// addStates adds the states of a pod to a trace, and returns which of their values may be left out.
func addStates(t Trace, states []state, names Names) (Brief, error) {
	begun := map[string][]begin{}
	for _, s := range states {
		pod := s.pod
		// The binding, and what other programs write, are the same for both.
		seen := struct {
			Generation int64        `json:"generation"`
			Deleted    bool         `json:"deleted"`
			Grace      *int64       `json:"deletionGracePeriodSeconds,omitempty"`
			Finalizers []string     `json:"finalizers,omitempty"`
			Status     v1.PodStatus `json:"status"`
		}{pod.Generation, pod.DeletionTimestamp != nil, pod.DeletionGracePeriodSeconds, pod.Finalizers, pod.Status}
		values, err := Flatten("pod", seen)
		if err != nil {
			return Brief{}, err
		}
		replaced := map[string]string{}
		for path, value := range values {
			replaced[names.Replace(path)] = names.Replace(value)
		}
		for path, value := range replaced {
			t.Add(path, value)
		}
		t.Gone("pod.", replaced)
		for path, values := range t {
			if strings.HasPrefix(path, "pod.") && len(begun[path]) < len(values) {
				begun[path] = append(begun[path], begin{s.at, starts(&pod.Status)})
			}
		}
	}
	return Brief{durations(begun), startedSoon(states)}, nil
}

// addEvents adds the events of a pod to a trace, each as a path.
func addEvents(t Trace, events []*v1.Event, names Names) error {
	counts := map[string]int32{}
	for _, e := range events {
		what, err := json.Marshal([]string{e.Type, e.Reason, e.Source.Component, e.InvolvedObject.FieldPath, e.Message})
		if err != nil {
			return err
		}
		path := "events/" + names.Replace(strings.Trim(string(what), "[]"))
		counts[path] += max(1, e.Count)
		t[path] = []string{often(e, counts[path])}
	}
	return nil
}

// often says how often an event came, where that does not depend on how long the pod was there.
func often(e *v1.Event, count int32) string {
	switch {
	case e.Type == v1.EventTypeWarning || e.Reason == "BackOff" || e.Reason == "Pulling" || e.Reason == "Pulled":
		return "there"
	case count == 1:
		return "once"
	}
	return "several times"
}
