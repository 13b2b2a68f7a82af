package beehive

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	restartMin = 100 * time.Millisecond
	restartMax = 30 * time.Second
	// stableAfter is how long a module must run for its failures to be forgotten.
	stableAfter = time.Minute
)

// Run runs all modules until ctx ends, then stops them, the last added first, and returns when all have stopped. Call
// it once.
func (b *Bus) Run(ctx context.Context) error {
	b.mu.Lock()
	if b.running != nil {
		b.mu.Unlock()
		return errors.New("the bus was started already")
	}
	b.running = context.WithoutCancel(ctx)
	for _, mem := range b.order {
		b.start(mem)
	}
	b.mu.Unlock()
	if b.started != nil {
		b.started()
	}
	if b.watch > 0 {
		b.wg.Go(func() { b.runWatch(ctx) })
	}

	<-ctx.Done()
	b.mu.Lock()
	b.stopping = true
	order := slices.Clone(b.order)
	b.mu.Unlock()
	for _, mem := range slices.Backward(order) {
		mem.cancel()
		<-mem.ended
	}
	b.wg.Wait() // removed modules that have not stopped yet
	return nil
}

// start runs a module in its goroutine; b.mu is held.
func (b *Bus) start(mem *member) {
	ctx, cancel := context.WithCancel(b.running)
	mem.cancel = cancel
	b.wg.Go(func() {
		defer close(mem.ended)
		defer cancel()
		b.supervise(ctx, mem)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.drop(mem)
	})
}

// supervise restarts a module until it ends by itself or ctx does.
func (b *Bus) supervise(ctx context.Context, mem *member) {
	name, failing := mem.module.Name(), false
	defer func() {
		if failing {
			b.failed(name, nil)
		}
	}()
	for backoff := retry.NewBackoff(restartMin, restartMax); ; {
		began := time.Now()
		run, end := mem.liveness.startRun(ctx)
		recovered := b.awaitRecovery(run, name, failing)
		err := runOnce(run, mem.module)
		end(nil)
		failing = failing && !recovered()
		if stuck := mem.liveness.finish(); stuck != nil {
			err = errors.Join(stuck, err)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		if time.Since(began) >= stableAfter {
			backoff.Reset()
		}
		delay := backoff.Next()
		klog.ErrorS(err, "Module failed; restarting it", "module", name, "in", delay.Round(time.Millisecond))
		failing = true
		b.failed(name, err)
		if !retry.Sleep(ctx, delay) {
			return
		}
		b.mu.Lock()
		mem.restarts++
		b.mu.Unlock()
	}
}

// awaitRecovery calls failed with nil when a module that failed before has run long enough. recovered, to be called
// once run has ended, waits and reports whether it did.
func (b *Bus) awaitRecovery(run context.Context, name string, failing bool) (recovered func() bool) {
	if !failing {
		return func() bool { return false }
	}
	stable := make(chan bool, 1)
	go func() {
		is := retry.Sleep(run, stableAfter)
		if is {
			b.failed(name, nil)
		}
		stable <- is
	}()
	return func() bool { return <-stable }
}

// runOnce runs a module and converts a panic to an error.
func runOnce(ctx context.Context, m Module) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("module %s panicked: %v\n%s", m.Name(), r, debug.Stack())
		}
	}()
	return m.Run(ctx)
}
