package events

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
		t.Fatalf("%d events, %d handed on, want 2 and 3, the second with count 2: %+v", len(list), len(sunk), list)
	}
	e := list[1]
	if e.InvolvedObject.FieldPath != "spec.containers{c}" ||
		list[0].InvolvedObject.FieldPath != "spec.initContainers{i}" || e.InvolvedObject.UID != "1" ||
		e.Message != "again 1" || e.Source.Host != "node1" || e.Source.Component != "kubelet" ||
		e.ReportingController != "kubelet" || !e.LastTimestamp.After(e.FirstTimestamp.Time) || e.Namespace != "n" {
		t.Errorf("event %+v, want one of node1 about container c of pod 1 that came again", e)
	}
	r.AnnotatedEventf(pod, map[string]string{"a": "b"}, v1.EventTypeWarning, "Evicted", "m")
	if last := r.List()[2]; last.Annotations["a"] != "b" || last.Reason != "Evicted" {
		t.Errorf("event %+v, want Evicted with annotation a", last)
	}
	for i := range 2 * keep {
		r.Eventf(pod, v1.EventTypeNormal, fmt.Sprint("Many", i), "m")
	}
	if list := r.List(); len(list) != keep || list[keep-1].Reason != fmt.Sprint("Many", 2*keep-1) {
		t.Errorf("%d events are kept, want the newest %d", len(list), keep)
	}
}

// TestSimilarEvents: those that differ in their words alone become one when there are many, and count; after a while
// without one they are told one by one again.
func TestSimilarEvents(t *testing.T) {
	var sunk []v1.Event
	r := New("node1", func(e v1.Event, _ *v1.Pod) { sunk = append(sunk, e) })
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r.now = func() time.Time { now = now.Add(time.Second); return now }
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "1"}}
	for i := range 100 {
		r.Eventf(pod, v1.EventTypeWarning, "Failed", "request %d failed", i)
	}
	r.Eventf(pod, v1.EventTypeWarning, "Failed", "request 3 failed") // one that is known counts for itself
	list := r.List()
	combined := list[len(list)-2]
	if len(list) != similarMax+1 || combined.Count != 90 ||
		combined.Message != "(combined from similar events): request 99 failed" || len(sunk) != 101 {
		t.Fatalf("%d events, %d reported, want %d, 101, and 90 combined: %+v",
			len(list), len(sunk), similarMax+1, combined)
	}
	if again := list[len(list)-1]; again.Message != "request 3 failed" || again.Count != 2 {
		t.Errorf("event %+v, want request 3 failed, twice", again)
	}
	now = now.Add(similarFor + time.Minute)
	r.Eventf(pod, v1.EventTypeWarning, "Failed", "request 100 failed")
	if last := sunk[len(sunk)-1]; last.Message != "request 100 failed" || last.Count != 1 {
		t.Errorf("event %+v, want request 100 failed, once", last)
	}
	for i := range 2 * similarKinds {
		r.Eventf(pod, v1.EventTypeNormal, fmt.Sprint("Reason", i), "m")
	}
	if n := len(r.similar.kinds); n > similarKinds {
		t.Errorf("%d kinds are remembered, want at most %d", n, similarKinds)
	}
}

// TestNodeEvents: they are found by kubectl describe node.
func TestNodeEvents(t *testing.T) {
	var of []*v1.Pod
	r := New("node1", func(_ v1.Event, pod *v1.Pod) { of = append(of, pod) })
	r.NodeEventf(v1.EventTypeNormal, "NodeReady", "Node %s status is now: NodeReady", "node1")
	e := r.List()[0]
	want := v1.ObjectReference{Kind: "Node", Name: "node1", UID: "node1"}
	if e.InvolvedObject != want || e.Namespace != "default" || e.Message != "Node node1 status is now: NodeReady" ||
		len(of) != 1 || of[0] != nil {
		t.Errorf("event %+v of pods %v, want one about %+v", e, of, want)
	}
}

// TestLongMessage: an event says as much as the cloud accepts of an event, whatever its message is made of.
func TestLongMessage(t *testing.T) {
	const accepted = 256 << 10 // by cloudcore
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"}}
	for name, part := range map[string]string{
		"control characters": "\x01", "wide characters": "x€", "no text": "\xff",
	} {
		r := New("edge-1", nil)
		message := "failed: " + strings.Repeat(part, 1<<20)
		r.Eventf(pod, v1.EventTypeWarning, FailedSync, "%s", message)
		event := r.List()[0]
		text, err := json.Marshal(event)
		if err != nil || len(text) > accepted {
			t.Errorf("%s: an event of %d bytes, %v; want at most %d, no error", name, len(text), err, accepted)
		}
		if got := event.Message; !strings.HasPrefix(got, "failed: ") || !strings.HasSuffix(got, "...") ||
			!utf8.ValidString(got) {
			t.Errorf("%s: message %.40q... of %d bytes, want the beginning of the text and three dots", name, got,
				len(got))
		}
	}
	for _, length := range []int{0, maxMessage} {
		r, message := New("edge-1", nil), strings.Repeat("x", length)
		r.Eventf(pod, v1.EventTypeWarning, FailedSync, "%s", message)
		if got := r.List()[0].Message; got != message {
			t.Errorf("a message of %d bytes has %d in the event, want all", length, len(got))
		}
	}
}

// TestSize: the events of many pods take little memory.
func TestSize(t *testing.T) {
	const budget = 200 << 10
	before := heap()
	r := New("edge-1", nil)
	for i := range 2 * similarKinds {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: types.UID(fmt.Sprint(i))}}
		r.Eventf(pod, v1.EventTypeNormal, "Pulled",
			"Container image \"registry.example.com/shop/web:%d\" already present on machine", i)
	}
	if took := heap() - before; took > budget {
		t.Errorf("%d events and %d kinds of them take %d bytes, want at most %d", keep, similarKinds, took, budget)
	}
	runtime.KeepAlive(r)
}

// heap returns how many bytes are in use.
func heap() int64 {
	var stats runtime.MemStats
	runtime.GC() // what pools hold goes with the second collection
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
