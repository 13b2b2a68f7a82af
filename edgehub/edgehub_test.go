package edgehub

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
)

// TestUpstreamCloud: what a cloud of KubeEdge sees of the edge, and the edge of it.
func TestUpstreamCloud(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	u.answer = echo
	e := startEdge(t, u.ca, u.addr, with{})
	if link := e.told(1); !link.Connected || link.Features != (wire.Features{}) {
		t.Errorf("told %+v, want a plain link", link)
	}
	u.connected(1)
	r := u.seen()[0]
	if r.URL.Path != "/e632aba927ea4ac2b575ec1603d56f10/edge-1/events" || r.ProtoMajor != 1 {
		t.Errorf("%s %s", r.Proto, r.URL.Path)
	}
	for name, want := range map[string]string{"Node_id": "edge-1", "Project_id": "e632aba927ea4ac2b575ec1603d56f10", "Connectionuse": "msg", "Origin": ""} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("header %s: %q, want %q", name, got, want)
		}
	}
	u.until("the keepalive that comes first", func() bool { return len(u.got) > 0 })
	if first := u.heard("")[0]; first.Route.Operation != model.OpKeepalive {
		t.Errorf("the first message is %+v", first)
	}
	if !u.reliably(push("default/pod/web")) {
		t.Error("a push was not acknowledged")
	}
	answer, err := e.ask(t.Context(), request("default/configmap/web"))
	if err != nil || string(answer.ContentData()) != "default/configmap/web" {
		t.Errorf("answer %v, %v", answer, err)
	}
	if s := e.hub.State(); !s.Connected || s.Protocol != "websocket" || s.Server != u.addr || s.Since.IsZero() {
		t.Errorf("state %+v", s)
	}
}

// TestBeatsKeepLink: keepalives and pings keep a link for longer than the cloud's patience, and this end's. One of some
// tries has to show it.
func TestBeatsKeepLink(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	u.patience = 2 * beatNow
	startEdge(t, u.ca, u.addr, with{settings: impatient})
	for range 10 {
		u.connected(1)
		sessions, beats := len(u.seen()), len(u.heard(model.OpKeepalive))
		u.until("more keepalives", func() bool { return u.received(model.OpKeepalive) >= beats+5 })
		if len(u.seen()) == sessions {
			return
		}
	}
	t.Errorf("%d sessions; want one link all the time", len(u.seen()))
}

// offline cuts the link, and keeps it cut.
func offline(p *wiretest.Proxy) {
	p.Refuse(true)
	p.Cut()
}

// TestLateAnswer: an answer that comes after its link, or twice, is stored and acknowledged all the same.
func TestLateAnswer(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	e := startEdge(t, u.ca, u.addr, with{})
	e.told(1)
	go func() { _, _ = e.ask(t.Context(), request("default/configmap/late")) }()
	u.until("the request", func() bool { return u.received(model.OpQuery) == 1 })
	answer := echo(u.heard(model.OpQuery)[0])
	answer.Header.ResourceVersion = "77"
	u.drop()
	e.told(3)
	u.until("the new link", func() bool { return u.sessions == 2 }) // the edge may know of it first
	if !u.reliably(answer) {
		t.Error("the answer was not acknowledged")
	}
	e.until("the object", func() bool { return len(e.got) >= 1 }) // it may come twice
	if got := e.got[0]; got.Route.Operation != model.OpUpdate || got.Route.Resource != "default/configmap/late" || got.Header.ID != answer.Header.ID {
		t.Errorf("metamanager got %+v", got)
	}
}

// TestOffline: what cannot be sent is answered at once, and so is what was under way when the link went.
func TestOffline(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	proxy := wiretest.NewProxy(t, u.addr)
	e := startEdge(t, u.ca, proxy.Addr(), with{})
	e.told(1)
	waiting := make(chan *model.Message, 1)
	go func() {
		answer, err := e.ask(t.Context(), request("default/secret/slow"))
		if err != nil {
			t.Error(err)
		}
		waiting <- answer
	}()
	u.until("the request", func() bool { return u.received(model.OpQuery) == 1 })
	offline(proxy)
	answer := <-waiting
	if answer == nil || answer.Route.Operation != model.OpError || !strings.Contains(string(answer.ContentData()), "not connected to the cloud") {
		t.Errorf("answer %+v", answer)
	}
	if link := e.told(2); link.Connected {
		t.Error("the loss was not told")
	}
	answer, err := e.ask(t.Context(), request("default/secret/other"))
	if err != nil || answer.Route.Operation != model.OpError || string(answer.ContentData()) != "not connected to the cloud" || answer.Route.Source != "websocket" {
		t.Errorf("offline: %+v, %v", answer, err)
	}
	if s := e.hub.State(); s.Connected || s.Reason == "" {
		t.Errorf("state %+v", s)
	}
	proxy.Refuse(false)
	if link := e.told(3); !link.Connected {
		t.Error("the new link was not told")
	}
	u.note(func() { u.answer = echo })
	if answer, err := e.ask(t.Context(), request("default/secret/now")); err != nil || string(answer.ContentData()) != "default/secret/now" {
		t.Errorf("after it: %v, %v", answer, err)
	}
}

