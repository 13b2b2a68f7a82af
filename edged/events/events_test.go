package events

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRecorder(t *testing.T) {
	var sunk []v1.Event
	r := New("node1", func(e v1.Event, _ *v1.Pod) { sunk = append(sunk, e) })
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r.now = func() time.Time { now = now.Add(time.Second); return now }
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "1"}, Spec: v1.PodSpec{
		InitContainers: []v1.Container{{Name: "i"}}, Containers: []v1.Container{{Name: "c"}},
	}}
	r.ContainerEventf(pod, &pod.Spec.Containers[0], v1.EventTypeWarning, "BackOff", "again %d", 1)
	r.ContainerEventf(pod, &pod.Spec.InitContainers[0], v1.EventTypeNormal, "Started", "s")
	r.ContainerEventf(pod, &pod.Spec.Containers[0], v1.EventTypeWarning, "BackOff", "again %d", 1)
	list := r.List()
	if len(list) != 2 || list[0].Reason != "Started" || list[1].Count != 2 || len(sunk) != 3 {
		t.Fatalf("%d events, %d handed on: %+v", len(list), len(sunk), list)
	}
	e := list[1]
	if e.InvolvedObject.FieldPath != "spec.containers{c}" || list[0].InvolvedObject.FieldPath != "spec.initContainers{i}" || e.InvolvedObject.UID != "1" ||
		e.Message != "again 1" || e.Source.Host != "node1" || !e.LastTimestamp.After(e.FirstTimestamp.Time) || e.Namespace != "n" {
		t.Errorf("%+v", e)
	}
	for i := range 2 * keep {
		r.Eventf(pod, v1.EventTypeNormal, "Many", "%s", fmt.Sprint(i))
	}
	if list := r.List(); len(list) != keep || list[keep-1].Message != fmt.Sprint(2*keep-1) {
		t.Errorf("%d events are kept, want the newest %d", len(list), keep)
	}
}
