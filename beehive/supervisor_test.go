package beehive

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestBackoff: failures in a row wait longer and longer, spread, up to a limit; one after a good run does not.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		const failures = 14
		var starts []time.Time
		bad := &module{name: "bad", group: "g"}
		bad.run = func(ctx context.Context) error {
			starts = append(starts, time.Now())
			switch {
			case len(starts) <= failures:
				return errors.New("no")
			case len(starts) == failures+1: // runs well for a while
				time.Sleep(stableAfter)
				return errors.New("no")
			}
			<-ctx.Done()
			return nil
		}
		if err := b.Add(bad); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := b.Run(ctx); err != nil {
			t.Error(err)
		}
		if len(starts) != failures+2 {
			t.Fatalf("%d runs, want %d", len(starts), failures+2)
		}
		between := func(what string, got, delay time.Duration) {
			if got < delay/2 || got > delay*3/2 {
				t.Errorf("%s: restarted after %v, want about %v", what, got, delay)
			}
		}
		delay, even := restartMin, 0
		for i := range failures {
			gap := starts[i+1].Sub(starts[i])
			between(fmt.Sprintf("failure %d", i), gap, delay)
			if gap == delay {
				even++
			}
			delay = min(2*delay, restartMax)
		}
		if even > failures/2 {
			t.Errorf("%d of %d delays have no spread, want at most %d", even, failures, failures/2)
		}
		if delay != restartMax {
			t.Errorf("last delay = %v, want the limit %v", delay, restartMax)
		}
		between("after a good run", starts[failures+1].Sub(starts[failures])-stableAfter, restartMin)
	})
}

// TestFailures: the bus reports each failure of a module, and once that it has run long enough since, or has left.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []string
		b := New(WithFailures(func(module string, err error) {
			mu.Lock()
			defer mu.Unlock()
			text := "is well"
			if err != nil {
				text, _, _ = strings.Cut(err.Error(), "\n")
			}
			got = append(got, module+": "+text)
		}))
		runs := 0
		bad := &module{name: "bad", group: "g", run: func(ctx context.Context) error {
			switch runs++; runs {
			case 1:
				return errors.New("port in use")
			case 2:
				explode(ctx)
			case 3:
				time.Sleep(2 * stableAfter)
				return errors.New("late")
			case 4:
				time.Sleep(stableAfter / 2)
				return errors.New("early")
			}
			time.Sleep(stableAfter / 2)
			return nil
		}}
		good := &module{name: "good", group: "g", run: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		if err := errors.Join(b.Add(bad), b.Add(good)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := b.Run(ctx); err != nil {
			t.Error(err)
		}
		want := []string{
			"bad: port in use", "bad: module bad panicked: boom", "bad: is well", "bad: late", "bad: early",
			"bad: is well",
		}
		if !slices.Equal(got, want) {
			t.Errorf("reported %q, want %q", got, want)
		}
	})
}

func TestPanicNamesItsPlace(t *testing.T) {
	err := runOnce(t.Context(), &module{name: "bad", group: "g", run: explode})
	if err == nil || !strings.Contains(err.Error(), "module bad panicked: boom") ||
		!strings.Contains(err.Error(), "beehive.explode") {
		t.Errorf("err = %v; want the module, the cause and the stack", err)
	}
}

func explode(context.Context) error { panic("boom") }

// TestModuleThatEndsLeavesTheBus: nobody may wait for it until a deadline.
func TestModuleThatEndsLeavesTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		short := &module{name: "short", group: "g", run: func(ctx context.Context) error {
			time.Sleep(time.Second)
			return nil
		}}
		if err := b.Add(short); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.Run(ctx) })
		began := time.Now()
		if _, err := b.SendSync(ctx, "short", message(0)); !errors.Is(err, ErrRemoved) {
			t.Errorf("request under way: %v, want ErrRemoved", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it failed after %v, want 1 s", took)
		}
		if _, err := b.SendSync(ctx, "short", message(1)); !errors.Is(err, ErrNoModule) {
			t.Errorf("request afterwards: %v, want ErrNoModule", err)
		}
		if err := b.SendToGroup(ctx, "g", message(1)); !errors.Is(err, ErrNoGroup) {
			t.Errorf("group afterwards: %v, want ErrNoGroup", err)
		}
		if s := b.Stats(); len(s) != 0 {
			t.Errorf("Stats = %v, want none", s)
		}
		cancel()
		wg.Wait()
		if err := b.Add(short); !errors.Is(err, ErrStopped) {
			t.Errorf("added after the end: %v, want ErrStopped", err)
		}
		if err := b.Run(t.Context()); err == nil {
			t.Error("second Run of a bus = nil, want an error")
		}
	})
}

