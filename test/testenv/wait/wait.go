// Package wait lets tests wait for a condition instead of for time to pass.
//
// Every wait has the same limit, [limit.Wait]. It is far longer than anything takes on a busy machine, so it says
// nothing about speed: a test that reaches it has found something that does not happen. Speed is measured by `make
// bench`.
package wait

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/limit"
)

// interval is the time between two checks of a condition.
const interval = 10 * time.Millisecond

// Max returns the limit on this machine: longer where [daemon.SlowdownEnv] says that the machine is slow.
func Max() time.Duration { return daemon.Scaled(limit.Wait) }

// Until calls check until it returns nil. It fails the test with the last error when Max has passed, and at once when
// the error is a [daemon.Fatal] one. what names the condition, for the failure's message.
func Until(t testing.TB, what string, check func() error) {
	t.Helper()
	ctx, cancel := daemon.Within(context.WithoutCancel(t.Context())) // t.Context has ended in a Cleanup
	defer cancel()
	if err := daemon.PollEvery(ctx, interval, check); err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// True calls ok until it returns true, as Until does.
func True(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Until(t, what, func() error {
		if !ok() {
			return fmt.Errorf("it has not happened")
		}
		return nil
	})
}

// Receive returns the next value of a channel. It fails the test when there is none after Max, or the channel is
// closed.
func Receive[T any](t testing.TB, what string, values <-chan T) T {
	t.Helper()
	timer := time.NewTimer(Max())
	defer timer.Stop()
	select {
	case v, ok := <-values:
		if !ok {
			t.Fatalf("waiting for %s: the channel is closed", what)
		}
		return v
	case <-timer.C:
		t.Fatalf("waiting for %s: nothing came within %v", what, Max())
	}
	panic("unreachable")
}

// Closed waits until a channel is closed. It drops values that arrive before.
func Closed[T any](t testing.TB, what string, done <-chan T) {
	t.Helper()
	timer := time.NewTimer(Max())
	defer timer.Stop()
	for {
		select {
		case _, ok := <-done:
			if !ok {
				return
			}
		case <-timer.C:
			t.Fatalf("waiting for %s: it has not ended within %v", what, Max())
		}
	}
}

// Context returns a context for calls that must return: it ends with the test, or after Max.
func Context(t testing.TB) context.Context {
	ctx, cancel := daemon.Within(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	return ctx
}
