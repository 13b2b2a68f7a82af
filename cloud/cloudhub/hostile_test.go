package cloudhub

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// raw connects as a node and says nothing.
func (c *cloud) raw(t *testing.T, node string) *websocket.Conn {
	t.Helper()
	dialer := websocket.Dialer{TLSClientConfig: c.clientTLS(c.ca.Node(t, node, time.Now().Add(time.Hour)))}
	ws, _, err := dialer.Dial("wss://"+c.addr+"/", nodeHeader(node))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.Close() })
	return ws
}

// TestHostileFrames: nonsense ends its own session with a reason, and no other.
func TestHostileFrames(t *testing.T) {
	c := startCloud(t, nil)
	good := newEdge(t, "good").dialOurs(c)
	random := make([]byte, 4096)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	for name, frame := range map[string]struct {
		data string
		says string
	}{
		"no JSON":     {"hello", "malformed"},
		"random":      {string(random), "malformed"},
		"an array":    {"[]", "malformed"},
		"deep":        {`{"header":{"msg_id":"a"},"content":` + strings.Repeat("[", 100000) + strings.Repeat("]", 100000) + `}`, "malformed"},
		"wrong types": {`{"header":{"msg_id":7},"route":[]}`, "malformed"},
		"too large":   {`{"header":{"msg_id":"a"},"content":"` + strings.Repeat("x", 9<<20) + `"}`, "close 1009"},
		"cut off":     {`{"header":{"msg_id":"a"`, "malformed"},
	} {
		ws := c.raw(t, "bad")
		if err := ws.WriteMessage(websocket.TextMessage, []byte(frame.data)); err != nil && name != "too large" {
			t.Errorf("%s: %v", name, err)
		}
		_ = ws.SetReadDeadline(time.Now().Add(time.Minute))
		if _, _, err := ws.ReadMessage(); err == nil || !strings.Contains(err.Error(), frame.says) {
			t.Errorf("%s: the session ended with %v, want %q", name, err, frame.says)
		}
	}
	ours, err := wire.DialWebSocket(t.Context(), wire.DialOptions{URL: "wss://" + c.addr + "/", Header: nodeHeader("bad"),
		TLS: c.clientTLS(c.ca.Node(t, "bad", time.Now().Add(time.Hour))), Features: wire.AllFeatures()})
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close(wire.CloseNormal, "")
	if err := ours.Write(model.New(model.ModuleMetaManager, model.GroupResource, wire.OpInventory, wire.ResourceInventory, json.RawMessage(`{"objects":"all"}`))); err != nil {
		t.Fatal(err)
	}
	if _, err := ours.Read(); err == nil || !strings.Contains(err.Error(), "the inventory cannot be read") {
		t.Errorf("the session ended with %v", err)
	}
	if good.ask(model.OpQuery, "default/pod/x", "null") == nil || c.hub.session("good") == nil {
		t.Error("another session ended")
	}
}

// TestNonsenseWithinRules: messages that are well formed and mean nothing are dropped, and nothing of them stays.
func TestNonsenseWithinRules(t *testing.T) {
	c := startCloud(t, nil)
	c.cluster.set("n1", "default/pod/web", "u", "a")
	e := newEdge(t, "n1")
	e.objects["default/pod/web"] = "u/a"
	e.objects["not a key"] = "u/a"
	e.objects["default/pod"] = "u/a"
	e.objects["default/serviceaccounttoken/default"] = "u/a" // it asked for these, and may keep them
	e.objects["null/persistentvolume/pv"] = "u/a"
	e.dialOurs(c)
	eventually(t, "the answer to the inventory", e.isSynced)
	for i := range 2000 {
		m := model.New("edged", model.GroupResource, model.OpResponse, "default/pod/web", model.OK)
		m.Header.ParentID = fmt.Sprint("nobody sent this ", i)
		if i%2 == 0 {
			m.Route.Operation = model.OpError
		}
		if err := e.send(m); err != nil {
			t.Fatal(err)
		}
	}
	if reply := e.ask(model.OpQuery, "default/pod/web", "null"); reply == nil {
		t.Error("no answer")
	}
	if n := len(e.lines()); n != 0 {
		t.Errorf("sent %v", e.lines())
	}
}

// TestBrokenHandler: a request that breaks whoever handles it costs its session.
func TestBrokenHandler(t *testing.T) {
	c := startCloud(t, nil)
	c.api.handle = func(context.Context, string, *model.Message) *model.Message { panic("out of range") }
	e := newEdge(t, "n1").dialOurs(c)
	if err := e.send(model.New("edged", model.GroupMeta, model.OpQuery, "default/pod/x", nil)); err != nil {
		t.Fatal(err)
	}
	if err := e.waitEnd(); err == nil || !strings.Contains(err.Error(), "could not be handled") {
		t.Errorf("ended with %v", err)
	}
}

