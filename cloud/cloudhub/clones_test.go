package cloudhub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestClonesArrive: what becomes of the connections of one node, in the order in which they are judged.
func TestClonesArrive(t *testing.T) {
	t.Parallel()
	ok, refused := finding{}, finding{refuse: true}
	found, foundAndRefused := finding{cloned: true}, finding{cloned: true, refuse: true}
	late := finding{refuse: true, late: true}
	type step struct {
		at       time.Duration
		instance byte
		alone    bool // no other instance is connected
		want     finding
	}
	for name, steps := range map[string][]step{
		"a network that flaps": {
			{0, 'A', true, ok}, {time.Second, 'A', true, ok}, {time.Hour, 'A', true, ok},
		},
		"an agent that restarts": {
			{0, 'A', true, ok}, {1, 'B', false, ok}, {2, 'C', true, ok}, {3, 'C', true, ok},
		},
		"an agent in a crash loop": {
			{0, 'A', true, ok}, {1, 'B', false, ok}, {2, 'C', false, ok}, {3, 'D', false, ok},
			{4, 'E', false, ok}, {5, 'F', false, ok},
		},
		"a restart, then it flaps": {
			{0, 'A', true, ok}, {1, 'B', false, ok}, {2, 'B', false, ok}, {3, 'B', true, ok},
		},
		"two devices": {
			{0, 'A', true, ok}, {1, 'B', false, ok}, {2, 'A', false, foundAndRefused}, {3, 'A', false, refused},
		},
		"two in turn": {
			{0, 'A', true, ok}, {1, 'B', true, ok}, {2, 'A', true, found}, {3, 'A', true, ok},
		},
		"the other one goes": {
			{0, 'A', true, ok}, {1, 'B', false, ok}, {2, 'A', false, foundAndRefused}, {3, 'A', true, ok},
			{4, 'A', true, ok},
		},
		"the other one stays": {
			{0, 'A', true, ok}, {1, 'B', false, ok}, {2, 'A', false, foundAndRefused}, {3, 'B', true, ok},
			{4, 'A', false, refused},
		},
		"the other one restarts": {
			{0, 'A', true, ok}, {1, 'B', false, ok}, {2, 'A', false, foundAndRefused}, {3, 'C', true, ok},
			{4, 'A', false, refused},
		},
		"one after the other": {
			{0, 'A', true, ok}, {1, 'B', false, ok}, {2, 'A', false, foundAndRefused},
			{2 + cloneRefused, 'A', false, ok}, {3 + cloneRefused, 'B', false, foundAndRefused},
		},
		"forgotten": {
			{0, 'A', true, ok}, {1, 'B', true, ok}, {2 + agentMemory, 'A', true, ok},
			{3 + agentMemory, 'B', false, foundAndRefused},
		},
		"replaced after long": {
			{0, 'A', true, ok}, {9 * agentMemory, 'B', false, ok},
			{10 * agentMemory, 'A', false, foundAndRefused},
		},
		"more than are kept": {
			{0, 'A', true, ok}, {1, 'B', true, ok}, {2, 'C', true, ok}, {3, 'D', true, ok}, {4, 'E', true, ok},
			{5, 'A', true, ok},
		},
		"as many as are kept": {
			{0, 'A', true, ok}, {1, 'B', true, ok}, {2, 'C', true, ok}, {3, 'D', true, ok},
			{4, 'A', true, found},
		},
		"judged late, known": {
			{0, 'A', true, ok}, {5, 'B', false, ok}, {4, 'A', false, late}, {6, 'B', true, ok},
			{7, 'C', false, ok},
		},
		"judged late, then it is B": {
			{5, 'B', true, ok}, {4, 'A', false, late}, {6, 'B', true, ok},
		},
		"judged late, nobody there": {
			{0, 'A', true, ok}, {5, 'B', false, ok}, {4, 'A', true, late}, {6, 'B', true, ok},
		},
		"judged late, still running": {
			{0, 'A', true, ok}, {5, 'B', false, ok}, {4, 'A', false, late}, {6, 'A', false, foundAndRefused},
		},
	} {
		var c clones
		began := time.Now()
		for i, s := range steps {
			got := c.arrive(caller{node: "n1", instance: wire.Instance{s.instance}, accepted: began.Add(s.at)},
				!s.alone, 10)
			if got != s.want {
				t.Errorf("%s, step %d: arrive(%c after %v) = %+v, want %+v", name, i+1, s.instance, s.at, got, s.want)
			}
			if kept := len(c.nodes["n1"].runs); kept > agentsKept {
				t.Errorf("%s, step %d: %d runs are kept, want at most %d", name, i+1, kept, agentsKept)
			}
		}
	}
}

