package requests

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/nodes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/slots"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// requestTimeout is how long a request of a fixture may take.
const requestTimeout = 15 * time.Second

// fixture is requests with caches that the test fills itself.
type fixture struct {
	*Requests
	*Leases
	t        testing.TB
	api      *fakes.API
	hub      *fakes.Hub
	caches   *fakes.Caches
	sessions *sessions.Sessions
}

// noAddress makes a fixture that writes no address into Nodes.
func noAddress(o *Options) { o.LocalIP = "" }

// rateLimit makes a fixture that limits the requests of a node.
func rateLimit(qps float64, burst int) func(*Options) {
	return func(o *Options) { o.QPS, o.Sessions = qps, sessions.New(qps, burst) }
}

// timeout makes a fixture that limits the time for one request.
func timeout(d time.Duration) func(*Options) { return func(o *Options) { o.Timeout = d } }

// newFixture makes requests that do not limit a node, unless a change of their options does.
func newFixture(t testing.TB, changes ...func(*Options)) *fixture {
	t.Helper()
	w := &fixture{t: t, api: &fakes.API{}, hub: &fakes.Hub{}, caches: &fakes.Caches{}}
	clients, err := impersonate.New(w.api.Config(), impersonate.UserAndGroup)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		AsNode:   clients.AsNode,
		Own:      clients.Own,
		Caches:   w.caches,
		Sessions: sessions.New(1e9, 1e9),
		Whole:    func(_ context.Context, pod *v1.Pod) (*v1.Pod, error) { return pod, nil },
		Content:  w.content,
		Slots:    make(slots.Semaphore, 128),
		Timeout:  requestTimeout,
		QPS:      1e9,
		LocalIP:  "192.0.2.2",
		Reported: func(string, *v1.Pod) {},
		Answered: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "test"}, []string{"a", "b", "c"}),
	}
	for _, change := range changes {
		change(&o)
	}
	w.sessions = o.Sessions
	o.Endpoints = w.endpoints(o)
	w.Requests = New(o)
	w.Requests.Start(w.hub)
	w.Leases = &Leases{
		AsNode:   o.AsNode,
		Caches:   w.caches,
		Sessions: o.Sessions,
		Slots:    make(slots.Semaphore, 32),
		Timeout:  o.Timeout,
	}
	return w
}

// endpoints returns the endpoints of a cloudcore without tunnels.
func (w *fixture) endpoints(o Options) Endpoints {
	parts := nodes.New(nodes.Options{Access: nodes.Access{
		AsNode: o.AsNode, Own: o.Own, Caches: w.caches, Sessions: o.Sessions, Timeout: o.Timeout,
	}})
	ended, end := context.WithCancel(w.t.Context())
	end()
	w.t.Cleanup(func() { // its queues end with the context
		var workers sync.WaitGroup
		parts.Run(ended, workers.Go)
		workers.Wait()
	})
	return parts.Endpoints
}

// content returns a ConfigMap or Secret that was added.
func (w *fixture) content(key resource.Key) (*cloudhub.Object, error) {
	o := w.caches.Objects[key]
	if o == nil {
		return nil, nil
	}
	text, err := json.Marshal(o)
	return &cloudhub.Object{Ref: cloudhub.Ref{Key: key, ResourceVersion: o.GetResourceVersion()}, JSON: text}, err
}

// add puts objects into the caches.
func (w *fixture) add(objs ...metav1.Object) { w.caches.Add(objs...) }

// Connected begins a session of a node.
func (w *fixture) Connected(_ context.Context, node, protocol string) {
	w.sessions.Connected(node, protocol)
}

// ask handles a message of a node.
func (w *fixture) ask(node, op, res, content string) *model.Message {
	w.t.Helper()
	return w.Handle(w.t.Context(), node, model.New(model.ModuleEdged, model.GroupMeta, op, res,
		json.RawMessage(content)))
}