// TestFlood: requests about one object come in order and one at a time, a few objects beside each other; a node that
// asks faster than it is answered is slowed down, and others are not.
func TestFlood(t *testing.T) {
	c := startCloud(t, nil)
	var mu sync.Mutex
	beside, most := 0, 0
	busy, last := map[string]bool{}, map[string]int{}
	slow := make(chan struct{})
	c.api.handle = func(_ context.Context, node string, m *model.Message) *model.Message {
		if node == "calm" {
			return m.Respond(model.OK)
		}
		lane := laneOf(m.Route.Resource)
		var n int
		_ = json.Unmarshal(m.Content, &n)
		mu.Lock()
		if busy[lane] {
			t.Errorf("two requests about %s at the same time", lane)
		}
		if n <= last[lane] {
			t.Errorf("%s: %d after %d", lane, n, last[lane])
		}
		busy[lane], last[lane] = true, n
		beside++
		most = max(most, beside)
		mu.Unlock()
		<-slow
		mu.Lock()
		beside--
		busy[lane] = false
		mu.Unlock()
		return m.Respond(model.OK)
	}
	flood, calm := newEdge(t, "flood").dialOurs(c), newEdge(t, "calm").dialOurs(c)
	const requests = 2000
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range requests {
			name := fmt.Sprintf("default/%s/o%d", []string{"podpatch", "pod", "podstatus"}[i%3], i%20)
			if err := flood.send(model.New("edged", model.GroupMeta, model.OpPatch, name, json.RawMessage(fmt.Sprint(i+1)))); err != nil {
				t.Error(err)
			}
		}
	}()
	eventually(t, "the limit", func() bool { s := c.hub.session("flood"); return s != nil && s.stalled.Load() })
	if n := c.hub.session("flood").lanes.unanswered(); n > lanePending {
		t.Errorf("%d requests wait", n)
	}
	if calm.ask(model.OpQuery, "default/pod/x", "null") == nil {
		t.Error("another node was held up")
	}
	atMost := func() int { mu.Lock(); defer mu.Unlock(); return most }
	eventually(t, "requests beside each other", func() bool { return atMost() >= laneParallel })
	close(slow)
	<-sent
	eventually(t, "all answers", func() bool {
		flood.mu.Lock()
		defer flood.mu.Unlock()
		return len(flood.answers) >= requests
	})
	if n := atMost(); n != laneParallel {
		t.Errorf("%d requests beside each other", n)
	}
	// An answer leaves before its request is crossed out.
	eventually(t, "no request to be left", func() bool { return c.hub.session("flood").lanes.unanswered() == 0 })
}

// TestDeafNode: a node that reads nothing loses its session when the write deadline is over; others do not notice.
func TestDeafNode(t *testing.T) {
	c := startCloud(t, func(o *Options) { o.WriteTimeout = 2 * time.Second })
	good := newEdge(t, "good").dialOurs(c)
	dialer := websocket.Dialer{
		TLSClientConfig: c.clientTLS(c.ca.Node(t, "deaf", time.Now().Add(time.Hour))),
		NetDial: func(network, addr string) (net.Conn, error) {
			conn, err := net.Dial(network, addr)
			if err == nil {
				_ = conn.(*net.TCPConn).SetReadBuffer(4096)
			}
			return conn, err
		},
	}
	ws, _, err := dialer.Dial("wss://"+c.addr+"/", nodeHeader("deaf"))
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	eventually(t, "the session", func() bool { return c.hub.session("deaf") != nil })
	big := strings.Repeat("x", 1<<20)
	began := time.Now()
	c.api.handle = func(_ context.Context, _ string, m *model.Message) *model.Message {
		content, _ := json.Marshal(big)
		return m.Respond(content)
	}
	for i := range 40 {
		if err := ws.WriteJSON(model.New("edged", model.GroupMeta, model.OpQuery, fmt.Sprintf("default/secret/s%d", i), json.RawMessage("null"))); err != nil {
			break
		}
	}
	eventually(t, "the session to end", func() bool { return c.hub.session("deaf") == nil })
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("it took %v", took)
	}
	c.cluster.set("good", "default/pod/web", "u", "a")
	settled(t, c, good)
	for _, line := range c.api.noted() {
		if strings.HasPrefix(line, "disconnected deaf") && !strings.Contains(line, "the network took nothing") {
			t.Error(line)
		}
	}
}

// TestTooLargeForTheLink: what does not go over the link holds up nothing else, and who asked for it is told.
func TestTooLargeForTheLink(t *testing.T) {
	c := startCloud(t, nil)
	huge, err := json.Marshal(strings.Repeat("x", 9<<20))
	if err != nil {
		t.Fatal(err)
	}
	c.api.handle = func(_ context.Context, _ string, m *model.Message) *model.Message { return m.Respond(huge) }
	c.cluster.set("n1", "default/secret/huge", "u-h", strings.Repeat("x", 9<<20))
	c.cluster.set("n1", "default/pod/web", "u-w", "a")
	e := newEdge(t, "n1").dialOurs(c)
	eventually(t, "the pod", func() bool { return e.holds()["default/pod/web"] != "" })
	if reply := e.ask(model.OpQuery, "default/secret/huge", "null"); reply.Route.Operation != model.OpError || !strings.Contains(string(reply.ContentData()), "larger than") {
		t.Errorf("answer %s %.100s", reply.Route.Operation, reply.Content)
	}
	c.cluster.set("n1", "default/secret/huge", "u-h", "smaller now")
	settled(t, c, e)
	eventually(t, "the answer to the inventory", e.isSynced)
}

// TestTooManyMessages: a node that sends without an end is read slowly, and loses nothing by that.
func TestTooManyMessages(t *testing.T) {
	c := startCloud(t, nil)
	loud, calm := newEdge(t, "loud").dialUpstream(c), newEdge(t, "calm").dialUpstream(c)
	const atOnce = 500
	began, sent := time.Now(), 0
	eventually(t, "the node to be slowed down", func() bool { // which takes more messages where they are read slowly
		for range atOnce {
			loud.keepalive()
		}
		sent += atOnce
		s := c.hub.session("loud")
		return s != nil && s.stalled.Load()
	})
	calm.ask(model.OpQuery, "default/pod/x", "null")
	loud.ask(model.OpQuery, "default/pod/x", "null")
	if took := time.Since(began); took < time.Duration(sent-readBurst)*time.Second/readRate*9/10 {
		t.Errorf("%d messages were read in %v", sent, took)
	}
}