// TestClonesBounds: nodes are forgotten when they are deleted, and old ones when there are too many.
func TestClonesBounds(t *testing.T) {
	t.Parallel()
	const limit = 10
	var c clones
	now := time.Now()
	a, b := wire.Instance{'A'}, wire.Instance{'B'}
	arrive := func(node string, i wire.Instance, rival bool, at time.Time) finding {
		return c.arrive(caller{node: node, instance: i, accepted: at}, rival, limit)
	}
	arrive("n1", a, false, now)
	arrive("n1", b, true, now.Add(1))
	c.forget("n1")
	if got := arrive("n1", a, true, now.Add(2)); got != (finding{}) {
		t.Errorf("arrive after forget = %+v, want %+v", got, finding{})
	}
	for i := range 3 * limit {
		if got := arrive(fmt.Sprint("node-", i), a, false, now); got != (finding{}) {
			t.Errorf("arrive of node %d = %+v, want %+v", i, got, finding{})
		}
	}
	if got := len(c.nodes); got != limit {
		t.Errorf("%d nodes are kept, want %d", got, limit)
	}
	arrive("n2", a, false, now.Add(2*agentMemory))
	if _, ok := c.nodes["n2"]; !ok || len(c.nodes) != 1 {
		t.Errorf("%d nodes are kept after %v, n2 among them: %v; want n2 alone", len(c.nodes), 2*agentMemory, ok)
	}
}

// reports are the duplicates that a hub tells of.
type reports struct {
	mu       sync.Mutex
	messages []string
}

func (r *reports) duplicate(_ context.Context, node, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, node+": "+message)
}

func (r *reports) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.messages, "\n")
}

// agent is one run of a node's agent.
type agent struct {
	c *cloud
	o wire.DialOptions
}

func (c *cloud) agent(node string) *agent {
	o := c.options(node, c.ca.Node(c.t, node, time.Now().Add(24*time.Hour)))
	o.Instance = wire.NewInstance()
	return &agent{c: c, o: o}
}

// restarted is the next run on the same device.
func (a *agent) restarted() *agent {
	next := *a
	next.o.Instance = wire.NewInstance()
	return &next
}

// dial connects a second after whatever was before.
func (a *agent) dial() (wire.Conn, error) {
	time.Sleep(time.Second) // of the bubble
	synctest.Wait()
	return wire.DialWebSocket(a.c.ctx, a.o)
}

// connect connects, and waits for the session.
func (a *agent) connect(t *testing.T) *edge {
	t.Helper()
	conn, err := a.dial()
	if err != nil {
		t.Fatalf("dial = %v, want a connection", err)
	}
	node := a.o.Header.Get(wire.HeaderNodeID)
	e := newEdge(t, node).over(conn)
	wait.True(t, "the session of "+node, e.isSynced)
	return e
}

// refusedAs checks that the connection is refused as one of two devices.
func (a *agent) refusedAs(t *testing.T, text string) {
	t.Helper()
	conn, err := a.dial()
	if err == nil {
		_ = conn.Close(wire.CloseNormal, "")
	}
	var refused *wire.Refused
	if !errors.As(err, &refused) || refused.Status != http.StatusConflict || !strings.Contains(refused.Text, text) {
		t.Errorf("dial = %v, want it refused with status %d and %q", err, http.StatusConflict, text)
	}
}

