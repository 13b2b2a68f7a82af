package beehive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// This file detects stuck modules: modules that leave messages in their inbox, or do not answer Alive. Such a module is
// restarted; if it cannot even be stopped, Bus.Alive reports it to whatever supervises the process.

// Prober is a module that can report whether it is alive. Other modules are judged by their inbox alone.
type Prober interface {
	// Alive returns when the module's parts have answered, with an error if one is stuck for good. Not returning before
	// ctx ends means the same. It is called from its own goroutine, one call at a time.
	Alive(ctx context.Context) error
}

const (
	// stuckAfter is how many checks in a row must find a module stuck: the first may have met a slow disk.
	stuckAfter = 2
	// stopTimeout is how long a stuck module has to stop.
	stopTimeout = 30 * time.Second
)

// errStuck is the reason for stopping a stuck module.
var errStuck = errors.New("module is stuck")

// WithWatch makes the bus check periodically whether each module is alive.
func WithWatch(period time.Duration) Option { return func(b *Bus) { b.watch = period } }

// liveness is the watch's state of a module.
type liveness struct {
	mu sync.Mutex
	// taken is how many messages the module had taken at the last check, waited whether some were left then.
	taken  uint64
	waited bool
	// asking: a call of Alive has not returned. silent: the last one timed out.
	asking, silent bool
	// late is how many checks in a row found the module stuck.
	late int
	// end stops the current run; nil if there is none.
	end context.CancelCauseFunc
	// ordered is when the run was told to stop for being stuck; zero if it was not.
	ordered time.Time
	why     error
}

// startRun records the start of a run, and returns its context.
func (v *liveness) startRun(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.end, v.late, v.ordered, v.waited, v.silent, v.why = end, 0, time.Time{}, false, false, nil
	return ctx, end
}

// finish records the end of a run, and returns why it was stopped if it was stuck.
func (v *liveness) finish() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.end = nil
	if v.ordered.IsZero() {
		return nil
	}
	v.ordered = time.Time{}
	return fmt.Errorf("%w: %w", errStuck, v.why)
}

// runWatch checks the modules until ctx ends.
func (b *Bus) runWatch(ctx context.Context) {
	ticker := time.NewTicker(b.watch)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		b.mu.RLock()
		list := slices.Clone(b.order)
		b.mu.RUnlock()
		for _, mem := range list {
			b.checkModule(ctx, mem)
		}
	}
}

// checkModule checks one module, and stops its run if it is stuck.
func (b *Bus) checkModule(ctx context.Context, mem *member) {
	v := &mem.liveness
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.end == nil || !v.ordered.IsZero() {
		return // it waits for its restart, or was told to stop
	}
	taken, waiting := mem.taken.Load(), len(mem.inbox)
	switch {
	case v.asking || v.silent:
		v.late, v.why = v.late+1, errors.New("it sends no heartbeat")
	case v.waited && waiting > 0 && taken == v.taken:
		v.late, v.why = v.late+1, fmt.Errorf("it receives no message, and %d are waiting", waiting)
	default:
		v.late, v.why = 0, nil
	}
	v.taken, v.waited = taken, waiting > 0
	if v.late >= stuckAfter {
		klog.ErrorS(v.why, "Module is stuck; restarting it", "module", mem.module.Name())
		v.ordered = time.Now()
		v.end(errStuck)
		return
	}
	if p, ok := mem.module.(Prober); ok && !v.asking {
		v.asking = true
		go b.callAlive(ctx, mem, p) // not awaited at the end: it may be stuck, which this is to find out
	}
}

// callAlive calls a module's Alive.
func (b *Bus) callAlive(ctx context.Context, mem *member, p Prober) {
	ctx, cancel := context.WithTimeout(ctx, b.watch*9/10) // before the next check, to count a silence once
	defer cancel()
	err := func() (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("it panicked: %v", r)
			}
		}()
		return p.Alive(ctx)
	}()
	v := &mem.liveness
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.asking, v.silent = false, ctx.Err() != nil; v.silent {
		return
	}
	if err != nil && v.end != nil && v.ordered.IsZero() {
		klog.ErrorS(err, "Module reports that it is stuck; restarting it", "module", mem.module.Name())
		v.ordered, v.why = time.Now(), err
		v.end(errStuck)
	}
}

// Alive returns an error if a stuck module could not be stopped: then only restarting the process helps.
func (b *Bus) Alive() error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for name, mem := range b.modules {
		v := &mem.liveness
		v.mu.Lock()
		ordered, why := v.ordered, v.why
		v.mu.Unlock()
		if !ordered.IsZero() && time.Since(ordered) > stopTimeout {
			return fmt.Errorf("module %s is stuck (%w), and did not stop within %v", name, why, stopTimeout)
		}
	}
	return nil
}
