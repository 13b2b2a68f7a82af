package edgecontroller

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// api is an API server that says what a test tells it to.
type api struct {
	mu sync.Mutex
	// reply answers a request; by default nothing exists.
	reply func(r call) (code int, body any)
	calls []call
	// onRequest, if set, sees each request.
	onRequest func(r *http.Request)
}

// call is a request as the API server saw it.
type call struct {
	Method, Path, User, Group, Type, Body string
}

func (c call) String() string {
	as := c.User
	if as == "" {
		as = "cloudcore"
	}
	return c.Method + " " + c.Path + " as " + as
}

func notFound(path string) (int, any) {
	return http.StatusNotFound, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Reason:   metav1.StatusReasonNotFound,
		Code:     http.StatusNotFound,
		Message:  path + " not found",
	}
}

// RoundTrip implements http.RoundTripper.
func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.onRequest != nil {
		a.onRequest(r)
	}
	w, done := httptest.NewRecorder(), make(chan struct{})
	go func() {
		defer close(done)
		a.serve(w, r)
	}()
	select {
	case <-done:
		return w.Result(), nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			panic(err)
		}
	}
	c := call{
		Method: r.Method,
		Path:   r.URL.Path,
		User:   r.Header.Get("Impersonate-User"),
		Group:  r.Header.Get("Impersonate-Group"),
		Type:   r.Header.Get("Content-Type"),
		Body:   string(body),
	}
	a.mu.Lock()
	a.calls = append(a.calls, c)
	reply := a.reply
	a.mu.Unlock()
	code, out := notFound(c.Path)
	if reply != nil {
		code, out = reply(c)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(out); err != nil {
		panic(err)
	}
}

func (a *api) config() *rest.Config {
	return &rest.Config{
		Host:          "http://api",
		Transport:     a,
		QPS:           -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	}
}

func (a *api) answer(f func(r call) (int, any)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reply, a.calls = f, nil
}

func (a *api) seen() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, c := range a.calls {
		out = append(out, c.String())
	}
	return out
}

// notes is a hub that records its calls.
type notes struct {
	mu           sync.Mutex
	changed      []string
	statuses     []string // of pods that changed in nothing else
	disconnected []string
	recorded     []cloudhub.Record
	// asked are the pods whose status nodes are to report again; deaf: no node can be asked.
	asked []string
	deaf  bool
	// toRecord is what nodes are to be annotated with, and wait how long that has to wait.
	toRecord map[string]cloudhub.Record
	wait     time.Duration
}

func (n *notes) Recorded(_ string, r cloudhub.Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.recorded = append(n.recorded, r)
}

func (n *notes) ToRecord(node string, have cloudhub.Record) (cloudhub.Record, time.Duration, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	next := n.toRecord[node]
	return next, n.wait, next.Known() && next.Instance != have.Instance
}

func (n *notes) Changed(node string, key resource.Key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed = append(n.changed, node+" "+key.String())
}

func (n *notes) StatusChanged(node string, key resource.Key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.statuses = append(n.statuses, node+" "+key.String())
}

func (n *notes) Holds(node string, key resource.Key, _ types.UID) { n.Changed(node, key) }

func (n *notes) RequestStatus(node string, key resource.Key, uid types.UID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.deaf {
		n.asked = append(n.asked, node+" "+key.String()+" "+string(uid))
	}
	return !n.deaf
}

func (n *notes) Disconnect(node, reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.disconnected = append(n.disconnected, node+": "+reason)
}

// take returns what was noted since the last call.
func (n *notes) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := append(n.changed, n.disconnected...)
	n.changed, n.disconnected = nil, nil
	return out
}

// fixture is a controller whose caches the test fills itself.
type fixture struct {
	*Controller
	t   testing.TB
	api *api
	hub *notes
}

// noAddress makes a fixture that writes no address into the Nodes of nodes that connect.
func noAddress(o *Options) { o.LocalIP = "" }