// startWatched starts a hub whose duplicates and metrics are looked at.
func startWatched(t *testing.T) (*cloud, *reports, func() float64) {
	t.Helper()
	output, registry := &reports{}, prometheus.NewRegistry()
	c := startInMemory(t, func(o *Options) { o.Registry, o.Duplicate = registry, output.duplicate })
	return c, output, func() float64 { return gather(t, registry)["cloned_devices_total"] }
}

const duplicate = "two devices use the certificate of this node"

// TestClonedDevice: of two devices with one certificate, the one that comes back is refused while the other one is
// connected, for a minute; then it is its turn, and the other one is refused.
func TestClonedDevice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, output, cloned := startWatched(t)
		first, second := c.agent("n1"), c.agent("n1")
		a := first.connect(t)
		b := second.connect(t)
		if err := a.waitEnd(); err == nil || !strings.Contains(err.Error(), "a newer connection") {
			t.Errorf("the session of the first device ended with %v, want that a newer connection took over", err)
		}
		if got, report := cloned(), output.all(); got != 0 || report != "" {
			t.Errorf("after two connections: %v cloned devices, reported %q; want none: an agent may have restarted",
				got, report)
		}
		first.refusedAs(t, duplicate)
		first.refusedAs(t, "gettoken --node NAME --replace")
		if got := cloned(); got != 1 {
			t.Errorf("%v cloned devices, want 1", got)
		}
		if got := output.all(); !strings.Contains(got, "n1: ") ||
			!strings.Contains(got, "gettoken --node n1 --replace") ||
			strings.Count(got, "from ") != 2 {
			t.Errorf("reported %q, want one report with the node, both addresses and the remedy", got)
		}
		b.ask("query", "default/configmap/x", "null") // it is still served
		time.Sleep(cloneRefused)
		a = first.connect(t)
		_ = b.waitEnd() // as it was replaced
		second.refusedAs(t, duplicate)
		if got := cloned(); got != 2 {
			t.Errorf("%v cloned devices after the other one was refused, want 2", got)
		}
		if got := strings.Count(output.all(), "n1: "); got != 2 {
			t.Errorf("%d reports, want one for each time", got)
		}
		a.bye()
		wait.True(t, "the session to end", func() bool { return c.hub.session("n1") == nil })
		second.connect(t) // as nobody else is there
		c.hub.Disconnect("n1", "the node was deleted")
		wait.True(t, "the session to end", func() bool { return c.hub.session("n1") == nil })
		first.connect(t)
		if got := cloned(); got != 2 {
			t.Errorf("%v cloned devices after the node was deleted, want still 2", got)
		}
	})
}

// TestFlappingDevice: a device that replaces its own half-open session does not count as cloned. Neither does one whose
// agent restarts, although that may leave a half-open session, too.
func TestFlappingDevice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, output, cloned := startWatched(t)
		agent := c.agent("n1")
		for range 4 {
			for range 3 {
				agent.connect(t)
			}
			e := agent.connect(t)
			e.bye() // the agent stops, or the network says so
			wait.True(t, "the session to end", func() bool { return c.hub.session("n1") == nil })
			agent.connect(t)
			agent = agent.restarted()
		}
		for range 6 { // a crash loop
			agent.connect(t)
			agent = agent.restarted()
		}
		if got, report := cloned(), output.all(); got != 0 || report != "" {
			t.Errorf("%v cloned devices, reported %q; want none", got, report)
		}
	})
}

// TestNoInstance: edges that do not say which run they are take the session from each other as before.
func TestNoInstance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, output, cloned := startWatched(t)
		first, second := c.agent("n1"), c.agent("n1")
		second.o.Instance = wire.Instance{}
		for range 3 {
			first.connect(t)
			second.connect(t)
			newEdge(t, "n1").dialUpstream(c)
		}
		for _, bad := range []string{"x", strings.Repeat("z", 32), strings.Repeat("a", 8<<10)} {
			second.o.Header = nodeHeader("n1")
			second.o.Header.Set(wire.HeaderInstance, bad)
			second.connect(t)
			second.connect(t)
		}
		first.connect(t)
		if got, report := cloned(), output.all(); got != 0 || report != "" {
			t.Errorf("%v cloned devices, reported %q; want none", got, report)
		}
	})
}

