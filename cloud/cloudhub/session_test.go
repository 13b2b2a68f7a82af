package cloudhub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestOurEdge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		c.cluster.set("n1", "default/configmap/conf", "u-conf", "a")
		c.cluster.set("n1", "default/pod/web", "u-web", "a")
		c.cluster.set("n1", "null/node/n1", "u-node", "a")
		c.cluster.set("n2", "default/pod/other", "u-other", "a")
		e := newEdge(t, "n1").dialOurs(c)
		settled(t, c, e)
		wait.True(t, "the answer to the inventory", e.isSynced)
		want := []string{"insert default/configmap/conf", "update null/node/n1", "insert default/pod/web"}
		if diff := cmp.Diff(want, e.lines()); diff != "" {
			t.Errorf("pushes mismatch (-want +got):\n%s", diff)
		}

		// The same states again are no reason to send anything.
		c.cluster.set("n1", "default/pod/web", "u-web", "a")
		c.cluster.set("n1", "default/pod/web", "u-web", "b")
		c.cluster.set("n1", "default/secret/s", "u-s", "a")
		settled(t, c, e)
		c.cluster.set("n1", "default/pod/web", "u-web2", "c")
		settled(t, c, e)
		c.cluster.remove("n1", "default/pod/web")
		c.cluster.remove("n1", "null/node/n1")
		wait.True(t, "the pod to go", func() bool { return e.holds()["default/pod/web"] == "" })
		want = append(want, "update default/pod/web", "update default/secret/s", "delete default/pod/web",
			"insert default/pod/web", "delete default/pod/web")
		if diff := cmp.Diff(want, e.lines()); diff != "" {
			t.Errorf("pushes mismatch (-want +got):\n%s", diff)
		}

		// After a reconnect only differences travel.
		e.bye()
		wait.True(t, "the session to end", func() bool { return len(c.hub.Connected()) == 0 })
		c.cluster.remove("n1", "default/secret/s")
		c.cluster.set("n1", "default/configmap/conf", "u-conf", "b")
		c.cluster.set("n1", "default/pod/api", "u-api", "a")
		again := newEdge(t, "n1")
		again.objects = e.holds()
		delete(again.objects, "null/node/n1")
		again.dialOurs(c)
		settled(t, c, again)
		wait.True(t, "the answer to the inventory", again.isSynced)
		want = []string{"delete default/secret/s", "update default/configmap/conf", "insert default/pod/api"}
		if diff := cmp.Diff(want, again.lines()); diff != "" {
			t.Errorf("pushes mismatch (-want +got):\n%s", diff)
		}
		log := []string{"connected n1 edgecore/websocket", "disconnected n1: the other end closed the link (code 1000)",
			"connected n1 edgecore/websocket"}
		wait.True(t, "the beginning to be told", func() bool { return len(c.api.noted()) >= len(log) })
		if diff := cmp.Diff(log, c.api.noted()); diff != "" {
			t.Errorf("calls of Upstream mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestNewerConnectionWins: the older session is told why it ends, and its end is told before the newer's beginning.
func TestNewerConnectionWins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		first := newEdge(t, "n1").dialOurs(c)
		wait.True(t, "the first session", func() bool { return len(c.api.noted()) == 1 })
		second := newEdge(t, "n1").dialUpstream(c)
		if err := first.waitEnd(); err == nil || !strings.Contains(err.Error(), "a newer connection of n1 from ") {
			t.Errorf("the older session ended with %v, want it to name the newer connection", err)
		}
		wait.True(t, "the second session", func() bool { return len(c.api.noted()) == 3 })
		log := c.api.noted()
		if !strings.HasPrefix(log[1], "disconnected n1: a newer connection") || log[2] != "connected n1 websocket" {
			t.Errorf("told %q, want the end of the older session before the beginning of the newer one", log)
		}
		c.hub.Disconnect("n1", "the node was deleted")
		if err := second.waitEnd(); err == nil || !strings.Contains(err.Error(), "the node was deleted") {
			t.Errorf("ended with %v, want that the node was deleted", err)
		}
		wait.True(t, "the end to be told", func() bool { return len(c.api.noted()) == 4 })
	})
}

