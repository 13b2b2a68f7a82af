package differential

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// history keeps every state of the pods of a namespace that the API server has had, until its context ends.
type history struct {
	mu   sync.Mutex
	pods map[types.UID][]*v1.Pod
}

// watch begins a history and returns when it has begun.
func watch(ctx context.Context, api kubernetes.Interface, namespace string) (*history, error) {
	h := &history{pods: map[types.UID][]*v1.Pod{}}
	factory := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().Pods().Informer()
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    h.add,
		UpdateFunc: func(_, obj any) { h.add(obj) },
		DeleteFunc: h.add,
	}
	if _, err := informer.AddEventHandler(handler); err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("watch the pods of %s: %w", namespace, context.Cause(ctx))
	}
	return h, nil
}

func (h *history) add(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pods[pod.UID] = append(h.pods[pod.UID], pod)
}

// of returns the states of a pod, oldest first.
func (h *history) of(uid types.UID) []*v1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]*v1.Pod(nil), h.pods[uid]...)
}

// addStates adds the states of a pod to a trace.
func addStates(t Trace, states []*v1.Pod, names Names) error {
	for _, pod := range states {
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
			return err
		}
		replaced := map[string]string{}
		for path, value := range values {
			replaced[names.Replace(path)] = names.Replace(value)
		}
		for path, value := range replaced {
			t.Add(path, value)
		}
		t.Gone("pod.", replaced)
	}
	return nil
}

// addEvents adds the events of a pod to a trace, each as a path.
func addEvents(ctx context.Context, t Trace, api kubernetes.Interface, namespace string, uid types.UID, names Names) error {
	list, err := api.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(uid)})
	if err != nil {
		return err
	}
	counts := map[string]int32{}
	for _, e := range list.Items {
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
func often(e v1.Event, count int32) string {
	switch {
	case e.Type == v1.EventTypeWarning || e.Reason == "BackOff" || e.Reason == "Pulling" || e.Reason == "Pulled":
		return "there"
	case count == 1:
		return "once"
	}
	return "several times"
}