// TestLateConnection: a connection that the gate held up until the node's agent had restarted neither takes the session
// of the new run nor makes a cloned device of it.
func TestLateConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate, registry := &testGate{}, prometheus.NewRegistry()
		c := startInMemory(t, func(o *Options) { o.Registry, o.Gate = registry, gate })
		asked, open := make(chan struct{}), make(chan struct{})
		var held atomic.Bool
		gate.passed = func() {
			if held.CompareAndSwap(false, true) {
				close(asked)
				<-open
			}
		}
		old := c.agent("n1")
		refused := make(chan error, 1)
		go func() {
			_, err := old.dial()
			refused <- err
		}()
		<-asked
		agent := old.restarted()
		agent.connect(t)
		now := c.hub.session("n1")
		close(open)
		var late *wire.Refused
		if err := <-refused; !errors.As(err, &late) || late.Status != http.StatusServiceUnavailable {
			t.Errorf("the late connection: %v, want a refusal with status %d, since it is not of another device",
				err, http.StatusServiceUnavailable)
		}
		if got := c.hub.session("n1"); got != now {
			t.Errorf("session after the late connection = %p, want still %p", got, now)
		}
		agent.connect(t)
		if got := gather(t, registry)["cloned_devices_total"]; got != 0 {
			t.Errorf("%v cloned devices, want none", got)
		}
	})
}

// TestClonedOverQUIC: a cloned device that comes by QUIC is refused as well.
func TestClonedOverQUIC(t *testing.T) {
	t.Parallel()
	output := &reports{}
	c := startCloud(t, func(o *Options) { o.Duplicate = output.duplicate })
	server := c.ca.Server(t)
	certificate := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &server, nil }
	l, err := c.hub.ListenQUIC("127.0.0.1:0", TLSConfig(certificate, c.ca.Pool()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.hub.ServeQUIC(ctx, l) }()
	defer func() { cancel(); <-done }()
	first, second := c.agent("n1"), c.agent("n1")
	first.o.URL = "quic://" + l.Addr().String()
	for range 2 { // it flaps
		conn, err := wire.DialQUIC(t.Context(), first.o)
		if err != nil {
			t.Fatal(err)
		}
		e := newEdge(t, "n1").over(conn)
		wait.True(t, "the session by QUIC", e.isSynced)
	}
	conn, err := wire.DialWebSocket(t.Context(), second.o)
	if err != nil {
		t.Fatal(err)
	}
	e := newEdge(t, "n1").over(conn)
	wait.True(t, "the session by WebSocket", e.isSynced)
	_, err = wire.DialQUIC(t.Context(), first.o)
	var refused *wire.Refused
	if !errors.As(err, &refused) || !strings.Contains(refused.Text, duplicate) {
		t.Errorf("DialQUIC of the first device = %v, want a refusal with %q", err, duplicate)
	}
	if got := output.all(); strings.Count(got, "127.0.0.1:") != 2 {
		t.Errorf("reported %q, want one report with both addresses", got)
	}
}

// TestClonesReplaced: when one of two devices has taken the other one's place with a certificate of its own, it is let
// in at once.
func TestClonesReplaced(t *testing.T) {
	t.Parallel()
	var c clones
	now := time.Now()
	a, b := wire.Instance{'A'}, wire.Instance{'B'}
	for i, step := range []struct {
		instance wire.Instance
		holder   string
		want     finding
	}{
		{a, "1", finding{}}, {b, "1", finding{}}, {a, "1", finding{cloned: true, refuse: true}}, {a, "2", finding{}},
		{a, "2", finding{}},
	} {
		if i == 3 {
			c.read("n1", Record{}.next(b, now), now)
		}
		from := caller{node: "n1", instance: step.instance, holder: step.holder, accepted: now.Add(time.Duration(i))}
		if got := c.arrive(from, true, 10); got != step.want {
			t.Errorf("step %d: arrive = %+v, want %+v", i+1, got, step.want)
		}
	}
}

