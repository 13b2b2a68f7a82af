package edgecontroller

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// TestServiceEventTellsItsNodes: a service's event is told to the connected nodes of ours that have its namespace's
// pods.
func TestServiceEventTellsItsNodes(t *testing.T) {
	w := newFixture(t, noAddress)
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
		w.services.serviceEvent(nil, s)
		if diff := cmp.Diff(want, slices.Sorted(slices.Values(w.hub.Take()))); diff != "" {
			t.Errorf("service %s/%s: notifications mismatch (-want +got):\n%s", s.Namespace, s.Name, diff)
		}
	}
	tell(testService("ns", "db", "10.0.0.2"), "one ns/service/db", "two ns/service/db")
	tell(testService("elsewhere", "db", "10.0.0.3"), "other elsewhere/service/db")
	tell(testService("empty", "db", "10.0.0.4"))
	const api = "default/service/kubernetes"
	tell(testService("default", "kubernetes", "10.0.0.1"), "one "+api, "other "+api, "quiet "+api, "two "+api)
	w.remove(fakes.Pod("one", "ns", "c"))
	tell(testService("ns", "db", "10.0.0.5"), "two ns/service/db")
}

// largeService is a Service with everything that may be large, and ports.
func largeService(name, version string, ports int) *v1.Service {
	s := testService("ns", name, "10.0.0.2")
	large := strings.Repeat("x", 16<<10)
	s.ResourceVersion = version
	s.Annotations, s.Labels = map[string]string{"large": large}, map[string]string{"app": "db"}
	s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: large}}
	s.Finalizers, s.Spec.ExternalIPs = []string{large}, []string{large}
	s.Spec.Selector = map[string]string{"app": large}
	s.Status.Conditions = []metav1.Condition{{Message: large}}
	s.Spec.Type, s.Spec.ClusterIPs = v1.ServiceTypeClusterIP, []string{"10.0.0.2"}
	s.Spec.Ports = nil
	for i := range ports {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{
			Name:       fmt.Sprint("port-", i),
			Protocol:   v1.ProtocolTCP,
			Port:       int32(i) + 1,
			TargetPort: intstr.FromString("http"),
			NodePort:   30000,
		})
	}
	return s
}

// cachedService returns what the informer caches of a Service.
func cachedService(t testing.TB, s *v1.Service) *v1.Service {
	t.Helper()
	out, err := onlyCached(s)
	if err != nil {
		t.Fatal(err)
	}
	return out.(*v1.Service)
}

// TestServicesAreSmall: of a Service, cloudcore caches and sends what environment variables are made of.
func TestServicesAreSmall(t *testing.T) {
	const services, most = 2000, 3 << 10
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	w := newFixture(t)
	before := heap()
	for i := range services {
		w.add(largeService(fmt.Sprint("db-", i), "1", 2))
	}
	each := (heap() - before) / services
	t.Logf("%d bytes for each Service", each)
	if each > most {
		t.Errorf("%d bytes for each Service, want at most %d", each, most)
	}
	before = heap()
	for i := range services {
		w.add(largeService(fmt.Sprint("full-", i), "1", cachedPorts))
	}
	t.Logf("%d bytes for each Service with %d ports", (heap()-before)/services, cachedPorts)
	runtime.KeepAlive(w)

	want := &v1.Service{
		ObjectMeta: fakes.ObjectMeta("ns", "db", "1"),
		Spec: v1.ServiceSpec{
			Type:       v1.ServiceTypeClusterIP,
			ClusterIP:  "10.0.0.2",
			ClusterIPs: []string{"10.0.0.2"},
			Ports:      []v1.ServicePort{{Name: "port-0", Protocol: v1.ProtocolTCP, Port: 1}},
		},
	}
	got := cachedService(t, largeService("db", "1", 1))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cached (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(got, cachedService(t, got)); diff != "" {
		t.Errorf("cached again (-want +got):\n%s", diff)
	}
	headless := largeService("db", "1", 1)
	headless.Spec.ClusterIP = v1.ClusterIPNone
	if got := cachedService(t, headless); got.Spec.Ports != nil {
		t.Errorf("a Service without an address is cached with %d ports, want none", len(got.Spec.Ports))
	}
}

// TestListServices: Services are listed in pages, and each is made small.
func TestListServices(t *testing.T) {
	w := newFixture(t)
	pages := map[string]v1.ServiceList{
		"":     {ListMeta: metav1.ListMeta{Continue: "more"}, Items: []v1.Service{*largeService("a", "1", 1)}},
		"more": {ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []v1.Service{*largeService("b", "2", 1)}},
	}
	var at string
	w.api.OnRequest = func(r *http.Request) {
		if limit := r.URL.Query().Get("limit"); limit != fmt.Sprint(servicePage) {
			t.Errorf("limit = %q, want %d", limit, servicePage)
		}
		at = r.URL.Query().Get("continue")
	}
	w.api.Answer(func(fakes.Call) (int, any) { return http.StatusOK, pages[at] })
	got, err := listServices(t.Context(), w.options.Clients.Own.CoreV1().Services(""))
	if err != nil {
		t.Fatal(err)
	}
	want := &v1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []v1.Service{
		*cachedService(t, largeService("a", "1", 1)), *cachedService(t, largeService("b", "2", 1)),
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

// TestServiceWithManyPorts: a node gets all ports of a Service, and its changes, also if cloudcore does not cache them.
func TestServiceWithManyPorts(t *testing.T) {
	w := newFixture(t, noAddress)
	wide, full := largeService("wide", "1", cachedPorts+1), largeService("full", "1", cachedPorts)
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
		o, err := w.Object("e1", serviceKey(s))
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
	if diff := cmp.Diff([]string{"GET " + path + " as cloudcore"}, w.calls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	tell := func(old, now *v1.Service, want ...string) {
		t.Helper()
		w.services.serviceEvent(cachedService(t, old), cachedService(t, now))
		if diff := cmp.Diff(want, w.hub.Take()); diff != "" {
			t.Errorf("%s changes: notifications mismatch (-want +got):\n%s", now.Name, diff)
		}
	}
	tell(wide, largeService("wide", "2", cachedPorts+2), "e1 ns/service/wide")
	tell(wide, wide)
	tell(full, largeService("full", "2", cachedPorts)) // labels, annotations or the status have changed
	tell(full, largeService("full", "2", cachedPorts-1), "e1 ns/service/full")
	tell(wide, largeService("wide", "2", 1), "e1 ns/service/wide")
}

// BenchmarkServiceEvent is a service changing whose namespace has pods on ten of 5,000 connected nodes.
func BenchmarkServiceEvent(b *testing.B) {
	w := newFixture(b)
	fleet(w, 5000, 3)
	for n := range 5000 {
		w.sessions.Connected(fmt.Sprintf("edge-%05d", n), "edgecore/websocket")
	}
	old, now := testService("ns-007", "db", "10.0.0.2"), testService("ns-007", "db", "10.0.0.3")
	b.ReportAllocs()
	for b.Loop() {
		w.services.serviceEvent(old, now)
		if n := len(w.hub.Take()); n != 10 {
			b.Fatalf("%d nodes were told, want 10", n)
		}
	}
}
