package cloudhub

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var long = flag.Bool("long", false, "run the tests with random faults in their long form")

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// cluster is a Downstream that tests write into.
type cluster struct {
	mu      sync.Mutex
	hub     *Hub
	rv      int
	objects map[string]map[resource.Key]*Object
	order   map[string][]resource.Key
	failing map[resource.Key]error
	after   map[string]string      // names of objects -> the object that must come first
	asked   func()                 // called when it is asked what a node is to have; may be nil
	lookup  func(key resource.Key) // called when it is asked for an object; may be nil
	// lent counts the objects with which the hub is not done.
	lent atomic.Int64
}

func newCluster() *cluster {
	return &cluster{
		objects: map[string]map[resource.Key]*Object{}, order: map[string][]resource.Key{},
		failing: map[resource.Key]error{}, after: map[string]string{},
	}
}

func (c *cluster) Desired(node string) []Ref {
	if c.asked != nil {
		c.asked()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var refs []Ref
	for _, key := range c.order[node] {
		if o := c.objects[node][key]; o != nil {
			refs = append(refs, o.Ref)
		}
	}
	return refs
}

func (c *cluster) Object(node string, key resource.Key) (*Object, error) {
	if c.lookup != nil {
		c.lookup(key)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.failing[key]; err != nil {
		return nil, err
	}
	o := c.objects[node][key]
	if o == nil {
		return nil, nil
	}
	cp := *o
	cp.After, _ = resource.Parse(c.after[key.String()])
	c.lent.Add(1)
	var once atomic.Bool
	cp.Done = func() {
		if once.Swap(true) {
			panic("Done is called twice for " + key.String())
		}
		c.lent.Add(-1)
	}
	return &cp, nil
}

// require has an object come after another.
func (c *cluster) require(name, first string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after[name] = first
}

// set changes an object of a node, and tells the hub.
func (c *cluster) set(node, name, uid, spec string) *Object {
	key, err := resource.Parse(name)
	if err != nil {
		panic(err)
	}
	c.mu.Lock()
	c.rv++
	kind := map[string]string{"pod": "Pod", "configmap": "ConfigMap", "secret": "Secret", "node": "Node"}[key.Type]
	rv := fmt.Sprint(c.rv)
	o := &Object{Ref: Ref{
		Key:             key,
		UID:             types.UID(uid),
		APIVersion:      "v1",
		Kind:            kind,
		ResourceVersion: rv,
	}, Version: spec}
	o.JSON = json.RawMessage(
		fmt.Sprintf(
			`{"kind":%q,"apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"uid":%q,"resourceVersion":%q},"spec":{"is":%q}}`,
			kind, key.Name, key.Namespace, uid, rv, spec))
	if c.objects[node] == nil {
		c.objects[node] = map[resource.Key]*Object{}
	}
	if c.objects[node][key] == nil {
		c.order[node] = append(c.order[node], key)
	}
	c.objects[node][key] = o
	hub := c.hub
	c.mu.Unlock()
	if hub != nil {
		hub.Changed(node, key)
	}
	return o
}

// status changes the status of a pod of a node, and tells the hub.
func (c *cluster) status(node, name string) (version string) {
	key, _ := resource.Parse(name)
	c.mu.Lock()
	c.rv++
	version = fmt.Sprint(c.rv)
	o := *c.objects[node][key]
	o.ResourceVersion = version
	c.objects[node][key] = &o
	c.mu.Unlock()
	c.hub.StatusChanged(node, key)
	return version
}

func (c *cluster) remove(node, name string) {
	key, err := resource.Parse(name)
	if err != nil {
		panic(err)
	}
	c.mu.Lock()
	delete(c.objects[node], key)
	c.order[node] = slices.DeleteFunc(c.order[node], func(k resource.Key) bool { return k == key })
	c.mu.Unlock()
	c.hub.Changed(node, key)
}

func (c *cluster) fail(name string, err error) {
	key, _ := resource.Parse(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failing[key] = err
}

// want is what a node is to have, as name -> uid/version.
func (c *cluster) want(node string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]string{}
	for k, o := range c.objects[node] {
		all[k.String()] = string(o.UID) + "/" + o.Version
	}
	return all
}

// api is an Upstream that records its calls.
type api struct {
	mu        sync.Mutex
	log       []string
	beats     int
	beatFails error
	handle    func(ctx context.Context, node string, m *model.Message) *model.Message
	join      func() // before a beginning is noted; may be nil
	leave     func() // before an end is noted; may be nil
	// inventoried is asked which pods are to be reported again; may be nil.
	inventoried func(node string, pods []wire.Held) (report []string)
}

func (a *api) note(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log = append(a.log, fmt.Sprintf(format, args...))
}

func (a *api) noted() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.log)
}

