package cloudhub

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// raw connects as a node and says nothing.
func (c *cloud) raw(t *testing.T, node string) *websocket.Conn {
	t.Helper()
	dialer := websocket.Dialer{
		TLSClientConfig: c.clientTLS(c.ca.Node(t, node, time.Now().Add(time.Hour))),
		NetDialContext:  c.dial,
	}
	ws, _, err := dialer.Dial("wss://"+c.addr+"/", nodeHeader(node))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.Close() })
	return ws
}

// TestHostileFrames: nonsense ends its own session with a reason, and no other.
func TestHostileFrames(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	c := startCloud(t, func(o *Options) { o.MaxMessage = limit })
	good := newEdge(t, "good").dialOurs(c)
	random := make([]byte, 4096)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	deep := strings.Repeat("[", 100000) + strings.Repeat("]", 100000)
	for name, frame := range map[string]struct {
		data string
		says string
	}{
		"no JSON":     {"hello", "malformed"},
		"random":      {string(random), "malformed"},
		"an array":    {"[]", "malformed"},
		"deep":        {`{"header":{"msg_id":"a"},"content":` + deep + `}`, "malformed"},
		"wrong types": {`{"header":{"msg_id":7},"route":[]}`, "malformed"},
		"too large":   {`{"header":{"msg_id":"a"},"content":"` + strings.Repeat("x", limit) + `"}`, "close 1009"},
		"cut off":     {`{"header":{"msg_id":"a"`, "malformed"},
	} {
		ws := c.raw(t, "bad")
		if err := ws.WriteMessage(websocket.TextMessage, []byte(frame.data)); err != nil && name != "too large" {
			t.Errorf("%s: WriteMessage = %v, want no error", name, err)
		}
		ended := make(chan error, 1)
		go func() {
			_, _, err := ws.ReadMessage()
			_ = ws.Close() // the other end waits for that
			ended <- err
		}()
		err := wait.Receive(t, "the end of a session with "+name, ended)
		if err == nil || !strings.Contains(err.Error(), frame.says) {
			t.Errorf("%s: the session ended with %v, want %q", name, err, frame.says)
		}
	}
	ours := c.dialNode(t, "bad")
	defer ours.Close(wire.CloseNormal, "")
	inventory := model.New(model.ModuleMetaManager, model.GroupResource, wire.OpInventory, wire.ResourceInventory,
		json.RawMessage(`{"objects":"all"}`))
	if err := ours.Write(inventory); err != nil {
		t.Fatal(err)
	}
	want := "the inventory cannot be read"
	if _, err := ours.Read(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the session ended with %v, want %q", err, want)
	}
	if answer := good.ask(model.OpQuery, "default/pod/x", "null"); answer == nil || c.hub.session("good") == nil {
		t.Errorf("another session: answer %v, session %v; want both", answer, c.hub.session("good") != nil)
	}
}

// TestNonsenseWithinRules: messages that are well formed and mean nothing are dropped, and nothing of them stays.
func TestNonsenseWithinRules(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		c.cluster.set("n1", "default/pod/web", "u", "a")
		e := newEdge(t, "n1")
		e.objects["default/pod/web"] = "u/a"
		e.objects["not a key"] = "u/a"
		e.objects["default/pod"] = "u/a"
		e.objects["default/serviceaccounttoken/default"] = "u/a" // it asked for these, and may keep them
		e.objects["null/persistentvolume/pv"] = "u/a"
		e.dialOurs(c)
		wait.True(t, "the answer to the inventory", e.isSynced)
		for i := range 400 {
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
			t.Error("answer to a query = nil, want one")
		}
		if got := e.lines(); len(got) != 0 {
			t.Errorf("sent %v, want nothing", got)
		}
	})
}

// TestBrokenHandler: a request that crashes its handler costs its session.
func TestBrokenHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		c.api.handle = func(context.Context, string, *model.Message) *model.Message { panic("out of range") }
		e := newEdge(t, "n1").dialOurs(c)
		if err := e.send(model.New("edged", model.GroupMeta, model.OpQuery, "default/pod/x", nil)); err != nil {
			t.Fatal(err)
		}
		if err := e.waitEnd(); err == nil || !strings.Contains(err.Error(), "a request of this node failed") {
			t.Errorf("ended with %v, want that a request failed", err)
		}
	})
}

