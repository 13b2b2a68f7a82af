package nodes

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/slots"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// fixture is the parts with caches that the test fills itself.
type fixture struct {
	*Parts
	t        testing.TB
	api      *fakes.API
	hub      *fakes.Hub
	caches   *fakes.Caches
	sessions *sessions.Sessions
}

// noAddress makes a fixture that writes no address into the Nodes of nodes that connect.
func noAddress(o *Options) { o.LocalIP = "" }

func newFixture(t testing.TB, changes ...func(*Options)) *fixture {
	t.Helper()
	w := &fixture{t: t, api: &fakes.API{}, hub: &fakes.Hub{}, caches: &fakes.Caches{}, sessions: sessions.New(1, 1)}
	clients, err := impersonate.New(w.api.Config(), impersonate.UserAndGroup)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Access: Access{
			AsNode:   clients.AsNode,
			Own:      clients.Own,
			Caches:   w.caches,
			Sessions: w.sessions,
			Timeout:  15 * time.Second,
		},
		Whole:   func(_ context.Context, pod *v1.Pod) (*v1.Pod, error) { return pod, nil },
		Current: func(string, types.UID) bool { return true },
		Slots:   make(slots.Semaphore, 128),
		LocalIP: "192.0.2.2",
		Patches: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "test"}, []string{"outcome"}),
	}
	for _, change := range changes {
		change(&o)
	}
	w.Parts = New(o)
	for _, queue := range []interface{ ShutDown() }{
		w.tolerations.Keys, w.readiness.Keys, w.instances.Keys, w.Duplicates.Keys, w.Endpoints.Keys,
	} {
		t.Cleanup(queue.ShutDown)
	}
	w.Start(t.Context(), w.hub, func(f func()) { go f() })
	return w
}

// add puts objects into the caches.
func (w *fixture) add(objs ...metav1.Object) { w.caches.Add(objs...) }

// Connected begins a session of a node.
func (w *fixture) Connected(_ context.Context, node, protocol string) {
	w.sessions.Connected(node, protocol)
	w.Parts.Connected(node)
}

// Disconnected ends a session of a node.
func (w *fixture) Disconnected(node, _ string) { w.sessions.Disconnected(node) }

// Inventoried takes an inventory without pods.
func (w *fixture) Inventoried(_ context.Context, node string, _ []wire.Held) {
	w.Parts.Inventoried(node)
}

func (w *fixture) podEvent(_, now *v1.Pod) { w.PodChanged(now) }

func (w *fixture) nodeEvent(old, now *v1.Node) { w.NodeChanged(old, now) }
