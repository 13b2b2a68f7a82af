package metamanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// dropping is a bus on which nobody listens.
type dropping struct{}

func (dropping) Receive(ctx context.Context, _ string) (*model.Message, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (dropping) Send(context.Context, string, *model.Message) error { return nil }
func (dropping) SendSync(context.Context, string, *model.Message) (*model.Message, error) {
	return nil, errors.New("nobody listens")
}
func (dropping) SendResp(context.Context, *model.Message) error            { return nil }
func (dropping) SendToGroup(context.Context, string, *model.Message) error { return nil }

// gated is a store whose writes wait, fail or panic as the test says.
type gated struct {
	Store
	// gate, if not nil, is received from before each write.
	gate chan struct{}
	// fail, if not nil, is called before each write.
	fail func() error

	mu           sync.Mutex
	count        int
	now, highest int
}

func (g *gated) applies() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.count
}

func (g *gated) inside() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now
}

func (g *gated) enter(by int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += by
	g.count += max(by, 0)
	g.highest = max(g.highest, g.now)
}

func (g *gated) Apply(ctx context.Context, ops ...store.Op) error {
	g.enter(1)
	defer g.enter(-1)
	if g.gate != nil {
		select {
		case <-g.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if g.fail != nil {
		if err := g.fail(); err != nil {
			return err
		}
	}
	return g.Store.Apply(ctx, ops...)
}

// TestDurableBeforeAcknowledged: neither edged nor the cloud hears of what is not on the disk.
func TestDurableBeforeAcknowledged(t *testing.T) {
	s := &gated{gate: make(chan struct{})}
	e := newEdge(t, func(inner Store) Store { s.Store = inner; return s })
	var answered atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		e.ok(e.cloud("insert", "default/pod/one", object("default", "one", "u", "1")))
		answered.Store(true)
	})
	wait.True(t, "the write begins", func() bool { return s.inside() == 1 })
	if f := e.forwarded(); f != nil || answered.Load() {
		t.Errorf("before it was written: forwarded %v, answered %v; want none, false", f, answered.Load())
	}
	s.gate <- struct{}{}
	wg.Wait()
	if f := e.forwarded(); len(f) != 1 {
		t.Errorf("forwarded %v, want the pod", f)
	}
}

// TestFailingStore: nothing is acknowledged or handed on, the sender learns why, and it heals.
func TestFailingStore(t *testing.T) {
	full := true
	s := &gated{fail: func() error {
		if full {
			return fmt.Errorf("write: %w", store.ErrFull)
		}
		return nil
	}}
	e := newEdge(t, func(inner Store) Store { s.Store = inner; return s })
	pod := object("default", "one", "u", "1")
	for _, send := range []func() *model.Message{
		func() *model.Message { return e.cloud("insert", "default/pod/one", pod) },
		func() *model.Message { return e.cloud("delete", "default/pod/one", pod) },
		func() *model.Message {
			return e.edged("patch", "default/podpatch/one", quote(t, patch("u", "Running")))
		},
		func() *model.Message { return e.edged("delete", "default/pod/one", `{}`) },
	} {
		answer := send()
		if text := string(answer.ContentData()); answer.Route.Operation != model.OpError ||
			!strings.Contains(text, "the disk is full") || !strings.Contains(text, "default/pod") {
			t.Errorf("%s %q, want an error with the object and the cause", answer.Route.Operation, text)
		}
	}
	if f := e.forwarded(); f != nil {
		t.Errorf("forwarded = %v, want none", f)
	}
	full = false
	e.ok(e.cloud("insert", "default/pod/one", pod))
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u", "Running"))))
}

// TestHealthIsTold of each write's outcome.
func TestHealthIsTold(t *testing.T) {
	var told []error
	failing := true
	s := &gated{Store: openStore(t), fail: func() error {
		if failing {
			return store.ErrFull
		}
		return nil
	}}
	m := New(dropping{}, s, Options{Health: func(err error) { told = append(told, err) }})
	insert := model.New("edgecontroller", model.GroupResource, model.OpInsert, "default/pod/one",
		json.RawMessage(object("default", "one", "u", "1")))
	if _, err := m.executeOnce(t.Context(), insert); !errors.Is(err, store.ErrFull) {
		t.Errorf("do with a full store: %v, want %v", err, store.ErrFull)
	}
	failing = false
	if _, err := m.executeOnce(t.Context(), insert); err != nil {
		t.Error(err)
	}
	if len(told) != 2 || !errors.Is(told[0], store.ErrFull) || told[1] != nil {
		t.Errorf("told %v, want the failure and the success", told)
	}
}

// TestPanicIsOneMessage's own.
func TestPanicIsOneMessage(t *testing.T) {
	boom := true
	s := &gated{fail: func() error {
		if boom {
			panic("boom")
		}
		return nil
	}}
	e := newEdge(t, func(inner Store) Store { s.Store = inner; return s })
	pod := object("default", "one", "u", "1")
	if answer := e.cloud("insert", "default/pod/one", pod); answer.Route.Operation != model.OpError ||
		!strings.Contains(string(answer.Content), "default/pod/one") {
		t.Errorf("%s %s, want an error", answer.Route.Operation, answer.Content)
	}
	boom = false
	e.ok(e.cloud("insert", "default/pod/one", pod))
	if st := e.bus.Stats(); st[1].Module != model.ModuleMetaManager || st[1].Restarts != 0 {
		t.Errorf("stats = %+v, want the module %s with 0 restarts", st, model.ModuleMetaManager)
	}
}