// TestFlood: requests about one object come in order and one at a time, a few objects beside each other; a node that
// asks faster than it is answered is slowed down, and others are not.
func TestFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		var mu sync.Mutex
		beside, most := 0, 0
		busy, last := map[string]bool{}, map[string]int{}
		slow := make(chan struct{})
		c.api.handle = func(_ context.Context, node string, m *model.Message) *model.Message {
			if node == "calm" {
				return m.Respond(model.OK)
			}
			queue := executorKey(m)
			var n int
			_ = json.Unmarshal(m.Content, &n)
			mu.Lock()
			if busy[queue] {
				t.Errorf("%s: request %d while another is handled, want one at a time", queue, n)
			}
			if n <= last[queue] {
				t.Errorf("%s: request %d after %d, want them in order", queue, n, last[queue])
			}
			busy[queue], last[queue] = true, n
			beside++
			most = max(most, beside)
			mu.Unlock()
			<-slow
			mu.Lock()
			beside--
			busy[queue] = false
			mu.Unlock()
			return m.Respond(model.OK)
		}
		flood, calm := newEdge(t, "flood").dialOurs(c), newEdge(t, "calm").dialOurs(c)
		const requests = 2 * executorPending
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for i := range requests {
				name := fmt.Sprintf("default/%s/o%d", []string{"podpatch", "pod", "podstatus"}[i%3], i%20)
				content := json.RawMessage(fmt.Sprint(i + 1))
				if err := flood.send(model.New("edged", model.GroupMeta, model.OpPatch, name, content)); err != nil {
					t.Error(err)
				}
			}
		}()
		wait.True(t, "the limit", func() bool { s := c.hub.session("flood"); return s != nil && s.stalled.Load() })
		if n := c.hub.session("flood").executor.unanswered(); n > executorPending {
			t.Errorf("%d requests are unanswered, want at most %d", n, executorPending)
		}
		if calm.ask(model.OpQuery, "default/pod/x", "null") == nil {
			t.Error("answer to the query of another node = nil, want one")
		}
		atMost := func() int { mu.Lock(); defer mu.Unlock(); return most }
		wait.True(t, "requests beside each other", func() bool { return atMost() >= executorParallel })
		close(slow)
		<-sent
		wait.True(t, "all answers", func() bool {
			flood.mu.Lock()
			defer flood.mu.Unlock()
			return len(flood.answers) >= requests
		})
		if n := atMost(); n != executorParallel {
			t.Errorf("%d requests beside each other, want %d", n, executorParallel)
		}
		// An answer leaves before its request is crossed out.
		wait.True(t, "no request to be left", func() bool { return c.hub.session("flood").executor.unanswered() == 0 })
	})
}

