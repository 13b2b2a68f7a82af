package edged

import (
	"context"
	"sync"
)

// gate is what pods pass through on their way to their start. It is shut while the device is shut down. The zero value
// is open.
type gate struct {
	mu   sync.Mutex
	open context.Context // ends when the gate is shut; nil before anybody has asked
	shut context.CancelFunc
}

// now returns a context that lasts as long as the gate is open.
func (g *gate) now() context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		g.open, g.shut = context.WithCancel(context.Background())
	}
	return g.open
}

// isShut tells whether nothing may start.
func (g *gate) isShut() bool { return g.now().Err() != nil }

// set shuts the gate, or opens it again.
func (g *gate) set(shut bool) {
	g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if shut {
		g.shut()
	} else if g.open.Err() != nil {
		g.open = nil
	}
}

// within returns a context that ends with ctx, and when the gate is shut: what is on its way (a pull, say) turns back.
func (g *gate) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(g.now(), cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}
