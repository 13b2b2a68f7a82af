package beehive

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// living is a module that reports whether it lives.
type living struct {
	module
	alive func(ctx context.Context) error
}

func (l *living) Alive(ctx context.Context) error { return l.alive(ctx) }

// TestStuckModuleIsRestarted: one that takes no message, one that does not answer, and one that says so itself; one
// that works or has nothing to do is left alone.
func TestStuckModuleIsRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(WithWatch(30 * time.Second))
		runs := map[string]*atomic.Int32{}
		add := func(name string, healthy func(context.Context) error, alive func(context.Context) error) {
			count := &atomic.Int32{}
			runs[name] = count
			m := module{name: name, group: "g"}
			m.run = func(ctx context.Context) error {
				if count.Add(1) == 1 || healthy != nil {
					if healthy != nil {
						return healthy(ctx)
					}
					<-ctx.Done() // stuck, but for its end
					return nil
				}
				return serve(b, name)(ctx)
			}
			var one Module = &m
			if alive != nil {
				one = &living{m, alive}
			}
			if err := b.Add(one); err != nil {
				t.Fatal(err)
			}
		}
		add("deaf", nil, nil)
		first := func(f func(context.Context) error) func(context.Context) error {
			var n atomic.Int32
			return func(ctx context.Context) error {
				if n.Add(1) == 1 {
					return f(ctx)
				}
				return nil
			}
		}
		var silent atomic.Int32
		add("silent", nil, func(ctx context.Context) error {
			if silent.Add(1) > 2 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
		add("ill", nil, first(func(context.Context) error { return errors.New("a lock is held") }))
		add("idle", func(ctx context.Context) error { <-ctx.Done(); return nil }, nil)
		add("busy", func(ctx context.Context) error {
			return serve(b, "busy")(ctx)
		}, func(context.Context) error { return nil })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		if err := b.Send(ctx, "deaf", message(1)); err != nil {
			t.Fatal(err)
		}
		for range 60 {
			if _, err := b.SendSync(ctx, "busy", message(2)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
		}
		synctest.Wait()
		for name, want := range map[string]int32{"deaf": 2, "silent": 2, "ill": 2, "idle": 1, "busy": 1} {
			if got := runs[name].Load(); got != want {
				t.Errorf("%s was run %d times, want %d", name, got, want)
			}
		}
		if err := b.Alive(); err != nil {
			t.Error(err)
		}
		for _, s := range b.Stats() {
			if s.Waiting != 0 {
				t.Errorf("%+v: want what waited to be taken after the restart", s)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestBeyondTheBus: a module that does not end although it is told to is for anyone who watches the process.
func TestBeyondTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(WithWatch(time.Minute))
		hold := make(chan struct{})
		if err := b.Add(&module{name: "stuck", group: "g", run: func(context.Context) error {
			<-hold
			return nil
		}}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		if err := b.Send(ctx, "stuck", message(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3*time.Minute + stopTimeout/2)
		if err := b.Alive(); err != nil {
			t.Errorf("too early: %v", err)
		}
		time.Sleep(stopTimeout)
		if err := b.Alive(); err == nil ||
			!strings.Contains(err.Error(), "module stuck is stuck (it receives no message, and 1 are waiting)") {
			t.Errorf("Alive = %v, want that stuck receives no message, and 1 are waiting", err)
		}
		cancel()
		close(hold)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
