package edgehub

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
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
		t.Errorf("%s %s, want HTTP/1 and %s", r.Proto, r.URL.Path, "/e632aba927ea4ac2b575ec1603d56f10/edge-1/events")
	}
	for name, want := range map[string]string{"Node_id": "edge-1", "Project_id": "e632aba927ea4ac2b575ec1603d56f10",
		"Connectionuse": "msg", "Origin": ""} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("header %s: %q, want %q", name, got, want)
		}
	}
	u.until("the keepalive that comes first", func() bool { return len(u.got) > 0 })
	if first := u.heard("")[0]; first.Route.Operation != model.OpKeepalive {
		t.Errorf("the first message is %+v, want a keepalive", first)
	}
	if !u.reliably(push("default/pod/web")) {
		t.Error("reliably(push) = false, want it acknowledged")
	}
	answer, err := e.ask(t.Context(), request("default/configmap/web"))
	if err != nil {
		t.Error(err)
	} else if got := string(answer.ContentData()); got != "default/configmap/web" {
		t.Errorf("answer = %q, want %q", got, "default/configmap/web")
	}
	if s := e.hub.State(); !s.Connected || s.Protocol != "websocket" || s.Server != u.addr || s.Since.IsZero() {
		t.Errorf("state %+v, want connected by websocket with server %s", s, u.addr)
	}
}

// TestBeatsKeepLink: keepalives and pings keep a link for longer than the cloud's patience, and this end's.
func TestBeatsKeepLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const heartbeat, beats = 15 * time.Second, 200
		u, _, e := simulate(t, heartbeat+time.Second, func(s *settings) {
			s.heartbeat = heartbeat
			impatient(s)
		})
		e.told(1)
		time.Sleep(beats * heartbeat)
		synctest.Wait()
		if got := len(u.heard(model.OpKeepalive)); got != beats+1 {
			t.Errorf("%d keepalives in %v, want %d", got, beats*heartbeat, beats+1)
		}
		if got := len(u.seen()); got != 1 {
			t.Errorf("%d sessions in %v, want one", got, beats*heartbeat)
		}
	})
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
		t.Error("reliably(answer) = false, want it acknowledged")
	}
	e.until("the object", func() bool { return len(e.got) >= 1 }) // it may come twice
	if got := e.got[0]; got.Route.Operation != model.OpResponse || got.Header.ParentID != "" ||
		got.Route.Resource != "default/configmap/late" || got.Header.ID != answer.Header.ID {
		t.Errorf("metamanager got %+v, want the object of %+v", got, answer)
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
	if answer == nil || answer.Route.Operation != model.OpError ||
		!strings.Contains(string(answer.ContentData()), "not connected to the cloud") {
		t.Errorf("answer %+v, want an error with %q", answer, "not connected to the cloud")
	}
	if link := e.told(2); link.Connected {
		t.Errorf("news 2 of the link = %+v, want it not connected", link)
	}
	answer, err := e.ask(t.Context(), request("default/secret/other"))
	if err != nil {
		t.Error(err)
	} else if got, want := string(answer.ContentData()),
		"not connected to the cloud"; answer.Route.Operation != model.OpError ||
		got != want || answer.Route.Source != "websocket" {
		t.Errorf("offline: %+v with %q, want an error of websocket with %q", answer.Route, got, want)
	}
	if s := e.hub.State(); s.Connected || s.Reason == "" {
		t.Errorf("state %+v, want not connected, with a reason", s)
	}
	proxy.Refuse(false)
	if link := e.told(3); !link.Connected {
		t.Errorf("news 3 of the link = %+v, want it connected", link)
	}
	u.note(func() { u.answer = echo })
	if answer, err := e.ask(t.Context(), request("default/secret/now")); err != nil {
		t.Error(err)
	} else if got := string(answer.ContentData()); got != "default/secret/now" {
		t.Errorf("answer with the new link = %q, want %q", got, "default/secret/now")
	}
}

// TestHalfOpen: a link whose other end is gone without a word is given up within two heartbeats.
func TestHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const heartbeat = 15 * time.Second
		_, proxy, e := simulate(t, time.Hour, func(s *settings) {
			s.heartbeat = heartbeat
			impatient(s)
		})
		for n := range 10 {
			up := 2*n + 1 // the news of the link
			if link := e.told(up); !link.Connected {
				t.Fatalf("news %d: %+v, want a link", up, link)
			}
			time.Sleep(3*heartbeat + time.Duration(n)*heartbeat/10)
			proxy.Silence()
			began := time.Now()
			if link := e.told(up + 1); link.Connected {
				t.Errorf("news %d: %+v, want the loss", up+1, link)
			}
			if took := time.Since(began); took > 2*heartbeat {
				t.Errorf("the silence was noticed after %v, want within two heartbeats (%v)", took, 2*heartbeat)
			}
			proxy.Resume()
		}
	})
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
		if answer, err := e.ask(t.Context(), request("default/secret/"+fmt.Sprint(n))); err != nil {
			t.Errorf("after %s: %v, want an answer", name, err)
		} else if got := answer.Route.Operation; got != model.OpResponse {
			t.Errorf("after %s: answer %s %s, want %s", name, got, answer.Content, model.OpResponse)
		}
	}
}

