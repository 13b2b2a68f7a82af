package edgecontroller

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/objects"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// fixture is a controller whose caches the test fills itself.
type fixture struct {
	*Controller

	t   testing.TB
	api *fakes.API
	hub *fakes.Hub
}

// noAddress makes a fixture that writes no address into the Nodes of nodes that connect.
func noAddress(o *Options) { o.LocalIP = "" }

// newFixture makes a controller that does not limit the requests of a node, unless a change of its options does.
func newFixture(t testing.TB, changes ...func(*Options)) *fixture {
	t.Helper()
	a := &fakes.API{}
	clients, err := impersonate.New(a.Config(), impersonate.UserAndGroup)
	if err != nil {
		t.Fatal(err)
	}
	options := Options{Clients: clients, LocalIP: "192.0.2.2", NodeQPS: 1e9, NodeBurst: 1e9}
	for _, change := range changes {
		change(&options)
	}
	c, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	t.Cleanup(func() { // its queues end with the context
		var workers sync.WaitGroup
		c.nodes.Run(ended, workers.Go)
		c.desired.Run(ended, workers.Go)
		workers.Wait()
	})
	t.Cleanup(c.statusRequests.Keys.ShutDown)
	t.Cleanup(c.podFetches.Keys.ShutDown)
	n := &fakes.Hub{}
	c.startParts(t.Context(), n)
	c.desired.CachesFilled()
	return &fixture{Controller: c, t: t, api: a, hub: n}
}

// add puts objects into the caches.
func (w *fixture) add(objs ...objects.Object) {
	w.t.Helper()
	for _, o := range objs {
		err := w.caches.Put(o)
		switch o.(type) {
		case *v1.ConfigMap:
			w.keep(resource.TypeConfigMap, o)
		case *v1.Secret:
			w.keep(resource.TypeSecret, o)
		}
		if err != nil {
			w.t.Fatal(err)
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

// ask handles a message of a node.
func (w *fixture) ask(node, op, res, content string) *model.Message {
	w.t.Helper()
	return w.Handle(w.t.Context(), node, model.New(model.ModuleEdged, model.GroupMeta, op, res,
		json.RawMessage(content)))
}

// sent checks whether e1 is sent an object, and what that costs.
func (w *fixture) sent(what, text string, want bool, calls ...string) {
	w.t.Helper()
	o, err := w.Object("e1", fakes.Key(text))
	if err != nil || (o != nil) != want {
		w.t.Errorf("%s: Object(%s) = %v, %v; want an object: %v", what, text, o, err, want)
	}
	if diff := cmp.Diff(calls, w.api.Take()); diff != "" {
		w.t.Errorf("%s: calls for %s (-want +got):\n%s", what, text, diff)
	}
}
