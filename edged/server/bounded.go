package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"

	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/source"
)

const (
	// maxConnections bounds those of a port: anybody can open one.
	maxConnections = 256
	// maxFromSource bounds the unauthenticated ones of a source.
	maxFromSource = 64
)

// bounded is a listener with a bound on open connections, shared so that no source can use it up for the others:
//
//   - A connection is unauthenticated until it is admitted. A source (package source) has at most share unauthenticated
//     connections; more are closed at once. The loopback has no such bound.
//   - When all places are taken, a new connection takes that of the oldest unauthenticated one of the source that has
//     most of them, unless its own source has as many.
//   - When admitted connections have all places, others wait in the kernel's queue.
type bounded struct {
	net.Listener
	size, share int
	// room says that a connection was closed. closed is closed with the listener.
	room   notify.Signal
	closed chan struct{}
	once   sync.Once

	mu sync.Mutex
	// unauthenticated are the connections of each source, the oldest first; admitted counts the others.
	unauthenticated map[netip.Prefix][]*boundedConn
	admitted        int
	// last is the number of the newest connection.
	last uint64
}

func newBounded(l net.Listener, size, share int) *bounded {
	return &bounded{
		Listener: l, size: size, share: share, room: notify.NewSignal(), closed: make(chan struct{}),
		unauthenticated: map[netip.Prefix][]*boundedConn{},
	}
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		if err := b.await(); err != nil {
			return nil, err
		}
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		own := &boundedConn{Conn: c, of: b, source: placeOf(c.RemoteAddr())}
		victim, ok := b.enter(own)
		if victim != nil {
			_ = victim.Conn.Close() // it has lost its place already
		}
		if ok {
			return own, nil
		}
		_ = c.Close()
	}
}

// await waits until not all places belong to admitted connections.
func (b *bounded) await() error {
	for {
		b.mu.Lock()
		full := b.admitted >= b.size
		b.mu.Unlock()
		select {
		case <-b.closed:
			return net.ErrClosed
		default:
		}
		if !full {
			return nil
		}
		select {
		case <-b.room:
		case <-b.closed:
			return net.ErrClosed
		}
	}
}

// enter admits a new connection, or not; victim is the connection that is closed for it, if any.
func (b *bounded) enter(c *boundedConn) (victim *boundedConn, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	have := len(b.unauthenticated[c.source])
	if c.source.IsValid() && have >= b.share {
		return nil, false
	}
	total, most := b.admitted, netip.Prefix{}
	for from, list := range b.unauthenticated {
		total += len(list)
		if top := b.unauthenticated[most]; len(list) > len(top) ||
			len(list) == len(top) && list[0].number < top[0].number {
			most = from
		}
	}
	if total >= b.size {
		if len(b.unauthenticated[most]) <= have {
			return nil, false
		}
		victim = b.unauthenticated[most][0]
		b.leave(victim)
	}
	b.last++
	c.number = b.last
	b.unauthenticated[c.source] = append(b.unauthenticated[c.source], c)
	return victim, true
}

// leave takes a connection off the count, once. b.mu is held.
func (b *bounded) leave(c *boundedConn) {
	if c.gone {
		return
	}
	c.gone = true
	if c.admitted {
		b.admitted--
		b.room.Notify()
		return
	}
	b.forget(c)
}

// forget takes a connection off the unauthenticated ones. b.mu is held.
func (b *bounded) forget(c *boundedConn) {
	list := b.unauthenticated[c.source]
	for i := range list {
		if list[i] == c {
			list = append(list[:i], list[i+1:]...)
			break
		}
	}
	if b.unauthenticated[c.source] = list; len(list) == 0 {
		delete(b.unauthenticated, c.source)
	}
}

// Close implements net.Listener.
func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

// boundedConn is a connection that has a place. of.mu guards all but the first three.
type boundedConn struct {
	net.Conn
	of     *bounded
	source netip.Prefix
	// number orders connections by age.
	number         uint64
	admitted, gone bool
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	err := c.Conn.Close()
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.leave(c)
	return err
}

// admit notes that the client of the connection is authenticated and authorized.
func (c *boundedConn) admit() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if !c.admitted && !c.gone {
		c.of.forget(c)
		c.admitted = true
		c.of.admitted++
	}
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// withConn is the ConnContext of a server.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// admit does so for the connection of a request.
func admit(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*boundedConn); ok {
		c.admit()
	}
}

// placeOf is the source by which a connection is counted. It is the zero Prefix for all that is on this device: the
// loopback, Unix sockets, and the connections of tests.
func placeOf(address net.Addr) netip.Prefix {
	if from := source.Of(address); !from.Addr().IsLoopback() {
		return from
	}
	return netip.Prefix{}
}