func (a *api) Connected(_ context.Context, node, protocol string) {
	if a.join != nil {
		a.join()
	}
	a.note("connected %s %s", node, protocol)
}
func (a *api) Disconnected(node, reason string) {
	if a.leave != nil {
		a.leave()
	}
	a.note("disconnected %s: %s", node, reason)
}
func (a *api) Heartbeat(context.Context, string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.beats++
	return a.beatFails
}
func (a *api) Inventoried(_ context.Context, node string, pods []wire.Held) (report []string) {
	if a.inventoried == nil {
		return nil
	}
	return a.inventoried(node, pods)
}
func (a *api) Handle(ctx context.Context, node string, m *model.Message) *model.Message {
	a.mu.Lock()
	handle := a.handle
	a.mu.Unlock()
	if handle != nil {
		return handle(ctx, node, m)
	}
	a.note("%s %s %s", node, m.Route.Operation, m.Route.Resource)
	r := m.Respond(model.OK)
	r.Route.Source, r.Route.Group = sourceEdgeController, model.GroupResource
	return r
}

// relaxed is the keepalive interval of tests that are not about silence: no machine is so slow that it passes.
const relaxed = time.Hour

// cloud is a hub with a server.
type cloud struct {
	t       testing.TB
	memory  bool // it listens in memory instead of on TCP
	ca      *wiretest.CA
	hub     *Hub
	cluster *cluster
	api     *api
	addr    string
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	ctx     context.Context
	stop    func()
}

// startCloud starts a hub that listens on a TCP port of this host.
func startCloud(t testing.TB, change func(*Options)) *cloud {
	t.Helper()
	c := &cloud{t: t, ca: wiretest.NewCA(t), cluster: newCluster(), api: &api{}}
	c.start(change)
	return c
}

// startInMemory starts a hub whose links need no sockets. In a synctest bubble all of it, TLS included, runs by the
// simulated clock.
func startInMemory(t testing.TB, change func(*Options)) *cloud {
	t.Helper()
	c := &cloud{t: t, memory: true, ca: wiretest.NewCA(t), cluster: newCluster(), api: &api{}}
	c.start(change)
	return c
}

func (c *cloud) start(change func(*Options)) {
	opts := Options{
		Downstream:        c.cluster,
		Upstream:          c.api,
		Features:          wire.AllFeatures(),
		KubeCA:            []byte("-----CA-----\n"),
		KeepaliveInterval: relaxed,
	}
	if change != nil {
		change(&opts)
	}
	hub, err := New(opts)
	if err != nil {
		c.t.Fatal(err)
	}
	c.hub = hub
	c.cluster.mu.Lock()
	c.cluster.hub = hub
	c.cluster.mu.Unlock()
	var l net.Listener
	if c.memory {
		m := newMemoryListener()
		l, c.addr, c.dial = m, "127.0.0.1:10000", m.dial
	} else {
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			c.t.Fatal(err)
		}
		c.addr, c.dial = l.Addr().String(), (&net.Dialer{}).DialContext
	}
	config := c.serverTLS()
	ctx, cancel := context.WithCancel(context.Background())
	c.ctx = ctx
	var wg sync.WaitGroup
	wg.Go(func() { _ = hub.Run(ctx) })
	wg.Go(func() {
		if err := hub.ServeWebSocket(ctx, l, config); ctx.Err() == nil {
			c.t.Errorf("ServeWebSocket = %v, want it to serve until its context ends", err)
		}
	})
	c.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	c.t.Cleanup(func() {
		c.stop()
		if n := c.cluster.lent.Load(); n != 0 {
			c.t.Errorf("in the end the hub is not done with %d objects, want 0", n)
		}
	})
}

func (c *cloud) serverTLS() *tls.Config {
	server := c.ca.Server(c.t)
	return TLSConfig(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &server, nil }, c.ca.Pool())
}

func (c *cloud) clientTLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: c.ca.Pool(), Certificates: []tls.Certificate{cert}}
}

// options are those with which a node of ours dials.
func (c *cloud) options(node string, cert tls.Certificate) wire.DialOptions {
	return wire.DialOptions{
		URL:      "wss://" + c.addr + "/",
		Header:   nodeHeader(node),
		TLS:      c.clientTLS(cert),
		Dial:     c.dial,
		Limits:   wire.Limits{ReadTimeout: relaxed},
		Features: wire.AllFeatures(),
	}
}

// dialNode connects as a node of ours with a good certificate.
func (c *cloud) dialNode(t testing.TB, node string) wire.Conn {
	t.Helper()
	conn, err := wire.DialWebSocket(c.ctx, c.options(node, c.ca.Node(t, node, time.Now().Add(time.Hour))))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func nodeHeader(node string) http.Header {
	h := http.Header{}
	h.Set(wire.HeaderNodeID, node)
	h.Set(wire.HeaderProjectID, "e632aba927ea4ac2b575ec1603d56f10")
	h.Set(wire.HeaderUse, wire.UseMessages)
	return h
}

func settled(t testing.TB, c *cloud, e *edge) {
	t.Helper()
	wait.Until(t, e.node+" to have what it is to have", func() error {
		if want, got := c.cluster.want(e.node), e.holds(); !maps.Equal(want, got) {
			return fmt.Errorf("it has %v, want %v", got, want)
		}
		s := c.hub.session(e.node)
		if s == nil {
			return fmt.Errorf("it has no session")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if waiting, unacked := s.queue.Len(); !s.ready || waiting > 0 || unacked > 0 {
			return fmt.Errorf("its session is ready: %v, %d objects wait, %d are not acked", s.ready, waiting, unacked)
		}
		return nil
	})
}