// TestHalfOpen: a link whose other end is gone without a word is given up within two heartbeats.
func TestHalfOpen(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	proxy := wiretest.NewProxy(t, u.addr)
	e := startEdge(t, u.ca, proxy.Addr(), with{settings: impatient})
	e.told(1)
	u.until("a few heartbeats", func() bool { return u.received(model.OpKeepalive) >= 3 })
	best := time.Hour
	for range 10 { // one of them: the machine may be busy with other things
		var up int // the news of the link
		e.until("a link", func() bool { up = len(e.links); return e.links[up-1].Connected })
		began := time.Now()
		proxy.Silence()
		if link := e.told(up + 1); link.Connected {
			t.Error("the loss was not told")
		}
		best = min(best, time.Since(began))
		proxy.Resume()
		if link := e.told(up + 2); !link.Connected {
			t.Error("no new link")
		}
		if best <= 2*beatNow+200*time.Millisecond {
			return
		}
	}
	t.Errorf("noticed after %v at best, want within two heartbeats (%v)", best, 2*beatNow)
}

// TestBadFrames: whatever the cloud sends, the session ends with a reason, and the next one works.
func TestBadFrames(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	u.answer = echo
	e := startEdge(t, u.ca, u.addr, with{})
	text := func(s string) func(*websocket.Conn) error {
		return func(ws *websocket.Conn) error { return ws.WriteMessage(websocket.TextMessage, []byte(s)) }
	}
	n := 0
	for name, c := range map[string]struct {
		code int
		send func(*websocket.Conn) error
	}{
		"no JSON":   {wire.CloseMalformed, text("hello")},
		"no id":     {wire.CloseMalformed, text("{}")},
		"too deep":  {wire.CloseMalformed, text(strings.Repeat("[", 1000))},
		"oversized": {wire.CloseTooLarge, text(`{"content":"` + strings.Repeat("x", wire.DefaultMaxMessage) + `"}`)},
		"cut": {0, func(ws *websocket.Conn) error {
			_, err := ws.NetConn().Write([]byte{0x81, 0x7e, 1, 0, 'x'})
			return errors.Join(err, ws.NetConn().Close())
		}},
	} {
		n++
		e.told(2*n - 1)
		u.connected(n)
		s := u.current()
		s.raw(c.send)
		<-s.over
		if c.code != 0 && s.code != c.code {
			t.Errorf("%s: closed with %d, want %d", name, s.code, c.code)
		}
		e.told(2*n + 1)
		if answer, err := e.ask(t.Context(), request("default/secret/"+fmt.Sprint(n))); err != nil || answer.Route.Operation != model.OpResponse {
			t.Errorf("after %s: %v, %v", name, answer, err)
		}
	}
}

// TestReconnect: a renewed certificate is used at once, and nothing but a moment is lost.
func TestReconnect(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	e := startEdge(t, u.ca, u.addr, with{settings: func(s *settings) { s.backoffMin, s.backoffMax = time.Hour, time.Hour }})
	e.told(1)
	renewed := u.ca.Node(t, "edge-1", time.Now().Add(2*time.Hour))
	u.ca.Write(t, filepath.Dir(e.files.Cert), renewed)
	e.hub.Reconnect()
	u.connected(2)
	if got := u.seen()[1].TLS.PeerCertificates[0].SerialNumber; got.Cmp(renewed.Leaf.SerialNumber) != 0 {
		t.Error("the old certificate was used")
	}
	if e.told(2).Connected || !e.told(3).Connected {
		t.Error("news of the link are wrong")
	}
	// With no link and an hour to wait, it dials at once, too.
	u.drop()
	e.told(4)
	e.hub.Reconnect()
	e.told(5)
}

// TestCertificateEnded: a cloud that ends the link at the end of the certificate gets the next one.
func TestCertificateEnded(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	e := startEdge(t, u.ca, u.addr, with{})
	e.told(1)
	renewed := u.ca.Node(t, "edge-1", time.Now().Add(2*time.Hour))
	u.ca.Write(t, filepath.Dir(e.files.Cert), renewed)
	const why = "the certificate of this connection ended at 2026-11-21T10:00:00Z"
	u.current().raw(func(ws *websocket.Conn) error {
		return ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(wire.ClosePolicy, why), time.Now().Add(time.Minute))
	})
	u.connected(2)
	if got := u.seen()[1].TLS.PeerCertificates[0].SerialNumber; got.Cmp(renewed.Leaf.SerialNumber) != 0 {
		t.Error("the old certificate was used")
	}
	if e.told(2).Connected || !e.told(3).Connected {
		t.Error("news of the link are wrong")
	}
}