// TestEndBeforeBeginning: of a node that comes back at once, the end of the older session is reported first.
func TestEndBeforeBeginning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		telling, told := make(chan struct{}), make(chan struct{})
		c.api.leave = sync.OnceFunc(func() { close(telling); <-told })
		e := newEdge(t, "n1").dialOurs(c)
		wait.True(t, "the first session", func() bool { return len(c.api.noted()) == 1 && e.isSynced() })
		first := c.hub.session("n1")
		e.bye()
		<-telling
		if got := c.hub.session("n1"); got != first {
			t.Errorf("session while the first one leaves = %p, want %p: a newer session must wait for it", got, first)
		}
		newEdge(t, "n1").dialOurs(c)
		wait.True(t, "the second session", func() bool { s := c.hub.session("n1"); return s != nil && s != first })
		close(told)
		wait.True(t, "the second session to be told", func() bool { return len(c.api.noted()) == 3 })
		want := []string{
			"connected n1 edgecore/websocket", "disconnected n1: the other end closed the link (code 1000)",
			"connected n1 edgecore/websocket",
		}
		if diff := cmp.Diff(want, c.api.noted()); diff != "" {
			t.Errorf("calls of Upstream mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestConnectedFirst: nothing that a node asks, or is to have, is looked at before Upstream knows what edge it is.
func TestConnectedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		known := make(chan struct{})
		c.api.join = func() { <-known }
		c.cluster.asked = func() { c.api.note("what n1 is to have") }
		e := newEdge(t, "n1").dialOurs(c) // with its inventory
		if err := e.send(model.New(model.ModuleEdged, model.GroupMeta, model.OpQuery, "null/node/n1",
			nil)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // nothing more happens by itself
		early := c.api.noted()
		close(known)
		if len(early) != 0 {
			t.Errorf("told before the beginning: %q, want nothing", early)
		}
		wait.True(t, "both", func() bool { return len(c.api.noted()) == 3 })
		if got, want := c.api.noted(), "connected n1 edgecore/websocket"; got[0] != want {
			t.Errorf("told %q, want %q first", got, want)
		}
	})
}

// TestSilence: without keepalive messages the session of an upstream node ends, whatever else comes. A node of ours
// lives by any sign of life: a message or a ping.
func TestSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, func(o *Options) { o.KeepaliveInterval = 10 * time.Second })
		upstream, asking, pinging := newEdge(t, "up"), newEdge(t, "asking"), newEdge(t, "pinging")
		asking.dialOurs(c)
		conn := c.dialNode(t, "pinging")
		pinging.over(conn)
		upstream.dialUpstream(c)
		began := time.Now()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for ended := false; !ended; {
			select {
			case <-tick.C:
				for _, e := range []*edge{upstream, asking} {
					query := model.New(model.ModuleEdged, model.GroupMeta, model.OpQuery, "default/configmap/x",
						json.RawMessage("null"))
					_ = e.send(query) // the link may have ended
				}
				if err := conn.Ping(); err != nil {
					t.Fatal(err)
				}
			case <-upstream.gone:
				ended = true
			case <-asking.gone:
				t.Fatalf("the edge that sends messages was disconnected: %v; want it to stay connected",
					asking.waitEnd())
			case <-pinging.gone:
				t.Fatalf("the edge that pings was disconnected: %v; want it to stay connected", pinging.waitEnd())
			}
		}
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("the session of the upstream edge ended after %v, want 10 to 11 s", took)
		}
		want := "no keepalive message came for 10s"
		if err := upstream.waitEnd(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the session of the upstream edge ended with %v, want %q", err, want)
		}
		for _, e := range []*edge{asking, pinging} {
			var closed *wire.Closed
			if err := e.waitEnd(); !errors.As(err, &closed) || closed.Code != wire.CloseSilent {
				t.Errorf("the session of the silent edge %s ended with %v, want code %d", e.node, err, wire.CloseSilent)
			}
		}
		if took := time.Since(began); took < 20*time.Second || took > 22*time.Second {
			t.Errorf("the sessions of the silent edges ended after %v, want 20 to 22 s", took)
		}
	})
}

