package desired

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// TestServiceEventTellsItsNodes: a service's event is told to the connected nodes of ours that have its namespace's
// pods.
func TestServiceEventTellsItsNodes(t *testing.T) {
	w := newFixture(t)
	quiet := fakes.Pod("quiet", "ns", "q")
	quiet.Spec.EnableServiceLinks = new(false)
	w.add(fakes.Pod("two", "ns", "a"), fakes.Pod("two", "ns", "b"), fakes.Pod("one", "ns", "c"),
		fakes.Pod("away", "ns", "d"),
		fakes.Pod("kubeedge", "ns", "e"), fakes.Pod("other", "elsewhere", "f"), quiet)
	for _, node := range []string{"one", "two", "other", "quiet", "none"} {
		w.sessions.Connected(node, "edgecore/websocket")
	}
	w.sessions.Connected("kubeedge", "websocket")
	tell := func(s *v1.Service, want ...string) {
		t.Helper()
		w.ServiceEvent(nil, s)
		if diff := cmp.Diff(want, slices.Sorted(slices.Values(w.hub.Take()))); diff != "" {
			t.Errorf("service %s/%s: notifications mismatch (-want +got):\n%s", s.Namespace, s.Name, diff)
		}
	}
	tell(fakes.Service("ns", "db", "10.0.0.2"), "one ns/service/db", "two ns/service/db")
	tell(fakes.Service("elsewhere", "db", "10.0.0.3"), "other elsewhere/service/db")
	tell(fakes.Service("empty", "db", "10.0.0.4"))
	const api = "default/service/kubernetes"
	tell(fakes.Service("default", "kubernetes", "10.0.0.1"), "one "+api, "other "+api, "quiet "+api, "two "+api)
	w.remove(fakes.Pod("one", "ns", "c"))
	tell(fakes.Service("ns", "db", "10.0.0.5"), "two ns/service/db")
}

// cachedService puts a Service into the caches, and returns what they have of it.
func (w *fixture) cachedService(s *v1.Service) *v1.Service {
	w.add(s)
	return w.caches.Service(s.Namespace, s.Name)
}

// TestServiceWithManyPorts: a node gets all ports of a Service, and its changes, also if cloudcore does not cache them.
func TestServiceWithManyPorts(t *testing.T) {
	w := newFixture(t)
	wide := fakes.LargeService("wide", "1", caches.CachedPorts+1)
	full := fakes.LargeService("full", "1", caches.CachedPorts)
	w.add(fakes.Node("e1"), fakes.Pod("e1", "ns", "a"), wide, full)
	w.sessions.Connected("e1", "edgecore/websocket")
	const path = "/api/v1/namespaces/ns/services/wide"
	w.api.Answer(func(c fakes.Call) (int, any) {
		if c.Path == path {
			return http.StatusOK, wide
		}
		return fakes.NotFound(c.Path)
	})
	for _, s := range []*v1.Service{wide, full} {
		o, err := w.Object("e1", caches.ServiceKey(s))
		if err != nil || o == nil {
			t.Fatalf("Object(%s) = %v, %v, want the Service", s.Name, o, err)
		}
		var got v1.Service
		if err := json.Unmarshal(o.JSON, &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Spec.Ports) != len(s.Spec.Ports) || got.Annotations != nil || len(o.JSON) > len(s.Spec.Ports)*100 {
			t.Errorf("%s has %d ports and %d annotations in %d bytes, want %d ports only", s.Name, len(got.Spec.Ports),
				len(got.Annotations), len(o.JSON), len(s.Spec.Ports))
		}
	}
	if diff := cmp.Diff([]string{"GET " + path + " as cloudcore"}, w.api.Take()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	tell := func(old, now *v1.Service, want ...string) {
		t.Helper()
		w.ServiceEvent(w.cachedService(old), w.cachedService(now))
		if diff := cmp.Diff(want, w.hub.Take()); diff != "" {
			t.Errorf("%s changes: notifications mismatch (-want +got):\n%s", now.Name, diff)
		}
	}
	tell(wide, fakes.LargeService("wide", "2", caches.CachedPorts+2), "e1 ns/service/wide")
	tell(wide, wide)
	tell(full, fakes.LargeService("full", "2", caches.CachedPorts)) // labels, annotations or the status have changed
	tell(full, fakes.LargeService("full", "2", caches.CachedPorts-1), "e1 ns/service/full")
	tell(wide, fakes.LargeService("wide", "2", 1), "e1 ns/service/wide")
}

// BenchmarkServiceEvent is a service changing whose namespace has pods on ten of 5,000 connected nodes.
func BenchmarkServiceEvent(b *testing.B) {
	w := newFixture(b)
	fleet(w, 5000, 3)
	for n := range 5000 {
		w.sessions.Connected(fmt.Sprintf("edge-%05d", n), "edgecore/websocket")
	}
	old, now := fakes.Service("ns-007", "db", "10.0.0.2"), fakes.Service("ns-007", "db", "10.0.0.3")
	b.ReportAllocs()
	for b.Loop() {
		w.ServiceEvent(old, now)
		if n := len(w.hub.Take()); n != 10 {
			b.Fatalf("%d nodes were told, want 10", n)
		}
	}
}
