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

// This file notices modules that are stuck: that hold their inbox up, or do not answer when they are asked whether they
// live. Such a module is ended and run again; one that does not even end is beyond the bus, and Alive says so, for
// anyone who watches the process.

// Prober is a module that can report whether it lives. A module without it is judged by its inbox alone.
type Prober interface {
	// Alive returns when the module's parts have answered, with an error where one is stuck for good. That it does not
	// return before ctx ends says the same. It is called from a goroutine of its own, one at a time.
	Alive(ctx context.Context) error
}

const (
	// stuckAfter is how many looks in a row have to find a module stuck: the first may have met a slow disk.
	stuckAfter = 2
	// endWithin is how long a stuck module has to end.
	endWithin = 30 * time.Second
)

// errStuck is why a stuck module is ended.
var errStuck = errors.New("module is stuck")

// WithWatch has the bus look every so often whether each module lives.
func WithWatch(period time.Duration) Option { return func(b *Bus) { b.watch = period } }

// vitals is what the watch knows of a module.
type vitals struct {
	mu sync.Mutex
	// taken is how many messages the module had taken at the last look, waited whether some were left then.
	taken  uint64
	waited bool
	// asking: an Alive has not returned yet. silent: the last one did not in time.
	asking, silent bool
	// late is how many looks in a row found the module stuck.
	late int
	// end ends the run under way; nil while none is.
	end context.CancelCauseFunc
	// ordered is when the run was told to end for being stuck; zero when it was not.
	ordered time.Time
	why     error
}

// begin notes that a run begins, and returns its context.
func (v *vitals) begin(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.end, v.late, v.ordered, v.waited, v.silent, v.why = end, 0, time.Time{}, false, false, nil
	return ctx, end
}

// over notes that a run is over, and returns whether it was ended for being stuck, and why.
func (v *vitals) over() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.end = nil
	if v.ordered.IsZero() {
		return nil
	}
	v.ordered = time.Time{}
	return fmt.Errorf("%w: %w", errStuck, v.why)
}

// runWatch looks at the modules until ctx ends.
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
			b.lookAt(ctx, mem)
		}
	}
}

// lookAt looks at one module, and ends its run where it is stuck.
func (b *Bus) lookAt(ctx context.Context, mem *member) {
	v := &mem.vitals
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.end == nil || !v.ordered.IsZero() {
		return // it waits for its restart, or was told to end
	}
	taken, waiting := mem.taken.Load(), len(mem.inbox)
	switch {
	case v.asking || v.silent:
		v.late, v.why = v.late+1, errors.New("it does not say that it lives")
	case v.waited && waiting > 0 && taken == v.taken:
		v.late, v.why = v.late+1, fmt.Errorf("it takes no message, and %d wait", waiting)
	default:
		v.late, v.why = 0, nil
	}
	v.taken, v.waited = taken, waiting > 0
	if v.late >= stuckAfter {
		klog.ErrorS(v.why, "Module is stuck; it is restarted", "module", mem.module.Name())
		v.ordered = time.Now()
		v.end(errStuck)
		return
	}
	if p, ok := mem.module.(Prober); ok && !v.asking {
		v.asking = true
		go b.ask(ctx, mem, p) // not waited for at the end: it may be stuck, which is what it is to find out
	}
}

// ask asks a module whether it lives.
func (b *Bus) ask(ctx context.Context, mem *member, p Prober) {
	ctx, cancel := context.WithTimeout(ctx, b.watch*9/10) // over before the next look, so that one silence counts once
	defer cancel()
	err := func() (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("it panicked: %v", r)
			}
		}()
		return p.Alive(ctx)
	}()
	v := &mem.vitals
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.asking, v.silent = false, ctx.Err() != nil; v.silent {
		return
	}
	if err != nil && v.end != nil && v.ordered.IsZero() {
		klog.ErrorS(err, "Module says that it is stuck; it is restarted", "module", mem.module.Name())
		v.ordered, v.why = time.Now(), err
		v.end(errStuck)
	}
}

// Alive returns nil unless a module is stuck that could not be ended either: then only the end of the process helps.
func (b *Bus) Alive() error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for name, mem := range b.modules {
		v := &mem.vitals
		v.mu.Lock()
		ordered, why := v.ordered, v.why
		v.mu.Unlock()
		if !ordered.IsZero() && time.Since(ordered) > endWithin {
			return fmt.Errorf("module %s is stuck (%w), and did not end within %v", name, why, endWithin)
		}
	}
	return nil
}
