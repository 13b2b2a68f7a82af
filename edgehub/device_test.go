package edgehub

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// beatNow is the heartbeat of tests.
const beatNow = 400 * time.Millisecond

// long asks for the long forms of tests.
var long = flag.Bool("long", false, "run the tests of faults for longer")

// impatient makes a device give up a silent link within two heartbeats, as devices do. On a machine that is held up
// such links do not all last.
func impatient(s *settings) { s.targets[0].limits.ReadTimeout = silence(s.heartbeat) }

// edge is a device: a bus with edgehub, and a metamanager that notes what it gets and acknowledges it.
type edge struct {
	t     *testing.T
	hub   *Module
	bus   *beehive.Bus
	files wiretest.Files
	// network says that the network has changed.
	network func()

	mu    sync.Mutex
	got   []*model.Message
	links []wire.LinkState
}

func config(files wiretest.Files, server string) v1alpha2.EdgeHub {
	return v1alpha2.EdgeHub{
		Enable:            true,
		Heartbeat:         15,
		MessageQPS:        30,
		MessageBurst:      60,
		ProjectID:         "e632aba927ea4ac2b575ec1603d56f10",
		TLSCAFile:         files.CA,
		TLSCertFile:       files.Cert,
		TLSPrivateKeyFile: files.Key,
		WebSocket: v1alpha2.Transport{
			Enable:           true,
			Server:           server,
			HandshakeTimeout: 30,
			ReadDeadline:     15,
			WriteDeadline:    15,
		},
	}
}

// with are changes to a device that a test starts.
type with struct {
	options  func(*Options)
	settings func(*settings)
	dial     func(ctx context.Context, network, addr string) (net.Conn, error)
}

// simulate runs a cloud, which waits for keepalives for so long, and a device that is linked to it through a proxy, for
// a test on a simulated clock.
func simulate(t *testing.T, patience time.Duration, settings func(*settings)) (*upstream, *wiretest.Proxy, *edge) {
	t.Helper()
	l := wiretest.NewMemory(t)
	u := newUpstreamOn(t, wiretest.NewCA(t), l, patience)
	proxy := wiretest.NewMemoryProxy(t, l)
	return u, proxy, startEdge(t, u.ca, u.addr, with{settings: settings, dial: proxy.Dial})
}

// simulateOurs is simulate with a cloud of ours that answers each request. links is how many links there were.
func simulateOurs(t *testing.T, settings func(*settings)) (links *atomic.Int64, proxy *wiretest.Proxy, e *edge) {
	t.Helper()
	links = new(atomic.Int64)
	proxy, e = simulateCloud(t, wire.Features{Inventory: true, Lease: true}, settings, func(c wire.Conn) {
		links.Add(1)
		for m, err := c.Read(); err == nil; m, err = c.Read() {
			if !m.IsResponse() {
				_ = c.Write(echo(m))
			}
		}
	})
	return links, proxy, e
}

// simulateCloud is simulate with a cloud of ours that has features and serves each link until serve returns. With the
// lease among them the device sends no keepalives, which would wait for a message that is under way, and the simulated
// clock with them.
func simulateCloud(
	t *testing.T, features wire.Features, settings func(*settings), serve func(wire.Conn),
) (proxy *wiretest.Proxy, e *edge) {
	t.Helper()
	l, ca := wiretest.NewMemory(t), wiretest.NewCA(t)
	s := &http.Server{TLSConfig: ca.ServerTLS(t), ErrorLog: log.New(io.Discard, "", 0)}
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := wire.AcceptWebSocket(w, r, wire.AcceptOptions{Features: features})
		if err != nil {
			t.Error(err)
			return
		}
		go func() {
			defer c.Close(wire.CloseNormal, "")
			serve(c)
		}()
	})
	go func() { _ = s.ServeTLS(wire.CountBytes(l), "", "") }()
	t.Cleanup(func() { _ = s.Close() })
	proxy = wiretest.NewMemoryProxy(t, l)
	return proxy, startEdge(t, ca, l.Addr().String(), with{settings: settings, dial: proxy.Dial})
}

// startEdge runs a device until the test ends.
func startEdge(t *testing.T, ca *wiretest.CA, server string, w with) *edge {
	t.Helper()
	e := &edge{t: t, bus: beehive.New(beehive.WithTimeout(wait.Max()))}
	e.files = ca.Write(t, t.TempDir(), ca.Node(t, "edge-1", time.Now().Add(22*time.Hour)))
	watching := make(chan func(), 1)
	o := Options{
		Node: "edge-1", Config: config(e.files, server), Bus: e.bus, Health: &health.Registry{},
		Proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
		Watch: func(ctx context.Context, changed func()) error {
			watching <- changed
			<-ctx.Done()
			return nil
		},
	}
	if w.options != nil {
		w.options(&o)
	}
	hub, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	e.hub, hub.dialer = hub, w.dial
	hub.set.heartbeat, hub.set.backoffMin, hub.set.backoffMax = beatNow, 20*time.Millisecond, 200*time.Millisecond
	for i := range hub.set.targets {
		hub.set.targets[i].limits.ReadTimeout = 30 * time.Second
	}
	if w.settings != nil {
		w.settings(&hub.set)
	}
	if err := errors.Join(e.bus.Add(meta{e}), e.bus.Add(hub)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.bus.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	e.network = <-watching
	return e
}

// meta is the device's metamanager.
type meta struct{ e *edge }

func (meta) Name() string  { return model.ModuleMetaManager }
func (meta) Group() string { return model.GroupMeta }

func (m meta) Run(ctx context.Context) error {
	e := m.e
	for {
		msg, err := e.bus.Receive(ctx, m.Name())
		if err != nil {
			return nil
		}
		if msg.Route.Operation == wire.OpConnect {
			var link wire.LinkState
			if err := json.Unmarshal(msg.Content, &link); err != nil {
				e.t.Error(err)
			}
			if msg.Route.Source != "websocket" || msg.Route.Resource != "null/link" || msg.Route.Group != "meta" {
				e.t.Errorf("route of the news = %+v, want null/link of websocket in group meta", msg.Route)
			}
			e.note(func() { e.links = append(e.links, link) })
			continue
		}
		e.note(func() { e.got = append(e.got, msg) })
		if err := e.bus.Send(ctx, model.ModuleEdgeHub, msg.Respond(model.OK)); err != nil && ctx.Err() == nil {
			e.t.Error(err)
		}
	}
}

func (e *edge) note(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

func (e *edge) until(what string, is func() bool) {
	e.t.Helper()
	wait.True(e.t, what, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return is()
	})
}

// told waits for the nth piece of news of the link, and returns it.
func (e *edge) told(n int) wire.LinkState {
	e.t.Helper()
	e.until(fmt.Sprintf("news %d of the link", n), func() bool { return len(e.links) >= n })
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.links[n-1]
}

func (e *edge) ask(ctx context.Context, m *model.Message) (*model.Message, error) {
	return e.bus.SendSync(ctx, model.ModuleEdgeHub, m)
}

func request(resource string) *model.Message {
	return model.New("edged", model.GroupMeta, model.OpQuery, resource, json.RawMessage("null"))
}

// echo answers each request with its resource.
func echo(m *model.Message) *model.Message {
	a := m.Respond(json.RawMessage(fmt.Sprintf("%q", m.Route.Resource)))
	a.Route.Source, a.Route.Group = "edgecontroller", "resource"
	return a
}

func push(resource string) *model.Message {
	m := model.New("edgecontroller", "resource", model.OpInsert, resource, json.RawMessage(`{"kind":"Pod"}`))
	m.Header.ResourceVersion = "900"
	return m
}
