package edgehub

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// upstream is a cloud that behaves as docs/wire.md says of KubeEdge's: strict in what it takes,
// with no answers to keepalives, no pings of its own, and no word of what it does not like.
type upstream struct {
	t    *testing.T
	ca   *wiretest.CA
	addr string
	// patience is how long it waits for a keepalive message.
	patience time.Duration
	// answer makes the answers to requests; nil: there are none.
	answer func(m *model.Message) *model.Message

	mu       sync.Mutex
	requests []*http.Request
	session  *upstreamSession
	sessions int
	got      []*model.Message
}

// upstreamSession is a connection that it serves.
type upstreamSession struct {
	ws      *websocket.Conn
	writing sync.Mutex
	acks    chan string
	over    chan struct{}
	// code is that of the edge's close frame; it may be read when the session is over.
	code int
}

// newUpstream runs a cloud until the test ends. Its certificate is for this machine, unless names are given.
func newUpstream(t *testing.T, ca *wiretest.CA, names ...string) *upstream {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return newUpstreamOn(t, ca, l, 30*time.Second, names...)
}

// newUpstreamOn runs a cloud on a listener.
func newUpstreamOn(t *testing.T, ca *wiretest.CA, l net.Listener, patience time.Duration, names ...string) *upstream {
	t.Helper()
	u := &upstream{t: t, ca: ca, patience: patience, addr: l.Addr().String()}
	config := ca.ServerTLS(t, names...)
	config.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}
	config.NextProtos = []string{"h2", "http/1.1"}
	s := &http.Server{Handler: http.HandlerFunc(u.serve), TLSConfig: config, ErrorLog: log.New(io.Discard, "", 0)}
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.ServeTLS(l, "", "") })
	t.Cleanup(func() {
		_ = s.Close()
		u.drop()
		wg.Wait()
	})
	return u
}

func (u *upstream) serve(w http.ResponseWriter, r *http.Request) {
	upgrader := websocket.Upgrader{} // no compression, no subprotocol
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer ws.Close()
	s := &upstreamSession{ws: ws, acks: make(chan string, 100), over: make(chan struct{})}
	defer close(s.over)
	u.note(func() {
		u.requests = append(u.requests, r)
		if u.session != nil {
			_ = u.session.ws.Close()
		}
		u.session = s
		u.sessions++
	})
	if r.Header.Get("ConnectionUse") != "msg" || r.Header.Get("node_id") == "" {
		u.complain("a connection without ConnectionUse or node_id; nothing of it is read")
		<-r.Context().Done()
		return
	}
	alive := time.AfterFunc(u.patience, func() { _ = ws.Close() })
	defer alive.Stop()
	for {
		kind, data, err := ws.ReadMessage()
		if closed := (*websocket.CloseError)(nil); errors.As(err, &closed) {
			s.code = closed.Code
		}
		if err != nil {
			return
		}
		var m model.Message
		if err := json.Unmarshal(data, &m); err != nil || kind != websocket.TextMessage {
			u.complain("no message in a text frame: %q", data)
			return
		}
		u.take(s, &m, alive)
	}
}

// take dispatches a message as KubeEdge's cloud does (docs/wire.md, Dispatch).
func (u *upstream) take(s *upstreamSession, m *model.Message, alive *time.Timer) {
	u.note(func() { u.got = append(u.got, m) })
	switch {
	case m.Header.ID == "" || m.Header.Timestamp < 1e11 || m.Header.Sync:
		u.complain("a head that is none: %+v", m.Header)
	case m.Route.Operation == "config" || m.Route.Operation == "ping" || m.Route.Operation == "pong":
		u.complain("operation %s is swallowed", m.Route.Operation)
		s.write(m.Respond(json.RawMessage(`"ack"`)))
	case m.Route.Operation == model.OpKeepalive:
		if m.Route.Source != "websocket" || m.Route.Group != "resource" || m.Route.Resource != "node" ||
			string(m.Content) != `"ping"` {
			u.complain("a keepalive that is none: %+v %s", m.Route, m.Content)
		}
		alive.Reset(u.patience)
	case m.Route.Operation == model.OpResponse:
		s.acks <- m.Header.ParentID
	case strings.HasPrefix(m.Route.Resource, "node/"):
		u.complain("resource %s has the cloud's prefix", m.Route.Resource)
	default:
		switch m.Route.Source {
		case "cloudhub", "cloudStream", "devicecontroller", "edgecontroller", "synccontroller":
			u.complain("source %s is dropped", m.Route.Source)
			return
		}
		u.mu.Lock()
		answer := u.answer
		u.mu.Unlock()
		if answer != nil {
			s.write(answer(m))
		}
	}
}

func (s *upstreamSession) write(m *model.Message) {
	s.writing.Lock()
	defer s.writing.Unlock()
	data, err := json.Marshal(m)
	if err == nil {
		_ = s.ws.WriteMessage(websocket.TextMessage, append(data, '\n'))
	}
}

// reliably sends a message until it is acknowledged, as KubeEdge's cloud does: 5 times, 5 s apart.
func (u *upstream) reliably(m *model.Message) bool {
	s := u.current()
	for range 5 {
		s.write(m)
		again := time.After(5 * time.Second)
		for waiting := true; waiting; {
			select {
			case id := <-s.acks:
				if id == m.Header.ID {
					return true
				}
			case <-again:
				waiting = false
			case <-s.over:
				return false
			}
		}
	}
	return false
}

func (u *upstream) note(change func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change()
}

func (u *upstream) complain(format string, args ...any) {
	u.t.Errorf("upstream cloud: "+format, args...)
}

// current is the newest connection. The edge may know of the first before the cloud does.
func (u *upstream) current() *upstreamSession {
	u.t.Helper()
	u.connected(1)
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.session
}

// drop ends the connection without a word.
func (u *upstream) drop() {
	u.mu.Lock()
	s := u.session
	u.mu.Unlock()
	if s != nil {
		_ = s.ws.Close()
	}
}

// until waits until something is true of the cloud.
func (u *upstream) until(what string, is func() bool) {
	u.t.Helper()
	wait.True(u.t, what, func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		return is()
	})
}

// connected waits for the nth connection.
func (u *upstream) connected(n int) {
	u.t.Helper()
	u.until("connection", func() bool { return u.sessions >= n })
}

// received counts messages of an operation.
func (u *upstream) received(operation string) int {
	n := 0
	for _, m := range u.got {
		if m.Route.Operation == operation {
			n++
		}
	}
	return n
}

// heard returns the messages of an operation; "" is all.
func (u *upstream) heard(operation string) []*model.Message {
	u.mu.Lock()
	defer u.mu.Unlock()
	var list []*model.Message
	for _, m := range u.got {
		if operation == "" || m.Route.Operation == operation {
			list = append(list, m)
		}
	}
	return list
}

// seen returns the requests with which edges connected.
func (u *upstream) seen() []*http.Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.requests)
}

// raw writes to the connection, beside its messages.
func (s *upstreamSession) raw(write func(*websocket.Conn) error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	_ = write(s.ws) // what is too large may be cut off
}
