package edgecontroller

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// TestServiceEventTellsItsNodes: a service's event is told to the connected nodes of ours that have its namespace's
// pods.
func TestServiceEventTellsItsNodes(t *testing.T) {
	w := newFixture(t)
	w.options.LocalIP = ""
	quiet := testPod("quiet", "ns", "q")
	quiet.Spec.EnableServiceLinks = new(false)
	w.add(testPod("two", "ns", "a"), testPod("two", "ns", "b"), testPod("one", "ns", "c"), testPod("away", "ns", "d"),
		testPod("kubeedge", "ns", "e"), testPod("other", "elsewhere", "f"), quiet)
	for _, node := range []string{"one", "two", "other", "quiet", "none"} {
		w.sessions.connected(node, "edgecore/websocket")
	}
	w.sessions.connected("kubeedge", "websocket")
	tell := func(s *v1.Service, want ...string) {
		t.Helper()
		w.serviceEvent(nil, s)
		if diff := cmp.Diff(want, slices.Sorted(slices.Values(w.hub.take()))); diff != "" {
			t.Errorf("service %s/%s: notifications mismatch (-want +got):\n%s", s.Namespace, s.Name, diff)
		}
	}
	tell(testService("ns", "db", "10.0.0.2"), "one ns/service/db", "two ns/service/db")
	tell(testService("elsewhere", "db", "10.0.0.3"), "other elsewhere/service/db")
	tell(testService("empty", "db", "10.0.0.4"))
	const api = "default/service/kubernetes"
	tell(testService("default", "kubernetes", "10.0.0.1"), "one "+api, "other "+api, "quiet "+api, "two "+api)
	w.remove(testPod("one", "ns", "c"))
	tell(testService("ns", "db", "10.0.0.5"), "two ns/service/db")
}

// BenchmarkServiceEvent is a service changing whose namespace has pods on ten of 5,000 connected nodes.
func BenchmarkServiceEvent(b *testing.B) {
	w := newFixture(b)
	fleet(w, 5000, 3)
	for n := range 5000 {
		w.sessions.connected(fmt.Sprintf("edge-%05d", n), "edgecore/websocket")
	}
	old, now := testService("ns-007", "db", "10.0.0.2"), testService("ns-007", "db", "10.0.0.3")
	b.ReportAllocs()
	for b.Loop() {
		w.serviceEvent(old, now)
		if n := len(w.hub.take()); n != 10 {
			b.Fatalf("%d nodes were told, want 10", n)
		}
	}
}
