package desired

import (
	"context"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/lookups"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/objects"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/statuses"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// fixture is objects whose caches the test fills itself. Decisions about the room of nodes are made at once.
type fixture struct {
	*Objects
	t   testing.TB
	api *fakes.API
	hub *fakes.Hub
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	w := &fixture{t: t, api: &fakes.API{}, hub: &fakes.Hub{}}
	clients, err := impersonate.New(w.api.Config(), impersonate.UserAndGroup)
	if err != nil {
		t.Fatal(err)
	}
	sessions := sessions.New(1e9, 1e9)
	cached, err := caches.New(clients, sessions.ConnectedHere)
	if err != nil {
		t.Fatal(err)
	}
	asked := lookups.New(clients.Own)
	asked.Start(t.Context())
	w.Objects = New(clients, cached, sessions, asked, lookups.NewContents(cached, asked))
	t.Cleanup(w.ShutDown)
	w.Start(t.Context(), w.hub)
	w.decideRoom = func(node string, _ time.Duration) { w.decided(node) } // the worker's part
	w.CachesFilled()
	return w
}

// add puts objects into the caches.
func (w *fixture) add(objs ...objects.Object) {
	w.t.Helper()
	for _, o := range objs {
		if err := w.caches.Put(o); err != nil {
			w.t.Fatal(err)
		}
		switch o.(type) {
		case *v1.ConfigMap:
			w.keep(resource.TypeConfigMap, o)
		case *v1.Secret:
			w.keep(resource.TypeSecret, o)
		}
	}
}

// keep puts a ConfigMap or Secret into the contents that are kept.
func (w *fixture) keep(kind string, o objects.Object) {
	w.t.Helper()
	key := resource.Key{Namespace: o.GetNamespace(), Type: kind, Name: o.GetName()}
	encoded, err := caches.ToSend(key, o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.contents.Forget(key)
	w.contents.Put(encoded)
}

func (w *fixture) remove(pod *v1.Pod) {
	w.t.Helper()
	if err := w.caches.Remove(pod); err != nil {
		w.t.Fatal(err)
	}
}

// Connected begins a session of a node.
func (w *fixture) Connected(_ context.Context, node, protocol string) {
	capable := w.sessions.Connected(node, protocol)
	w.Objects.Connected(node, capable)
	w.caches.Pods.NodeChanged(node)
}

// Disconnected ends a session of a node.
func (w *fixture) Disconnected(node, _ string) {
	w.Objects.Disconnected(node)
	w.sessions.Disconnected(node)
	w.caches.Pods.NodeChanged(node)
}

// Inventoried takes an inventory.
func (w *fixture) Inventoried(_ context.Context, node string, pods []wire.Held) []string {
	i := statuses.CompareInventory(w.caches, node, pods)
	w.Objects.Inventoried(node, pods, i.Has)
	return i.Report
}

func (w *fixture) podEvent(old, now *v1.Pod) { w.PodChanged(old, now) }