// TestRunsRecorded: what becomes of the runs that a cloudcore knows when the Node names one of them, or another.
func TestRunsRecorded(t *testing.T) {
	t.Parallel()
	// A run is its letter; a capital one holds a place in the order of all cloudcores, as the Node has named it.
	runsOf := func(text string) (runs []agentRun) {
		for _, c := range []byte(text) {
			upper := strings.ToUpper(string(c))[0]
			runs = append(runs, agentRun{instance: wire.Instance{upper}, recorded: upper == c})
		}
		return runs
	}
	for _, row := range []struct {
		before, named, after string
		replaced             bool
	}{
		{"a", "A", "A", false},
		{"A", "A", "A", false},
		{"A", "B", "AB", true},
		{"a", "B", "B", true}, // it is not known which came first
		{"Aa", "B", "AB", true},
		{"ab", "A", "Ab", false}, // written after b came
		{"Ab", "A", "A", true},   // another cloudcore wrote it
		{"AB", "A", "BA", true},
		{"ABCD", "E", "BCDE", true},
		{"ABCd", "E", "ABCE", true},
	} {
		runs, replaced := recorded(runsOf(row.before), wire.Instance{row.named[0]}, time.Now())
		var after string
		for _, r := range runs {
			name := string(r.instance[:1])
			if !r.recorded {
				name = strings.ToLower(name)
			}
			after += name
		}
		if after != row.after || replaced != row.replaced {
			t.Errorf("%s after the Node named %s = %s, replaced %v; want %s, %v",
				row.before, row.named, after, replaced, row.after, row.replaced)
		}
	}
}

// TestClonedElsewhere: the session ends when another cloudcore has let another run in. One that was there before that
// is refused when it returns, for a minute; one that the Node has not named yet is let in.
func TestClonedElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, output, cloned := startWatched(t)
		first := c.agent("n1")
		a := first.connect(t)
		next, wait, ok := c.hub.ToRecord("n1", Record{})
		if !ok || wait != 0 || next.Instance != first.o.Instance {
			t.Fatalf("ToRecord = %v, %v, %v; want the run that is connected, now", next, wait, ok)
		}
		c.hub.Recorded("n1", next)
		if got, _, ok := c.hub.ToRecord("n1", next); ok {
			t.Errorf("ToRecord when it is written = %v, want nothing", got)
		}
		elsewhere := next.next(wire.NewInstance(), time.Now())
		c.hub.Recorded("n1", elsewhere)
		if err := a.waitEnd(); err == nil || !strings.Contains(err.Error(), "to another cloudcore, took over") {
			t.Errorf("the session ended with %v, want that another cloudcore's took over", err)
		}
		if got := cloned(); got != 0 {
			t.Errorf("%v cloned devices, want none: the agent may have started again", got)
		}
		first.refusedAs(t, duplicate)
		if got := output.all(); cloned() != 1 || !strings.Contains(got, "connected to another cloudcore") {
			t.Errorf("%v cloned devices, reported %q; want one, connected to another cloudcore", cloned(), got)
		}
		time.Sleep(cloneRefused)
		a = first.connect(t)
		next, wait, ok = c.hub.ToRecord("n1", elsewhere)
		if !ok || wait != 0 || next.Instance != first.o.Instance || !next.Since.After(elsewhere.Since) {
			t.Errorf("ToRecord = %v, %v, %v; want the run that is connected, later than %v", next, wait, ok, elsewhere)
		}
		c.hub.Recorded("n1", elsewhere.next(wire.NewInstance(), time.Now())) // before it was written
		_ = a.waitEnd()
		first.connect(t)
		if got := cloned(); got != 1 {
			t.Errorf("%v cloned devices, want still 1: the order of the last two is not known", got)
		}
	})
}
