package statuses

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// fixture is statuses with their requests, and caches that the test fills itself.
type fixture struct {
	t              testing.TB
	hub            *fakes.Hub
	caches         *caches.Caches
	sessions       *sessions.Sessions
	statuses       *Statuses
	statusRequests *Requests
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	clients, err := impersonate.New((&fakes.API{}).Config(), impersonate.UserAndGroup)
	if err != nil {
		t.Fatal(err)
	}
	w := &fixture{t: t, hub: &fakes.Hub{}, sessions: sessions.New(1, 1), statuses: New()}
	if w.caches, err = caches.New(clients, w.sessions.ConnectedHere); err != nil {
		t.Fatal(err)
	}
	w.statusRequests = NewRequests(w.caches, w.statuses, prometheus.NewCounter(prometheus.CounterOpts{Name: "test"}))
	t.Cleanup(w.statusRequests.Keys.ShutDown)
	w.statusRequests.Start(w.hub)
	return w
}

// add puts objects into the caches.
func (w *fixture) add(objs ...metav1.Object) {
	w.t.Helper()
	for _, o := range objs {
		if err := w.caches.Put(o); err != nil {
			w.t.Fatal(err)
		}
	}
}

// Connected begins a session of a node.
func (w *fixture) Connected(_ context.Context, node, protocol string) {
	w.statuses.Connected(node, w.sessions.Connected(node, protocol))
}

// Disconnected ends a session of a node.
func (w *fixture) Disconnected(node, _ string) {
	w.sessions.Disconnected(node)
	w.statuses.Disconnected(node)
}

// Inventoried takes an inventory.
func (w *fixture) Inventoried(_ context.Context, node string, pods []wire.Held) []string {
	i := CompareInventory(w.caches, node, pods)
	w.statuses.Inventoried(node, i.Pending, i.Last)
	for _, pod := range w.caches.PodsOf(node) {
		w.statusRequests.PodChanged(pod)
	}
	return i.Report
}

func (w *fixture) podEvent(old, now *v1.Pod) {
	if now != nil {
		w.statusRequests.PodChanged(now)
	}
	if old != nil && (now == nil || now.UID != old.UID) {
		w.statuses.Forget(old.Spec.NodeName, old.UID)
	}
}

// reported takes a status that a node reported, and that the API server has stored.
func (w *fixture) reported(node string, pod *v1.Pod) {
	if !w.sessions.Capable(node) {
		return
	}
	w.statuses.Reported(node, pod.UID, StoredStatus(pod))
	if cached := w.caches.Pod(pod.Namespace, pod.Name); cached != nil {
		w.statusRequests.PodChanged(cached)
	}
}
