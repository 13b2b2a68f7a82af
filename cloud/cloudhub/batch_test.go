package cloudhub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// batchEdge is a node that sends batches, and notes which answers came in which message.
type batchEdge struct {
	t    *testing.T
	conn wire.Conn

	mu  sync.Mutex
	got [][]string // the parents of the answers in each message
	all map[string]*model.Message
}

func dialBatches(t *testing.T, c *cloud, features wire.Features) *batchEdge {
	t.Helper()
	options := c.options("n1", c.ca.Node(t, "n1", time.Now().Add(time.Hour)))
	options.Features = features
	conn, err := wire.DialWebSocket(c.ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	e := &batchEdge{t: t, conn: conn, all: map[string]*model.Message{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer conn.Close(wire.CloseNormal, "")
		for m, err := conn.Read(); err == nil; m, err = conn.Read() {
			e.note(m)
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close(wire.CloseNormal, "")
		<-done
	})
	return e
}

func (e *batchEdge) note(m *model.Message) {
	answers := []*model.Message{m}
	if wire.IsBatch(m) {
		var err error
		if answers, err = wire.Unpack(m); err != nil {
			e.t.Error(err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var ids []string
	for _, a := range answers {
		ids = append(ids, a.Header.ParentID)
		e.all[a.Header.ParentID] = a
	}
	e.got = append(e.got, ids)
}

// send sends messages as one batch.
func (e *batchEdge) send(messages ...*model.Message) {
	e.t.Helper()
	for _, p := range wire.Pack("websocket", messages) {
		if err := e.conn.Write(p.Message); err != nil {
			e.t.Fatal(err)
		}
	}
}

// answers returns the parents of the answers in each message, and those whose answer is an error.
func (e *batchEdge) answers() (got [][]string, failed []string) {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, a := range e.all {
		if a.Route.Operation == model.OpError {
			failed = append(failed, id)
		}
	}
	return slices.Clone(e.got), failed
}

// named is a request with an id that a test chose.
func named(id, operation, resource string) *model.Message {
	m := nodeRequest(operation, resource)
	m.Header.ID = id
	return m
}

func token(id string) *model.Message {
	return named(id, model.OpQuery, "default/serviceaccounttoken/default")
}

func event(id string) *model.Message { return named(id, model.OpInsert, "default/event/web."+id) }

// TestBatch: the requests of a batch are carried out side by side, and their answers share a message. A slow one holds
// up the others for a moment only, one that fails not at all.
func TestBatch(t *testing.T) {
	sorted := cmpopts.SortSlices(func(a, b string) bool { return a < b })
	for name, c := range map[string]struct {
		send []*model.Message
		// after: how long the slow request takes.
		after  time.Duration
		want   [][]string
		failed []string
	}{
		"tokens": {[]*model.Message{token("a"), token("b"), token("fails")}, 0, [][]string{{"a", "b", "fails"}},
			[]string{"fails"}},
		"a slow token": {[]*model.Message{token("slow"), token("a"), token("b")}, queryGather + time.Millisecond,
			[][]string{{"a", "b"}, {"slow"}}, nil},
		"almost slow": {[]*model.Message{token("slow"), token("a"), token("b")}, queryGather - time.Millisecond,
			[][]string{{"a", "b", "slow"}}, nil},
		"a slow event": {[]*model.Message{event("slow"), event("a"), event("fails")}, batchGather + time.Millisecond,
			[][]string{{"a", "fails"}, {"slow"}}, []string{"fails"}},
		"without answers": {[]*model.Message{event("none"), event("a"), event("b")}, 0, [][]string{{"a", "b"}}, nil},
		"alone":           {[]*model.Message{event("a")}, 0, [][]string{{"a"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cloud := startInMemory(t, nil)
				cloud.api.handle = func(_ context.Context, _ string, m *model.Message) *model.Message {
					switch m.Header.ID {
					case "slow":
						time.Sleep(c.after)
					case "fails":
						return m.RespondError("edgecontroller", errors.New("refused"))
					case "none":
						return nil
					}
					return m.Respond(model.OK)
				}
				e := dialBatches(t, cloud, wire.AllFeatures())
				e.send(c.send...)
				time.Sleep(time.Second)
				got, failed := e.answers()
				if diff := cmp.Diff(c.want, got, sorted); diff != "" {
					t.Errorf("answers by message (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(c.failed, failed, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("failed (-want +got):\n%s", diff)
				}
				if n := cloud.hub.session("n1").executor.unanswered(); n != 0 {
					t.Errorf("%d requests count as unanswered, want none", n)
				}
			})
		})
	}
}

// TestBatchHostile: what of a batch would be dropped alone is dropped, and the rest is carried out; without the feature
// the whole batch is.
func TestBatchHostile(t *testing.T) {
	list := func(items ...string) json.RawMessage { return json.RawMessage("[" + strings.Join(items, ",") + "]") }
	text := func(m *model.Message) string {
		out, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	many := func(n int) (out []string) {
		for i := range n {
			out = append(out, text(event(fmt.Sprint(i))))
		}
		return out
	}
	ids := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprint(i))
		}
		return out
	}
	from := func(source string) *model.Message {
		m := event("x")
		m.Route.Source = source
		return m
	}
	large := event("x")
	large.Content = json.RawMessage(`"` + strings.Repeat("x", wire.BatchBytes) + `"`)
	all, plain := wire.AllFeatures(), wire.AllFeatures()
	plain.Batch = false
	for name, c := range map[string]struct {
		features wire.Features
		content  json.RawMessage
		want     []string
		dropped  float64
	}{
		"not a list":    {all, json.RawMessage(`{"a":1}`), nil, 1},
		"null":          {all, nil, nil, 1},
		"empty":         {all, list(), nil, 0},
		"too many":      {all, list(many(wire.BatchMax + 3)...), ids(wire.BatchMax), 1},
		"too large":     {all, list(append(many(2), text(large), text(event("3")))...), ids(2), 1},
		"not a message": {all, list(`1`, text(event("a")), `"x"`), []string{"a"}, 1},
		"an id twice":   {all, list(append([]string{text(event("0"))}, many(2)...)...), ids(2), 1},
		"wrong kinds": {all, list(
			text(named("k", model.OpKeepalive, "node")), text(event("y").Respond(model.OK)),
			text(named("i", wire.OpInventory, wire.ResourceInventory)),
			text(named("b", wire.OpBatch, wire.ResourceBatch)),
			text(named("c", model.OpQuery, resourceKubeCA)), text(named("n", model.OpInsert, "x")),
			text(from("cloudhub")), text(from("metaserver")), text(event("good")),
		), []string{"good"}, 8},
		"not agreed": {plain, list(many(3)...), nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				registry := prometheus.NewRegistry()
				cloud := startInMemory(t, func(o *Options) { o.Registry = registry })
				handled := map[string]int{}
				cloud.api.handle = func(_ context.Context, _ string, m *model.Message) *model.Message {
					cloud.api.mu.Lock()
					defer cloud.api.mu.Unlock()
					handled[m.Header.ID]++
					return m.Respond(model.OK)
				}
				e := dialBatches(t, cloud, c.features)
				m := model.New("websocket", "resource", wire.OpBatch, wire.ResourceBatch, c.content)
				if err := e.conn.Write(m); err != nil {
					t.Fatal(err)
				}
				if err := e.conn.Write(event("after")); err != nil { // the link lives on
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				got, _ := e.answers()
				answered := slices.Sorted(slices.Values(slices.Concat(got...)))
				want := append(slices.Clone(c.want), "after")
				slices.Sort(want)
				if !slices.Equal(answered, want) {
					t.Errorf("answers to %q, want %q", answered, want)
				}
				cloud.api.mu.Lock()
				defer cloud.api.mu.Unlock()
				if got := slices.Sorted(maps.Keys(handled)); !slices.Equal(got, want) || len(handled) != len(want) {
					t.Errorf("carried out %v, want each of %q once", handled, want)
				}
				if got := gatherTotal(t, registry, "dropped"); got != c.dropped {
					t.Errorf("%v messages dropped, want %v", got, c.dropped)
				}
			})
		})
	}
}

// gatherTotal returns the counter whose name contains a text.
func gatherTotal(t *testing.T, registry *prometheus.Registry, text string) (total float64) {
	for name, value := range gather(t, registry) {
		if strings.Contains(name, text) {
			total += value
		}
	}
	return total
}

// TestEventsLast: events of batches leave workers to other requests, which overtake them, and get their turn; an event
// that came alone is a request like any other.
func TestEventsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most := 0, 0
		var order []string
		release := make(chan struct{})
		l := newKeyedExecutor(func(r pendingRequest) {
			mu.Lock()
			order = append(order, r.Header.ID)
			if r.isLast() {
				running++
				most = max(most, running)
			}
			mu.Unlock()
			<-release
			mu.Lock()
			if r.isLast() {
				running--
			}
			mu.Unlock()
		})
		b := &batch{}
		for i := range 2 * eventsParallel {
			l.enqueue(event(fmt.Sprint("event", i)), b, func() {})
		}
		synctest.Wait() // half of them have begun, and the others wait
		const statuses = executorParallel - eventsParallel
		for i := range statuses {
			l.enqueue(named(fmt.Sprint("status", i), model.OpPatch, fmt.Sprint("default/podpatch/p", i)), b, func() {})
		}
		synctest.Wait()
		if len(order) != executorParallel || most != eventsParallel {
			t.Fatalf("%q began, %d events at a time; want %d of %d, and the statuses", order, most, eventsParallel,
				executorParallel)
		}
		order = nil
		for i := range eventsLast + 2 {
			l.enqueue(named(fmt.Sprint("later", i), model.OpPatch, fmt.Sprint("default/podpatch/l", i)), nil, func() {})
		}
		l.enqueue(event("alone"), nil, func() {})
		for range eventsLast + 3 + 2*eventsParallel + executorParallel {
			select {
			case release <- struct{}{}:
				synctest.Wait() // one worker after the other
			default:
			}
		}
		l.wait()
		first := slices.IndexFunc(order, func(id string) bool { return strings.HasPrefix(id, "event") })
		// The statuses have overtaken the events that wait, too.
		if first != eventsLast-statuses || slices.Index(order, "alone") < first {
			t.Errorf("order %q, want an event of the batch after %d others, and the single one in its turn", order,
				eventsLast-statuses)
		}
		if most != eventsParallel {
			t.Errorf("%d events at a time, want %d", most, eventsParallel)
		}
	})
}