// TestNetworkComesBack: the next dial does not wait for its turn.
func TestNetworkComesBack(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	proxy := wiretest.NewProxy(t, u.addr)
	e := startEdge(t, u.ca, proxy.Addr(), with{settings: func(s *settings) {
		s.backoffMin, s.backoffMax = time.Hour, time.Hour
		s.heartbeat, s.targets[0].limits.ReadTimeout = time.Hour, time.Minute // no pings but this test's own
	}})
	e.told(1)
	offline(proxy)
	e.told(2)
	proxy.Refuse(false)
	e.network()
	e.told(3)
	// A link that did not survive the change is noticed before its silence is over.
	e.pong()
	proxy.Silence()
	e.network()
	e.told(4)
	if s := e.hub.State(); !strings.Contains(s.Reason, "network changed") {
		t.Errorf("reason %q", s.Reason)
	}
}

// TestPace: messages are held to messageQPS and messageBurst, keepalives are not.
func TestPace(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	e := startEdge(t, u.ca, u.addr, with{settings: func(s *settings) {
		s.rate, s.burst = 20, 10
		s.heartbeat = 50 * time.Millisecond
	}})
	e.told(1)
	began := time.Now()
	for i := range 30 {
		m := model.New("edged", model.GroupMeta, model.OpInsert, fmt.Sprintf("default/event/%d", i), json.RawMessage(`{}`))
		if err := e.bus.Send(t.Context(), model.ModuleEdgeHub, m); err != nil {
			t.Fatal(err)
		}
	}
	u.until("all messages", func() bool { return u.received(model.OpInsert) == 30 })
	if took := time.Since(began); took < 900*time.Millisecond || took > 10*time.Second {
		t.Errorf("20 messages beyond the burst at 20 a second took %v", took)
	}
	if n := len(u.heard(model.OpKeepalive)); n < 3 {
		t.Errorf("%d keepalives meanwhile, want them at their own pace", n)
	}
	for i, m := range u.heard(model.OpInsert) {
		if want := fmt.Sprintf("default/event/%d", i); m.Route.Resource != want {
			t.Fatalf("%s came, want %s", m.Route.Resource, want)
		}
	}
}

// TestUnsendable: a message that cannot be sent costs its sender an error, and nobody the link.
func TestUnsendable(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	u.answer = echo
	e := startEdge(t, u.ca, u.addr, with{settings: func(s *settings) { s.targets[0].limits.MaxMessage = 64 << 10 }})
	e.told(1)
	large, broken := request("default/secret/large"), request("default/secret/broken")
	large.Content, broken.Content = json.RawMessage(`"`+strings.Repeat("x", 70<<10)+`"`), json.RawMessage(`{`)
	for m, want := range map[*model.Message]string{large: "larger than 65536", broken: "unexpected end of JSON"} {
		if answer, err := e.ask(t.Context(), m); err != nil || answer.Route.Operation != model.OpError || !strings.Contains(string(answer.ContentData()), want) {
			t.Errorf("%s: %v, %v", m.Route.Resource, answer, err)
		}
	}
	if answer, err := e.ask(t.Context(), request("default/secret/a")); err != nil || answer.Route.Operation != model.OpResponse || len(u.seen()) != 1 {
		t.Errorf("afterwards: %v, %v, %d sessions", answer, err, len(u.seen()))
	}
}

// TestMetrics: what the collector says is what happened.
func TestMetrics(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	u.answer = echo
	e := startEdge(t, u.ca, u.addr, with{})
	e.told(1)
	for range 2 {
		if _, err := e.ask(t.Context(), request("default/secret/a")); err != nil {
			t.Fatal(err)
		}
	}
	u.drop()
	e.told(3)
	if _, err := e.ask(t.Context(), request("default/secret/a")); err != nil {
		t.Fatal(err)
	}
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(e.hub); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"edgecore_link_connected": 1, "edgecore_link_connects_total": 2, "edgecore_link_reconnects_total": 1, "edgecore_link_messages_total received": 3,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if sent := got["edgecore_link_messages_total sent"]; sent < 5 { // two keepalives, three requests
		t.Errorf("%v messages sent", sent)
	}
	// Two handshakes with certificates, and the messages.
	if in, out := got["edgecore_link_bytes_total received"], got["edgecore_link_bytes_total sent"]; in < 2000 || out < 2500 || in > 20000 || out > 20000 {
		t.Errorf("%v bytes received, %v sent", in, out)
	}
}