// TestDeafNode: a node that reads nothing loses its session when the write deadline is over; others do not notice.
func TestDeafNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const deadline = 2 * time.Second
		c := startInMemory(t, func(o *Options) { o.WriteTimeout = deadline })
		good := newEdge(t, "good").dialOurs(c)
		ws := c.raw(t, "deaf")
		wait.True(t, "the session", func() bool { return c.hub.session("deaf") != nil })
		big, err := json.Marshal(strings.Repeat("x", 1<<20)) // more than waits in the network
		if err != nil {
			t.Fatal(err)
		}
		c.api.handle = func(_ context.Context, _ string, m *model.Message) *model.Message { return m.Respond(big) }
		query := model.New("edged", model.GroupMeta, model.OpQuery, "default/secret/s", json.RawMessage("null"))
		if err := ws.WriteJSON(query); err != nil {
			t.Fatal(err)
		}
		asked := time.Now()
		wait.True(t, "the session to end", func() bool { return c.hub.session("deaf") == nil })
		if took := time.Since(asked); took < deadline || took > deadline+2*time.Second {
			t.Errorf("the session ended after %v, want soon after %v", took, deadline)
		}
		c.cluster.set("good", "default/pod/web", "u", "a")
		settled(t, c, good)
		var ends []string
		for _, line := range c.api.noted() {
			if strings.HasPrefix(line, "disconnected") {
				ends = append(ends, line)
			}
		}
		want := "disconnected deaf: the network took nothing for 2s: i/o timeout"
		if diff := cmp.Diff([]string{want}, ends); diff != "" {
			t.Errorf("ends mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestDefaultLimit: a hub whose options set none has the link's own limit of a message.
func TestDefaultLimit(t *testing.T) {
	t.Parallel()
	c := startCloud(t, nil)
	ws := c.raw(t, "bad")
	ended := make(chan error, 1)
	go func() {
		_, _, err := ws.ReadMessage()
		_ = ws.Close() // the other end waits for that
		ended <- err
	}()
	frame := `{"header":{"msg_id":"a"},"content":"` + strings.Repeat("x", wire.DefaultMaxMessage) + `"}`
	_ = ws.WriteMessage(websocket.TextMessage, []byte(frame)) // which the end may cut off
	if err := wait.Receive(t, "the end of the session", ended); err == nil ||
		!strings.Contains(err.Error(), "close 1009") {
		t.Errorf("the session ended with %v, want close 1009", err)
	}
}

// TestTooLargeForTheLink: what does not go over the link holds up nothing else, and who asked for it is told.
func TestTooLargeForTheLink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 64 << 10
		c := startInMemory(t, func(o *Options) { o.MaxMessage = limit })
		spec := strings.Repeat("x", limit)
		huge, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		c.api.handle = func(_ context.Context, _ string, m *model.Message) *model.Message { return m.Respond(huge) }
		c.cluster.set("n1", "default/secret/huge", "u-h", spec)
		c.cluster.set("n1", "default/pod/web", "u-w", "a")
		e := newEdge(t, "n1").dialOurs(c)
		wait.True(t, "the pod", func() bool { return e.holds()["default/pod/web"] != "" })
		reply, want := e.ask(model.OpQuery, "default/secret/huge", "null"), fmt.Sprintf("is larger than %d", limit)
		if reply.Route.Operation != model.OpError || !strings.Contains(string(reply.ContentData()), want) {
			t.Errorf("answer %s %.100s, want an error with %q", reply.Route.Operation, reply.Content, want)
		}
		c.cluster.set("n1", "default/secret/huge", "u-h", "smaller now")
		settled(t, c, e)
		wait.True(t, "the answer to the inventory", e.isSynced)
	})
}

// TestReadRateOutlivesSessions: a node that has used up its burst of messages gets no other one with a new connection.
func TestReadRateOutlivesSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		began := time.Now()
		loud := newEdge(t, "loud").dialUpstream(c)
		for range readBurst {
			loud.keepalive()
		}
		loud.ask(model.OpQuery, "default/pod/x", "null")
		const links, each = 20, 100
		for range links {
			loud.bye()
			loud = newEdge(t, "loud").dialUpstream(c)
			for range each {
				loud.keepalive()
			}
			loud.ask(model.OpQuery, "default/pod/x", "null")
		}
		if took, least := time.Since(began), links*each*time.Second/readRate; took < least {
			t.Errorf("%d messages over %d connections were read in %v, want %v or more", readBurst+links*each, links+1,
				took, least)
		}
	})
}

// TestTooManyMessages: a node that sends without an end is read slowly, and loses nothing by that.
func TestTooManyMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		loud, calm := newEdge(t, "loud").dialUpstream(c), newEdge(t, "calm").dialUpstream(c)
		const seconds = 1
		began := time.Now()
		for range readBurst + seconds*readRate {
			loud.keepalive()
		}
		calm.ask(model.OpQuery, "default/pod/x", "null")
		calmed := time.Since(began)
		synctest.Wait()
		if s := c.hub.session("loud"); s == nil || !s.stalled.Load() {
			t.Errorf("session of the loud node: %v, stalled %v; want true, true", s != nil,
				s != nil && s.stalled.Load())
		}
		loud.ask(model.OpQuery, "default/pod/x", "null")
		if took := time.Since(began); took < seconds*time.Second || took > (seconds+1)*time.Second {
			t.Errorf("the messages of the loud node were read in %v, want %d s", took, seconds)
		}
		if calmed >= seconds*time.Second {
			t.Errorf("the calm node had its answer after %v, want it before the loud one", calmed)
		}
	})
}
