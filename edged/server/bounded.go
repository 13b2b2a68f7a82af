package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
)

const (
	// maxConnections bounds those of a port: anybody can open one.
	maxConnections = 256
	// maxFromSource bounds those of a source that have not been let in.
	maxFromSource = 64
	// loopback is the source of all that is on this device; it has no bound of its own.
	loopback = "loopback"
)

// bounded is a listener with a bound on open connections, which nobody can use up for others:
//
//   - A connection is a stranger's until let in by admit. A source (an IPv4 address, or an IPv6 network of 64 bits) has at most
//     share strangers' connections; more are closed at once. The loopback has no such bound.
//   - Where all places are taken, a newcomer gets that of the oldest stranger of the source that has most of them, unless its
//     own source has as many.
//   - Where those that were let in have all places, others wait in the kernel's queue.
type bounded struct {
	net.Listener
	size, share int
	// room says that a connection was closed. closed is closed with the listener.
	room   chan struct{}
	closed chan struct{}
	once   sync.Once

	mu sync.Mutex
	// strangers are the connections of each source, the oldest first; admitted counts the others.
	strangers map[string][]*boundedConn
	admitted  int
	// last is the number of the newest connection.
	last uint64
}

func newBounded(l net.Listener, size, share int) *bounded {
	return &bounded{
		Listener: l, size: size, share: share, room: make(chan struct{}, 1), closed: make(chan struct{}),
		strangers: map[string][]*boundedConn{},
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
		own := &boundedConn{Conn: c, of: b, source: sourceOf(c.RemoteAddr())}
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

// await waits until not all places belong to those that were let in.
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

// enter gives a new connection a place, or not; victim is whose place that was, if somebody's.
func (b *bounded) enter(c *boundedConn) (victim *boundedConn, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	have := len(b.strangers[c.source])
	if c.source != loopback && have >= b.share {
		return nil, false
	}
	total, most := b.admitted, ""
	for source, list := range b.strangers {
		total += len(list)
		if top := b.strangers[most]; len(list) > len(top) || len(list) == len(top) && list[0].number < top[0].number {
			most = source
		}
	}
	if total >= b.size {
		if len(b.strangers[most]) <= have {
			return nil, false
		}
		victim = b.strangers[most][0]
		b.leave(victim)
	}
	b.last++
	c.number = b.last
	b.strangers[c.source] = append(b.strangers[c.source], c)
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
		select {
		case b.room <- struct{}{}:
		default:
		}
		return
	}
	b.forget(c)
}

// forget takes a connection off those of strangers. b.mu is held.
func (b *bounded) forget(c *boundedConn) {
	list := b.strangers[c.source]
	for i := range list {
		if list[i] == c {
			list = append(list[:i], list[i+1:]...)
			break
		}
	}
	if b.strangers[c.source] = list; len(list) == 0 {
		delete(b.strangers, c.source)
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
	source string
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

// admit notes that who is at the other end was let in.
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

// admit notes that the client of a request was let in.
func admit(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*boundedConn); ok {
		c.admit()
	}
}

// sourceOf is what a connection is counted by.
func sourceOf(address net.Addr) string {
	tcp, ok := address.(*net.TCPAddr)
	if !ok {
		return loopback // of a test, or of a socket on this device
	}
	ip, _ := netip.AddrFromSlice(tcp.IP)
	ip = ip.Unmap()
	switch {
	case ip.IsLoopback():
		return loopback
	case ip.Is6():
		network, err := ip.Prefix(64)
		if err == nil {
			return network.String()
		}
	}
	return ip.String()
}
