package beehive

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// module is a Module made of a function.
type module struct {
	name, group string
	run         func(ctx context.Context) error
}

func (m *module) Name() string  { return m.name }
func (m *module) Group() string { return m.group }
func (m *module) Run(ctx context.Context) error {
	if m.run == nil {
		<-ctx.Done()
		return nil
	}
	return m.run(ctx)
}

func newBus(t testing.TB, opts []Option, modules ...*module) *Bus {
	t.Helper()
	b := New(opts...)
	for _, m := range modules {
		if err := b.Add(m); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// serve answers every request to a module until ctx ends.
func serve(b *Bus, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			m, err := b.Receive(ctx, name)
			if err != nil {
				return nil
			}
			if err := b.SendResp(ctx, m.Respond(model.OK)); err != nil && !errors.Is(err, ErrNoWaiter) {
				return err
			}
		}
	}
}

func message(n int) *model.Message {
	return model.New("test", "test", model.OpUpdate, fmt.Sprintf("default/pod/p%d", n), nil)
}

func TestGroupSendsKeepTheirOrder(t *testing.T) {
	b := newBus(t, []Option{WithInbox(2000)}, &module{name: "a", group: "g"}, &module{name: "b", group: "g"},
		&module{name: "c", group: "h"})
	const n = 1000
	for i := range n {
		if err := b.SendToGroup(t.Context(), "g", message(i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b"} {
		for i := range n {
			m, err := b.Receive(t.Context(), name)
			if want := fmt.Sprintf("default/pod/p%d", i); err != nil || m.Route.Resource != want {
				t.Fatalf("%s: message %d = %v, %v; want %s", name, i, m, err, want)
			}
		}
	}
	for _, s := range b.Stats() {
		if s.Waiting != 0 {
			t.Errorf("%+v: want an empty inbox", s)
		}
	}
}

func TestFullInboxIsAnErrorInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t, []Option{WithInbox(1), WithTimeout(time.Second)}, &module{name: "slow", group: "g"},
			&module{name: "quick", group: "g"})
		if err := b.Send(t.Context(), "slow", message(0)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := b.Send(t.Context(), "slow", message(1)); !errors.Is(err, ErrFull) {
			t.Errorf("err = %v, want ErrFull", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %v, want the limit of 1 s", took)
		}
		// One that does not keep up must not cost the others their message.
		if err := b.SendToGroup(t.Context(), "g", message(2)); !errors.Is(err, ErrFull) {
			t.Errorf("err = %v, want ErrFull", err)
		}
		if _, err := b.Receive(t.Context(), "quick"); err != nil {
			t.Error(err)
		}
	})
}

func TestUnknownReceivers(t *testing.T) {
	b := New()
	if err := b.Send(t.Context(), "x", message(0)); !errors.Is(err, ErrNoModule) {
		t.Errorf("Send = %v, want %v", err, ErrNoModule)
	}
	if err := b.SendToGroup(t.Context(), "x", message(0)); !errors.Is(err, ErrNoGroup) {
		t.Errorf("SendToGroup = %v, want %v", err, ErrNoGroup)
	}
	if err := b.SendResp(t.Context(), message(0)); !errors.Is(err, ErrNoWaiter) {
		t.Errorf("SendResp = %v, want %v", err, ErrNoWaiter)
	}
}

// TestAnswerIsNeverMissed: the answer may come before its waiter waits (upstream drops it then).
func TestAnswerIsNeverMissed(t *testing.T) {
	b := New()
	m := &module{name: "a", group: "g", run: serve(b, "a")}
	if err := b.Add(m); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = b.Run(ctx) })
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for i := range 2000 {
				req := message(i)
				answer, err := b.SendSync(ctx, "a", req)
				if err != nil || answer.Header.ParentID != req.Header.ID {
					t.Errorf("answer %v, %v; want one to %s", answer, err, req.Header.ID)
					return
				}
			}
		})
	}
	clients.Wait()
	cancel()
	wg.Wait()
}

func TestSendSyncEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t, nil, &module{name: "mute", group: "g"})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		req := message(0)
		if _, err := b.SendSync(ctx, "mute", req); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err = %v, want the deadline", err)
		}
		b2 := newBus(t, []Option{WithTimeout(3 * time.Second)}, &module{name: "mute", group: "g"})
		began := time.Now()
		if _, err := b2.SendSync(t.Context(), "mute", message(0)); !errors.Is(err, context.DeadlineExceeded) ||
			time.Since(began) != 3*time.Second {
			t.Errorf("err = %v after %v, want the limit of the bus", err, time.Since(began))
		}
		if err := b.SendResp(ctx, req.Respond(model.OK)); !errors.Is(err, ErrNoWaiter) {
			t.Errorf("late answer: %v, want ErrNoWaiter", err)
		}
		go func() {
			time.Sleep(time.Second)
			b.Remove("mute")
		}()
		if _, err := b.SendSync(t.Context(), "mute", message(1)); !errors.Is(err, ErrRemoved) {
			t.Errorf("err = %v, want ErrRemoved", err)
		}
	})
}

func TestSendToGroupSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		for _, name := range []string{"a", "b"} {
			if err := b.Add(&module{name: name, group: "g", run: serve(b, name)}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = b.Run(ctx) }()
		answers, err := b.SendToGroupSync(ctx, "g", message(0))
		if err != nil || len(answers) != 2 {
			t.Errorf("%d answers, %v; want 2", len(answers), err)
		}
		if err := b.Add(&module{name: "mute", group: "g"}); err != nil {
			t.Fatal(err)
		}
		answers, err = b.SendToGroupSync(ctx, "g", message(1))
		if !errors.Is(err, context.DeadlineExceeded) || len(answers) != 2 {
			t.Errorf("%d answers, %v; want 2 and the deadline", len(answers), err)
		}
		cancel()
		synctest.Wait()
	})
}

// TestFailingModuleRestartsAlone: its inbox survives, the others run on.
func TestFailingModuleRestartsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		var runs, got atomic.Int32
		bad := &module{name: "bad", group: "g"}
		bad.run = func(ctx context.Context) error {
			switch runs.Add(1) {
			case 1:
				panic("boom")
			case 2:
				return errors.New("no")
			}
			for {
				if _, err := b.Receive(ctx, "bad"); err != nil {
					return nil
				}
				got.Add(1)
			}
		}
		if err := b.Add(bad); err != nil {
			t.Fatal(err)
		}
		if err := b.Add(&module{name: "good", group: "g", run: serve(b, "good")}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = b.Run(ctx) }()
		for i := range 3 {
			if err := b.Send(ctx, "bad", message(i)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.SendSync(ctx, "good", message(0)); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if runs.Load() != 3 || got.Load() != 3 {
			t.Errorf("%d runs, %d messages; want 3 and 3", runs.Load(), got.Load())
		}
		cancel()
		synctest.Wait()
	})
}

func TestAddTwiceAndAfterRemove(t *testing.T) {
	b := newBus(t, nil, &module{name: "a", group: "g"})
	if err := b.Add(&module{name: "a", group: "g"}); err == nil {
		t.Error("Add of a second module of the same name = nil, want an error")
	}
	b.Remove("a")
	b.Remove("a")
	if err := b.Add(&module{name: "a", group: "g"}); err != nil {
		t.Error(err)
	}
}

// TestHopAllocatesNothing: a message is all that a hop costs.
func TestHopAllocatesNothing(t *testing.T) {
	b := newBus(t, nil, &module{name: "a", group: "g"})
	m, ctx := message(0), t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		if err := b.Send(ctx, "a", m); err != nil {
			t.Error(err)
		}
		if _, err := b.Receive(ctx, "a"); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a hop, want none", n)
	}
}

func BenchmarkSendReceive(b *testing.B) {
	bus := newBus(b, nil, &module{name: "a", group: "g"})
	m, ctx := message(0), b.Context()
	b.ReportAllocs()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range b.N {
			if _, err := bus.Receive(ctx, "a"); err != nil {
				b.Error(err)
				return
			}
		}
	}()
	for range b.N {
		if err := bus.Send(ctx, "a", m); err != nil {
			b.Fatal(err)
		}
	}
	<-done
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mmsg/s")
}

func BenchmarkSendSync(b *testing.B) {
	for name, limit := range map[string]time.Duration{"deadline": time.Hour, "no deadline": 0} {
		b.Run(name, func(b *testing.B) { benchmarkSendSync(b, limit) })
	}
}

func benchmarkSendSync(b *testing.B, limit time.Duration) {
	bus := New()
	if err := bus.Add(&module{name: "a", group: "g"}); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	go func() {
		for {
			m, err := bus.Receive(ctx, "a")
			if err != nil {
				return
			}
			answer := &model.Message{Header: model.Header{ParentID: m.Header.ID}}
			if err := bus.SendResp(ctx, answer); err != nil {
				b.Error(err)
			}
		}
	}()
	asking := ctx
	if limit > 0 {
		var end context.CancelFunc
		asking, end = context.WithTimeout(ctx, limit)
		defer end()
	}
	m := message(0)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := bus.SendSync(asking, "a", m); err != nil {
			b.Fatal(err)
		}
	}
}