// TestRemoveWhileAGroupIsAsked: the others' answers count, and the time is not waited out.
func TestRemoveWhileAGroupIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		if err := errors.Join(b.Add(&module{name: "mute", group: "g"}),
			b.Add(&module{name: "a", group: "g", run: serve(b, "a")})); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = b.Run(ctx) }()
		go func() {
			time.Sleep(time.Second)
			b.Remove("mute")
		}()
		began, req := time.Now(), message(0)
		answers, err := b.SendToGroupSync(ctx, "g", req)
		if !errors.Is(err, ErrRemoved) || len(answers) != 1 || answers[0].Header.ParentID != req.Header.ID {
			t.Errorf("%v, %v; want one answer and ErrRemoved", answers, err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %v, want 1 s", took)
		}
		cancel()
		synctest.Wait()
	})
}

// TestReplacedModule: one that was removed takes nothing from its successor of the same name.
func TestReplacedModule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		var old, now []*model.Message
		collect := func(into *[]*model.Message) func(context.Context) error {
			return func(ctx context.Context) error {
				for {
					m, err := b.Receive(ctx, "a")
					if err != nil {
						return err
					}
					*into = append(*into, m)
					time.Sleep(time.Second) // busy when it is removed
				}
			}
		}
		if err := b.Add(&module{name: "a", group: "g", run: collect(&old)}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = b.Run(ctx) }()
		if err := b.Send(ctx, "a", message(0)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		b.Remove("a")
		if err := b.Add(&module{name: "a", group: "g", run: collect(&now)}); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := b.Send(ctx, "a", message(i)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(old) != 1 || len(now) != 3 {
			t.Errorf("the old one got %d, the new one %d messages; want 1 and 3", len(old), len(now))
		}
		cancel()
		synctest.Wait()
	})
}

// TestModulesEndInReverse: what is told at the end still has someone to hear it.
func TestModulesEndInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		var ended []string
		if err := b.Add(&module{name: "store", group: "g", run: func(ctx context.Context) error {
			err := serve(b, "store")(ctx)
			ended = append(ended, "store")
			return err
		}}); err != nil {
			t.Fatal(err)
		}
		if err := b.Add(&module{name: "worker", group: "h", run: func(ctx context.Context) error {
			<-ctx.Done()
			if _, err := b.SendSync(context.WithoutCancel(ctx), "store", message(0)); err != nil {
				t.Errorf("last report: %v", err)
			}
			ended = append(ended, "worker")
			return nil
		}}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Run(ctx); err != nil {
			t.Error(err)
		}
		if !slices.Equal(ended, []string{"worker", "store"}) {
			t.Errorf("ended = %v, want worker, then store", ended)
		}
	})
}

// TestEndUnderFire: senders, requests, additions and removals while the bus ends. Nothing panics, all return.
func TestEndUnderFire(t *testing.T) {
	b := New(WithInbox(4), WithTimeout(50*time.Millisecond))
	add := func(name string) error { return b.Add(&module{name: name, group: "g", run: serve(b, name)}) }
	if err := errors.Join(add("a"), add("b")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = b.Run(ctx) })
	known := func(err error) bool {
		for _, e := range []error{
			nil, ErrNoModule, ErrNoGroup, ErrFull, ErrRemoved, ErrStopped, context.DeadlineExceeded,
		} {
			if errors.Is(err, e) {
				return true
			}
		}
		return false
	}
	const rounds = 300
	half := make(chan struct{})
	for i := range 4 {
		wg.Go(func() {
			for n := range rounds {
				if i == 0 && n == rounds/2 {
					close(half)
				}
				_, one := b.SendSync(context.Background(), "a", message(n))
				_, all := b.SendToGroupSync(context.Background(), "g", message(n))
				if err := b.Send(context.Background(), "b", message(n)); !known(err) || !known(one) || !known(all) {
					t.Errorf("errors %v, %v, %v; want none or those of the bus", err, one, all)
				}
			}
		})
	}
	wg.Go(func() {
		for n := range rounds {
			name := fmt.Sprintf("extra%d", n%3)
			b.Remove(name)
			if err := add(name); !known(err) {
				t.Errorf("add(%s) = %v, want no error or one of the bus", name, err)
			}
			runtime.Gosched()
		}
	})
	<-half
	cancel()
	wg.Wait()
}

// TestNoGoroutineForAMessage: what waits, waits in the inbox or in its sender.
func TestNoGoroutineForAMessage(t *testing.T) {
	b := newBus(t, []Option{WithInbox(1000), WithTimeout(time.Millisecond)}, &module{name: "a", group: "g"},
		&module{name: "b", group: "g"})
	before := runtime.NumGoroutine()
	for i := range 1000 {
		if err := b.SendToGroup(t.Context(), "g", message(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.SendToGroup(t.Context(), "g", message(0)); !errors.Is(err, ErrFull) {
		t.Errorf("err = %v, want ErrFull", err)
	}
	wait.Until(t, "the goroutines of timers to end", func() error {
		if now := runtime.NumGoroutine(); now > before {
			return fmt.Errorf("%d goroutines, %d before", now, before)
		}
		return nil
	})
}