// TestBatchesBounded: a node whose answers are not written gets no more requests done than one that sends them alone,
// and the requests of one object keep their order.
func TestBatchesBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		slow := make(chan struct{})
		last := map[string]int{}
		c.api.handle = func(_ context.Context, _ string, m *model.Message) *model.Message {
			<-slow
			var n int
			_ = json.Unmarshal(m.Content, &n)
			c.api.mu.Lock()
			defer c.api.mu.Unlock()
			if n <= last[m.Route.Resource] {
				t.Errorf("%s: request %d after %d, want them in order", m.Route.Resource, n, last[m.Route.Resource])
			}
			last[m.Route.Resource] = n
			return m.Respond(model.OK)
		}
		e := dialBatches(t, c, wire.AllFeatures())
		const requests = 2 * executorPending
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for i := 0; i < requests; i += wire.BatchMax {
				var all []*model.Message
				for j := i; j < i+wire.BatchMax; j++ {
					m := event(fmt.Sprint(j))
					m.Route.Resource = fmt.Sprintf("default/event/e%d", j%20)
					m.Content = json.RawMessage(fmt.Sprint(j + 1))
					all = append(all, m)
				}
				e.send(all...)
			}
		}()
		wait.True(t, "the limit", func() bool { s := c.hub.session("n1"); return s != nil && s.stalled.Load() })
		s := c.hub.session("n1")
		if n := s.executor.unanswered(); n != executorPending {
			t.Errorf("%d requests are unanswered, want %d", n, executorPending)
		}
		close(slow)
		<-sent
		time.Sleep(time.Second)
		if got, _ := e.answers(); len(slices.Concat(got...)) != requests || len(got) > requests/4 {
			t.Errorf("%d answers in %d messages, want %d in few", len(slices.Concat(got...)), len(got), requests)
		}
		if n := s.executor.unanswered(); n != 0 {
			t.Errorf("%d requests are unanswered at the end, want none", n)
		}
	})
}

// TestBatchOfEndedSession: a session that ends with a batch under way ends whole, and so does one whose handler panics.
func TestBatchOfEndedSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		c.api.handle = func(ctx context.Context, _ string, m *model.Message) *model.Message {
			switch m.Header.ID {
			case "hangs":
				<-ctx.Done()
			case "panics":
				panic("as a test")
			}
			return m.Respond(model.OK)
		}
		e := dialBatches(t, c, wire.AllFeatures())
		e.send(event("hangs"), event("a"))
		synctest.Wait()
		e.send(token("panics"), token("b"))
		wait.True(t, "the session to end", func() bool { return c.hub.session("n1") == nil })
	})
}