// TestOneObjectInOrderOthersBeside: writes of one object never overlap, those of many do.
func TestOneObjectInOrderOthersBeside(t *testing.T) {
	s := &gated{gate: make(chan struct{})}
	e := newEdge(t, func(inner Store) Store { s.Store = inner; return s })
	send := func(res string, content string) {
		if err := e.bus.Send(t.Context(), model.ModuleMetaManager,
			model.New("edgecontroller", model.GroupResource, "update", res, json.RawMessage(content))); err != nil {
			t.Error(err)
		}
	}
	release := func(n int) {
		for range n {
			s.gate <- struct{}{}
		}
	}
	const n = inHand
	for i := range n {
		send("default/pod/same", object("default", "same", "u", fmt.Sprint(i+1)))
	}
	release(n)
	wait.True(t, "all are written", func() bool { return s.applies() == n && s.inside() == 0 })
	if s.highest != 1 {
		t.Errorf("writes of one object at a time = %d, want 1", s.highest)
	}
	for i := range n {
		name := fmt.Sprintf("p%d", i)
		send("default/pod/"+name, object("default", name, "u", "1"))
	}
	wait.True(t, "all are written at a time", func() bool { return s.inside() == inHand })
	release(n)
	wait.True(t, "all are written", func() bool { return s.applies() == 2*n && s.inside() == 0 })
}

// TestOrder: many senders and objects; edged sees each object's messages in the order of its sender.
func TestOrder(t *testing.T) {
	const objects, updates = 12, 40
	e := newEdge(t, nil, beehive.WithInbox(objects*updates))
	var wg sync.WaitGroup
	for o := range objects {
		name := fmt.Sprintf("p%d", o)
		wg.Go(func() {
			for u := range updates { // without waiting for one another
				m := model.New("edgecontroller", model.GroupResource, "update", "default/pod/"+name,
					json.RawMessage(object("default", name, "u", fmt.Sprint(u+1))))
				if err := e.bus.Send(t.Context(), model.ModuleMetaManager, m); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ctx := wait.Context(t)
	last := map[string]int{}
	for range objects * updates {
		m, err := e.bus.Receive(ctx, model.ModuleEdged)
		if err != nil {
			t.Fatal(err)
		}
		last[m.Route.Resource]++
		if want := object("default", strings.TrimPrefix(m.Route.Resource, "default/pod/"), "u",
			fmt.Sprint(last[m.Route.Resource])); string(m.Content) != want {
			t.Fatalf("%s: %s, want %s", m.Route.Resource, m.Content, want)
		}
	}
	wg.Wait()
}

// TestEdgedDoesNotKeepUp: what edged could not take is not acknowledged, and is handed on when it comes again.
func TestEdgedDoesNotKeepUp(t *testing.T) {
	e := newEdge(t, nil, beehive.WithInbox(1), beehive.WithTimeout(20*time.Millisecond))
	long := wait.Context(t)
	send := func(name string) *model.Message {
		answer, err := e.bus.SendSync(long, model.ModuleMetaManager,
			model.New("edgecontroller", model.GroupResource, "insert", "default/pod/"+name,
				json.RawMessage(object("default", name, "u", "1"))))
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	e.ok(send("one"))
	answer := send("two")
	if text := string(answer.ContentData()); answer.Route.Operation != model.OpError ||
		!strings.Contains(text, "default/pod/two") || !strings.Contains(text, "inbox is full") {
		t.Errorf("%s %q, want an error with the object and the cause", answer.Route.Operation, text)
	}
	e.forwarded()
	e.ok(send("two"))
	if f := e.forwarded(); len(f) != 1 {
		t.Errorf("forwarded %v, want two", f)
	}
	e.bus.Remove(model.ModuleEdged) // it will read the store when it comes back
	e.ok(send("three"))
}

// insertPods inserts 500 pods of 4 KB, one message at a time by each sender.
func insertPods(t testing.TB, e *edge, senders, round int) time.Duration {
	pad := strings.Repeat("x", 4096)
	pods := make(chan *model.Message, 500)
	for i := range 500 {
		name := fmt.Sprintf("p%d-%d", round, i)
		pods <- model.New("edgecontroller", model.GroupResource, "insert", "default/pod/"+name,
			json.RawMessage(`{"metadata":{"name":"`+name+`","namespace":"default","uid":"`+name+`"},"pad":"`+pad+`"}`))
	}
	close(pods)
	var wg sync.WaitGroup
	began := time.Now()
	for range senders {
		wg.Go(func() {
			for m := range pods {
				if answer, err := e.bus.SendSync(t.Context(), model.ModuleMetaManager, m); err != nil ||
					answer.Route.Operation != model.OpResponse {
					t.Errorf("answer %+v, %v; want an acknowledgement", answer, err)
				}
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

func BenchmarkInsert500Pods(b *testing.B) {
	for _, senders := range []int{1, 16} {
		b.Run(fmt.Sprintf("senders=%d", senders), func(b *testing.B) {
			e := newEdge(b, nil)
			e.bus.Remove(model.ModuleEdged)
			var total time.Duration
			for i := range b.N {
				total += insertPods(b, e, senders, i)
			}
			b.ReportMetric(float64(500*b.N)/total.Seconds(), "pods/s")
		})
	}
}