// TestReconnect: a renewed certificate is used at once, and nothing but a moment is lost.
func TestReconnect(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	e := startEdge(t, u.ca, u.addr, with{settings: func(s *settings) {
		s.backoffMin, s.backoffMax = time.Hour, time.Hour
	}})
	e.told(1)
	renewed := u.ca.Node(t, "edge-1", time.Now().Add(2*time.Hour))
	u.ca.Write(t, filepath.Dir(e.files.Cert), renewed)
	e.hub.Reconnect()
	u.connected(2)
	if got := u.seen()[1].TLS.PeerCertificates[0].SerialNumber; got.Cmp(renewed.Leaf.SerialNumber) != 0 {
		t.Errorf("certificate = %v, want the renewed one, %v", got, renewed.Leaf.SerialNumber)
	}
	if lost, again := e.told(2), e.told(3); lost.Connected || !again.Connected {
		t.Errorf("news of the link = %+v and %+v, want it lost and connected again", lost, again)
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
		return ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(wire.ClosePolicy, why),
			time.Now().Add(time.Minute))
	})
	u.connected(2)
	if got := u.seen()[1].TLS.PeerCertificates[0].SerialNumber; got.Cmp(renewed.Leaf.SerialNumber) != 0 {
		t.Errorf("certificate = %v, want the renewed one, %v", got, renewed.Leaf.SerialNumber)
	}
	if lost, again := e.told(2), e.told(3); lost.Connected || !again.Connected {
		t.Errorf("news of the link = %+v and %+v, want it lost and connected again", lost, again)
	}
}

// TestNetworkComesBack: the next dial does not wait for its turn.
func TestNetworkComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, proxy, e := simulate(t, 2*time.Hour, func(s *settings) {
			s.backoffMin, s.backoffMax = time.Hour, time.Hour
			s.heartbeat, s.targets[0].limits.ReadTimeout = time.Hour, time.Hour
		})
		began := time.Now()
		e.told(1)
		offline(proxy)
		e.told(2)
		proxy.Refuse(false)
		e.network()
		e.told(3)
		// A link that did not survive the change is noticed before its silence is over.
		time.Sleep(time.Second)
		synctest.Wait()
		proxy.Silence()
		e.network()
		e.told(4)
		if s := e.hub.State(); !strings.Contains(s.Reason, "network changed") {
			t.Errorf("the reason is %q, want that the network changed", s.Reason)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("all of it took %v, want no wait for the next dial or heartbeat", took)
		}
	})
}

// TestPace: messages are held to messageQPS and messageBurst, keepalives are not.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, _, e := simulate(t, time.Hour, func(s *settings) {
			s.rate, s.burst = 20, 10
			s.heartbeat = 50 * time.Millisecond
		})
		e.told(1)
		synctest.Wait()
		began, beats := time.Now(), len(u.heard(model.OpKeepalive))
		for i := range 30 {
			m := model.New("edged", model.GroupMeta, model.OpInsert, fmt.Sprintf("default/event/%d", i),
				json.RawMessage(`{}`))
			if err := e.bus.Send(t.Context(), model.ModuleEdgeHub, m); err != nil {
				t.Fatal(err)
			}
		}
		u.until("all messages", func() bool { return u.received(model.OpInsert) == 30 })
		// The wait looks each 10 ms.
		if took := time.Since(began); took < time.Second-10*time.Millisecond || took > time.Second+20*time.Millisecond {
			t.Errorf("20 messages beyond the burst at 20 a second took %v, want 1s", took)
		}
		if n := len(u.heard(model.OpKeepalive)) - beats; n < 19 || n > 21 {
			t.Errorf("%d keepalives meanwhile, want 20, at their own pace", n)
		}
		for i, m := range u.heard(model.OpInsert) {
			if want := fmt.Sprintf("default/event/%d", i); m.Route.Resource != want {
				t.Fatalf("%s came, want %s", m.Route.Resource, want)
			}
		}
	})
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
		if answer, err := e.ask(t.Context(), m); err != nil {
			t.Error(err)
		} else if got := string(answer.ContentData()); answer.Route.Operation != model.OpError ||
			!strings.Contains(got, want) {
			t.Errorf("%s: %s %q, want an error with %q", m.Route.Resource, answer.Route.Operation, got, want)
		}
	}
	if answer, err := e.ask(t.Context(), request("default/secret/a")); err != nil {
		t.Error(err)
	} else if got, n := answer.Route.Operation, len(u.seen()); got != model.OpResponse || n != 1 {
		t.Errorf("afterwards: answer %s %s, %d sessions; want %s and 1", got, answer.Content, n, model.OpResponse)
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
		"edgecore_link_connected": 1, "edgecore_link_connects_total": 2, "edgecore_link_reconnects_total": 1,
		"edgecore_link_messages_total received": 3,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if sent := got["edgecore_link_messages_total sent"]; sent < 5 { // two keepalives, three requests
		t.Errorf("%v messages sent, want 5 or more", sent)
	}
	// Two handshakes with certificates, and the messages.
	if in, out := got["edgecore_link_bytes_total received"], got["edgecore_link_bytes_total sent"]; in < 2000 ||
		out < 2500 || in > 20000 || out > 20000 {
		t.Errorf("%v bytes received, %v sent; want 2000 and 2500 or more, at most 20000", in, out)
	}
}
