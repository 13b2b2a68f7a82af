package cloudhub

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// edge is a peer that stores what it is sent, and acks.
type edge struct {
	t    testing.TB
	node string
	send func(*model.Message) error
	bye  func()

	mu      sync.Mutex
	objects map[string]string // name -> uid/version
	rvs     map[string]string
	got     []*model.Message
	raw     []string
	answers map[string]*model.Message
	mute    bool
	refuse  map[string]bool
	synced  bool
	ended   error
	gone    chan struct{}
}

func newEdge(t testing.TB, node string) *edge {
	return &edge{
		t:       t,
		node:    node,
		objects: map[string]string{},
		rvs:     map[string]string{},
		answers: map[string]*model.Message{},
		refuse:  map[string]bool{},
		gone:    make(chan struct{}),
	}
}

// dialUpstream connects as an edge of upstream: nothing but JSON messages over a WebSocket.
func (e *edge) dialUpstream(c *cloud) *edge {
	e.t.Helper()
	dialer := websocket.Dialer{
		TLSClientConfig: c.clientTLS(c.ca.Node(e.t, e.node, time.Now().Add(time.Hour))),
		NetDialContext:  c.dial,
	}
	ws, _, err := dialer.Dial("wss://"+c.addr+"/e632/"+e.node+"/events", nodeHeader(e.node))
	if err != nil {
		e.t.Fatal(err)
	}
	var writing sync.Mutex
	e.send = func(m *model.Message) error {
		writing.Lock()
		defer writing.Unlock()
		return ws.WriteJSON(m)
	}
	e.bye = sync.OnceFunc(func() { _ = ws.Close(); <-e.gone })
	go func() {
		defer close(e.gone)
		defer ws.Close() // the other end waits for that
		for {
			kind, data, err := ws.ReadMessage()
			if err != nil {
				e.end(err)
				return
			}
			var m model.Message
			if err := json.Unmarshal(data, &m); err != nil || kind != websocket.TextMessage {
				e.t.Errorf("the cloud sent %q of type %d, %v; want a text message in JSON", data, kind, err)
				return
			}
			e.receive(&m, string(data))
		}
	}()
	e.t.Cleanup(e.bye)
	e.keepalive()
	return e
}

// dialOurs connects as an edge of ours, and tells what it holds.
func (e *edge) dialOurs(c *cloud) *edge {
	e.t.Helper()
	return e.over(c.dialNode(e.t, e.node))
}

// over serves a link of ours.
func (e *edge) over(conn wire.Conn) *edge {
	e.send = conn.Write
	e.bye = sync.OnceFunc(func() { _ = conn.Close(wire.CloseNormal, ""); <-e.gone })
	go func() {
		defer close(e.gone)
		defer conn.Close(wire.CloseNormal, "") // the other end waits for that
		for {
			m, err := conn.Read()
			if err != nil {
				e.end(err)
				return
			}
			e.receive(m, "")
		}
	}()
	e.t.Cleanup(e.bye)
	e.tell()
	return e
}

func (e *edge) tell() {
	e.mu.Lock()
	var held []wire.Held
	for key, o := range e.objects {
		uid, version, _ := cut(o)
		held = append(held, wire.Held{Key: key, UID: uid, Version: version})
	}
	e.mu.Unlock()
	m, err := wire.NewInventory(held)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := e.send(m); err != nil {
		e.t.Error(err)
	}
}

func (e *edge) end(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = err
}

func (e *edge) keepalive() {
	_ = e.send(&model.Message{Header: model.Header{ID: model.NewID(), Timestamp: time.Now().UnixMilli()},
		Route: model.Route{
			Source:    "websocket",
			Group:     "resource",
			Operation: "keepalive",
			Resource:  "node",
		}, Content: json.RawMessage(`"ping"`)})
}

func cut(o string) (uid, version string, ok bool) {
	for i := range o {
		if o[i] == '/' {
			return o[:i], o[i+1:], true
		}
	}
	return o, "", false
}

// receive does what metamanager does: answers are noted, objects stored and acked.
func (e *edge) receive(m *model.Message, raw string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.raw = append(e.raw, raw)
	if m.IsResponse() {
		e.answers[m.Header.ParentID] = m
		var synced wire.Synced
		if json.Unmarshal(m.Content, &synced) == nil && synced.Synced {
			e.synced = true
		}
		return
	}
	e.got = append(e.got, m)
	if e.mute {
		return
	}
	if e.refuse[m.Route.Resource] {
		_ = e.send(m.RespondError(model.ModuleMetaManager, fmt.Errorf("the disk is full")))
		return
	}
	var o struct {
		APIVersion, Kind string
		Metadata         struct{ Name, Namespace, UID, ResourceVersion string }
		Spec             struct{ Is string }
	}
	if err := json.Unmarshal(m.Content, &o); err != nil {
		e.t.Errorf("%s: %v, want JSON: %s", m.Route.Resource, err, m.Content)
	}
	if o.APIVersion == "" || o.Kind == "" {
		e.t.Errorf("%s %s: apiVersion %q, kind %q; want both: %s", m.Route.Operation, m.Route.Resource, o.APIVersion,
			o.Kind,
			m.Content)
	}
	switch m.Route.Operation {
	case model.OpInsert, model.OpUpdate:
		e.objects[m.Route.Resource] = o.Metadata.UID + "/" + o.Spec.Is
		e.rvs[m.Route.Resource] = m.Header.ResourceVersion
	case model.OpDelete:
		if uid, _, _ := cut(e.objects[m.Route.Resource]); uid == o.Metadata.UID {
			delete(e.objects, m.Route.Resource)
		}
	}
	_ = e.send(m.Respond(model.OK))
}

func (e *edge) setMute(mute bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mute = mute
}

// received is how often an object was sent.
func (e *edge) received(name string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range e.got {
		if m.Route.Resource == name {
			n++
		}
	}
	return n
}

// version is the resource version of what the edge has stored.
func (e *edge) version(name string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rvs[name]
}

func (e *edge) holds() map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.objects)
}

// lines are the pushes so far, in short. One that was sent again, as no ack came for long, counts once.
func (e *edge) lines() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []string
	seen := map[string]bool{}
	for _, m := range e.got {
		if !seen[m.Header.ID] {
			all = append(all, m.Route.Operation+" "+m.Route.Resource)
		}
		seen[m.Header.ID] = true
	}
	return all
}

func (e *edge) answer(id string) *model.Message {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.answers[id]
}

func (e *edge) isSynced() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.synced
}

// ask sends a request and waits for the answer.
func (e *edge) ask(operation, name string, content string) *model.Message {
	e.t.Helper()
	m := model.New(model.ModuleEdged, model.GroupMeta, operation, name, json.RawMessage(content))
	if err := e.send(m); err != nil {
		e.t.Fatal(err)
	}
	var reply *model.Message
	wait.True(e.t, "an answer to "+operation+" "+name, func() bool {
		reply = e.answer(m.Header.ID)
		return reply != nil
	})
	return reply
}

// waitEnd waits until the link ended, and says how.
func (e *edge) waitEnd() error {
	e.t.Helper()
	wait.Closed(e.t, "the end of the link of "+e.node, e.gone)
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended
}