// rateLimit makes a fixture that limits the requests of a node.
func rateLimit(qps float64, burst int) func(*Options) {
	return func(o *Options) { o.NodeQPS, o.NodeBurst = qps, burst }
}

// timeout makes a fixture that limits the time for one request.
func timeout(d time.Duration) func(*Options) { return func(o *Options) { o.RequestTimeout = d } }

// newFixture makes a controller that does not limit the requests of a node, unless a change of its options does.
func newFixture(t testing.TB, changes ...func(*Options)) *fixture {
	t.Helper()
	a := &api{}
	clients, err := NewClients(a.config(), UserAndGroup)
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
	t.Cleanup(c.tolerations.queue.ShutDown)
	t.Cleanup(c.readiness.queue.ShutDown)
	t.Cleanup(c.instances.queue.ShutDown)
	t.Cleanup(c.duplicates.queue.ShutDown)
	t.Cleanup(c.statusRequests.queue.ShutDown)
	t.Cleanup(c.endpoints.queue.ShutDown)
	t.Cleanup(c.notices.queue.ShutDown)
	t.Cleanup(c.roomDecisions.queue.ShutDown)
	t.Cleanup(c.fullNodes.queue.ShutDown)
	t.Cleanup(c.podFetches.queue.ShutDown)
	n := &notes{}
	c.begin(t.Context(), n)
	c.decideRoom = func(node string, _ time.Duration) { c.decided(node) } // the worker's part
	c.desired.cachesFilled()
	return &fixture{Controller: c, t: t, api: a, hub: n}
}

// add puts objects into the caches.
func (w *fixture) add(objs ...object) {
	w.t.Helper()
	for _, o := range objs {
		var err error
		switch o := o.(type) {
		case *v1.Pod:
			err = w.caches.pods.indexer.Add(o)
		case *v1.Node:
			err = w.caches.nodes.GetIndexer().Add(o)
		case *v1.ConfigMap:
			err = w.caches.configMaps.GetIndexer().Add(metaOf(o))
			w.keep(resource.TypeConfigMap, o)
		case *v1.Secret:
			err = w.caches.secrets.GetIndexer().Add(metaOf(o))
			w.keep(resource.TypeSecret, o)
		case *v1.Service:
			var slim any
			if slim, err = onlyCached(o); err == nil {
				err = w.caches.services.GetIndexer().Add(slim)
			}
		default:
			err = fmt.Errorf("%T", o)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// metaOf returns what the caches have of a ConfigMap or Secret.
func metaOf(o object) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
	}}
}

// keep puts a ConfigMap or Secret into the contents that are kept.
func (w *fixture) keep(kind string, o object) {
	w.t.Helper()
	key := resource.Key{Namespace: o.GetNamespace(), Type: kind, Name: o.GetName()}
	encoded, err := toSend(key, o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.contents.forget(key)
	w.contents.put(encoded)
}

func (w *fixture) remove(pod *v1.Pod) {
	w.t.Helper()
	if err := w.caches.pods.indexer.Delete(pod); err != nil {
		w.t.Fatal(err)
	}
}

// ask handles a message of a node.
func (w *fixture) ask(node, op, res, content string) *model.Message {
	w.t.Helper()
	return w.Handle(w.t.Context(), node, model.New(model.ModuleEdged, model.GroupMeta, op, res,
		json.RawMessage(content)))
}

func objectMeta(namespace, name, rv string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), ResourceVersion: rv}
}

// testPod names configmap cm-<name> and secret shared.
func testPod(node, namespace, name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: objectMeta(namespace, name, "1"), Spec: v1.PodSpec{
		NodeName: node, ImagePullSecrets: []v1.LocalObjectReference{{Name: "shared"}},
		Containers: []v1.Container{{Name: "c", EnvFrom: []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{
			LocalObjectReference: v1.LocalObjectReference{Name: "cm-" + name}}}}}},
	}}
}

func edgeNode(name string) *v1.Node {
	n := &v1.Node{ObjectMeta: objectMeta("", name, "1")}
	n.Labels = map[string]string{EdgeLabel: ""}
	return n
}
