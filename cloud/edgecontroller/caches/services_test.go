package caches

import (
	"fmt"
	"net/http"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

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
		w.add(fakes.LargeService(fmt.Sprint("db-", i), "1", 2))
	}
	each := (heap() - before) / services
	t.Logf("%d bytes for each Service", each)
	if each > most {
		t.Errorf("%d bytes for each Service, want at most %d", each, most)
	}
	before = heap()
	for i := range services {
		w.add(fakes.LargeService(fmt.Sprint("full-", i), "1", CachedPorts))
	}
	t.Logf("%d bytes for each Service with %d ports", (heap()-before)/services, CachedPorts)
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
	got := cachedService(t, fakes.LargeService("db", "1", 1))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cached (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(got, cachedService(t, got)); diff != "" {
		t.Errorf("cached again (-want +got):\n%s", diff)
	}
	headless := fakes.LargeService("db", "1", 1)
	headless.Spec.ClusterIP = v1.ClusterIPNone
	if got := cachedService(t, headless); got.Spec.Ports != nil {
		t.Errorf("a Service without an address is cached with %d ports, want none", len(got.Spec.Ports))
	}
}

// TestListServices: Services are listed in pages, and each is made small.
func TestListServices(t *testing.T) {
	w := newFixture(t)
	pages := map[string]v1.ServiceList{
		"": {ListMeta: metav1.ListMeta{Continue: "more"}, Items: []v1.Service{*fakes.LargeService("a", "1", 1)}},
		"more": {
			ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []v1.Service{*fakes.LargeService("b", "2", 1)},
		},
	}
	var at string
	w.api.OnRequest = func(r *http.Request) {
		if limit := r.URL.Query().Get("limit"); limit != fmt.Sprint(servicePage) {
			t.Errorf("limit = %q, want %d", limit, servicePage)
		}
		at = r.URL.Query().Get("continue")
	}
	w.api.Answer(func(fakes.Call) (int, any) { return http.StatusOK, pages[at] })
	got, err := listServices(t.Context(), w.Own.CoreV1().Services(""))
	if err != nil {
		t.Fatal(err)
	}
	want := &v1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []v1.Service{
		*cachedService(t, fakes.LargeService("a", "1", 1)), *cachedService(t, fakes.LargeService("b", "2", 1)),
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}