// link is a Conn without a network.
type link struct {
	wire.Conn
	features wire.Features
	heard    time.Time
	closed   chan string
}

func (l *link) Features() wire.Features { return l.features }
func (l *link) Stats() wire.Stats       { return wire.Stats{LastReceived: l.heard} }
func (l *link) Protocol() string        { return wire.ProtocolWebSocket }
func (l *link) Streams() *wire.Streams  { return nil }
func (l *link) RemoteAddr() net.Addr    { return &net.TCPAddr{} }
func (l *link) Read() (*model.Message, error) {
	l.closed <- <-l.closed // it stays for the test
	return nil, wire.ErrClosed
}
func (l *link) Close(_ int, reason string) error {
	l.closed <- reason
	return nil
}

// TestSweep: leases are renewed at once, then every 10 s at most and only while signs of life come; silence ends the
// session.
func TestSweep(t *testing.T) {
	t.Parallel()
	api := &api{}
	hub, err := New(Options{Downstream: newCluster(), Upstream: api})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	conn := &link{features: wire.Features{Lease: true, Inventory: true}, heard: began, closed: make(chan string, 1)}
	s := newSession(hub, "n1", conn)
	s.begun = true
	hub.sessions["n1"] = s
	at := func(seconds int) { hub.sweep(began.Add(time.Duration(seconds)*time.Second), time.Second) }
	beats := func(want int) {
		t.Helper()
		s.work.Wait()
		api.mu.Lock()
		defer api.mu.Unlock()
		if got := api.beats; got != want {
			t.Errorf("%d renewals, want %d", got, want)
		}
	}
	at(0)
	at(1)
	beats(1)
	conn.heard = began.Add(8 * time.Second)
	at(9)
	beats(1)
	at(11)
	beats(2)
	at(25) // nothing came since
	beats(2)
	conn.heard = began.Add(26 * time.Second)
	api.beatFails = errors.New("no API server")
	at(26)
	beats(3)
	at(28)
	beats(3)
	api.beatFails = nil
	at(29) // though nothing came since
	beats(4)
	at(32)
	beats(4)
	s.stalled.Store(true) // it is not heard because nobody listens
	at(90)
	s.stalled.Store(false)
	if s.ended {
		t.Error("ended = true while its reader waited, want false")
	}
	at(57)
	if got, want := <-conn.closed, "no sign of life came for 30s"; got != want {
		t.Errorf("ended with %q, want %q", got, want)
	}
	<-s.closed
	at(58)
	beats(4)
}

// TestNoInventory: an edge of ours that does not tell what it holds gets everything after a while.
func TestNoInventory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		c.cluster.set("n1", "default/pod/web", "u", "a")
		conn := c.dialNode(t, "n1")
		defer conn.Close(wire.CloseNormal, "")
		wait.True(t, "the session", func() bool {
			s := c.hub.session("n1")
			return s != nil && s.sweepStart(time.Now())
		})
		s := c.hub.session("n1")
		s.sweepStart(s.began.Add(inventoryWait - time.Second))
		if s.waited {
			t.Errorf("stopped waiting for the inventory before %v, want it to wait that long", inventoryWait)
		}
		s.sweepStart(s.began.Add(inventoryWait + time.Second))
		m, err := conn.Read()
		if err != nil || m.Route.Resource != "default/pod/web" {
			t.Fatalf("got %+v, %v, want default/pod/web", m, err)
		}
		// It tells later all the same: only what it lacks is sent.
		c.cluster.set("n1", "default/pod/api", "u2", "a")
		inventory, err := wire.NewInventory([]wire.Held{
			{Key: "default/pod/web", UID: "u", Version: "a"}, {Key: "default/pod/api", UID: "u2", Version: "a"},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(conn.Write(m.Respond(model.OK)), conn.Write(inventory)); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := conn.Read()
			if err != nil {
				t.Fatal(err)
			}
			if m.Header.ParentID == inventory.Header.ID {
				break
			}
			if err := conn.Write(m.Respond(model.OK)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestUnknownNow: an object that nobody can tell about holds up no other, and comes later.
func TestUnknownNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		c.cluster.fail("default/pod/a", errors.New("the informer is behind"))
		c.cluster.set("n1", "default/pod/a", "u-a", "1")
		c.cluster.set("n1", "default/pod/b", "u-b", "1")
		e := newEdge(t, "n1").dialOurs(c)
		wait.True(t, "the other pod", func() bool { return e.holds()["default/pod/b"] != "" })
		if e.isSynced() {
			t.Error("synced = true without one pod, want false")
		}
		c.cluster.fail("default/pod/a", nil)
		settled(t, c, e)
		wait.True(t, "the answer to the inventory", e.isSynced)
	})
}

