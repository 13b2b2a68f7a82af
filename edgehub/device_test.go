package edgehub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// beatNow is the heartbeat of tests.
const beatNow = 400 * time.Millisecond

// impatient makes a device give up a silent link within two heartbeats, as devices do. On a machine that is held up such
// links do not all last.
func impatient(s *settings) { s.targets[0].limits.ReadTimeout = silence(beatNow) }

// edge is a device: a bus with edgehub, and a metamanager that notes what it gets and acknowledges it.
type edge struct {
	t     *testing.T
	hub   *Module
	bus   *beehive.Bus
	files wiretest.Files
	// network says that the network has changed.
	network func()

	mu      sync.Mutex
	got     []*model.Message
	links   []wire.LinkState
	changed chan struct{}
}

func config(files wiretest.Files, server string) v1alpha2.EdgeHub {
	return v1alpha2.EdgeHub{
		Enable: true, Heartbeat: 15, MessageQPS: 30, MessageBurst: 60, ProjectID: "e632aba927ea4ac2b575ec1603d56f10",
		TLSCAFile: files.CA, TLSCertFile: files.Cert, TLSPrivateKeyFile: files.Key,
		WebSocket: v1alpha2.Transport{Enable: true, Server: server, HandshakeTimeout: 30, ReadDeadline: 15, WriteDeadline: 15},
	}
}

// with are changes to a device that a test starts.
type with struct {
	options  func(*Options)
	settings func(*settings)
}

// startEdge runs a device until the test ends.
func startEdge(t *testing.T, ca *wiretest.CA, server string, w with) *edge {
	t.Helper()
	e := &edge{t: t, bus: beehive.New(beehive.WithTimeout(30 * time.Second)), changed: make(chan struct{})}
	e.files = ca.Write(t, t.TempDir(), ca.Node(t, "edge-1", time.Now().Add(time.Hour)))
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
	e.hub = hub
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
				e.t.Errorf("route of the news: %+v", msg.Route)
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
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *edge) until(what string, is func() bool) {
	e.t.Helper()
	end := time.After(time.Minute)
	for {
		e.mu.Lock()
		ok, changed := is(), e.changed
		e.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-end:
			e.t.Fatalf("not in time: %s", what)
		}
	}
}

// told waits for the nth piece of news of the link, and returns it.
func (e *edge) told(n int) wire.LinkState {
	e.t.Helper()
	e.until(fmt.Sprintf("news %d of the link", n), func() bool { return len(e.links) >= n })
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.links[n-1]
}

// pong waits until no answer to a ping is under way.
func (e *edge) pong() {
	e.t.Helper()
	conn, asked := e.hub.session().conn, time.Now()
	if err := conn.Ping(); err != nil {
		e.t.Fatal(err)
	}
	for !conn.Stats().Heard.After(asked) {
		if time.Since(asked) > time.Minute {
			e.t.Fatal("no pong")
		}
		time.Sleep(time.Millisecond)
	}
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
