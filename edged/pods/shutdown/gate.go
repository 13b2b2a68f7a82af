package shutdown

import (
	"context"
	"sync"
)

// Gate is closed while the device shuts down: no pod starts meanwhile. The zero value is open. Its methods may be
// called from any goroutine.
type Gate struct {
	mu    sync.Mutex
	open  context.Context // ends when the gate is closed; nil before it was asked for
	close context.CancelFunc
}

// untilClosed returns a context that ends when the gate is closed.
func (g *Gate) untilClosed() context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		g.open, g.close = context.WithCancel(context.Background())
	}
	return g.open
}

// Closed reports whether the gate is closed.
func (g *Gate) Closed() bool { return g.untilClosed().Err() != nil }

// Set closes the gate, or opens it again.
func (g *Gate) Set(closed bool) {
	g.untilClosed()
	g.mu.Lock()
	defer g.mu.Unlock()
	if closed {
		g.close()
	} else if g.open.Err() != nil {
		g.open = nil
	}
}

// Within returns a context that ends with ctx and when the gate is closed, so that a pull under way is canceled, for
// example. The caller must call the function that it returns.
func (g *Gate) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(g.untilClosed(), cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}