// TestNoRoom: also who was let in when there was room gets none when there is none any more.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	t.Run("by nodeLimit", func(t *testing.T) { testNoRoom(t, Options{NodeLimit: 1}, "nodeLimit") })
	t.Run("by open files", func(t *testing.T) { testNoRoom(t, Options{NodeLimit: 500, OpenFiles: 3}, "ulimit -n") })
}

func testNoRoom(t *testing.T, opts Options, remedy string) {
	synctest.Test(t, func(t *testing.T) {
		opts.Downstream, opts.Upstream = newCluster(), &api{}
		hub, err := New(opts)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		run, served := make(chan struct{}), make(chan struct{})
		go func() { defer close(run); _ = hub.Run(ctx) }()
		first, second, late := &link{closed: make(chan string, 1)}, &link{closed: make(chan string, 1)},
			&link{closed: make(chan string, 1)}
		go func() { defer close(served); hub.Serve(context.Background(), "n1", time.Time{}, first) }()
		wait.True(t, "the first node", func() bool { return len(hub.Connected()) == 1 })
		hub.Serve(t.Context(), "n2", time.Time{}, second)
		if reason := <-second.closed; !strings.Contains(reason, remedy) {
			t.Errorf("the second node was refused with %q, want %q named", reason, remedy)
		}
		cancel()
		<-run
		<-served
		if got, want := <-first.closed, "cloudcore stops"; got != want {
			t.Errorf("the first node's session ended with %q, want %q", got, want)
		}
		hub.Serve(context.Background(), "n1", time.Time{}, late)
		if got, want := <-late.closed, "cloudcore stops"; got != want {
			t.Errorf("the late node was refused with %q, want %q", got, want)
		}
		if _, why := hub.admit(nodeHeader("n1"), nil); why == nil || why.status != 403 {
			t.Errorf("admitted without a certificate: %v, want status 403", why)
		}
	})
}

// TestResyncIsSmall: telling what 30 pods and what they need are, and that nothing changed, costs little, with the
// handshake and TLS.
func TestResyncIsSmall(t *testing.T) {
	t.Parallel()
	c := startCloud(t, nil)
	e := newEdge(t, "n1")
	for i := range podsOfNode {
		for kind, name := range map[string]string{"pod": "web-7c5ddbdf54-", "configmap": "web-conf-"} {
			key := fmt.Sprintf("default/%s/%s%05x", kind, name, i*7919)
			uid, version := uuid.NewString(), uuid.NewString()[24:]
			c.cluster.set("n1", key, uid, version)
			e.objects[key] = uid + "/" + version
		}
	}
	e.dialOurs(c)
	wait.True(t, "the answer to the inventory", e.isSynced)
	stats := c.hub.session("n1").conn.Stats()
	total := stats.BytesReceived + stats.BytesSent
	t.Logf("%d bytes in, %d out", stats.BytesReceived, stats.BytesSent)
	if total > 10<<10 || len(e.lines()) > 0 {
		t.Errorf("a resync took %d bytes and pushed %v, want at most %d bytes and no push", total, e.lines(), 10<<10)
	}
}
