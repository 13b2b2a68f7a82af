package shares

import (
	"errors"
	"net"
	"sync"
	"time"
)

// Listen gives the connections of a listener places, before anything is read of them. Several listeners may share the
// places. What Listen returns owns the listener, and must be closed.
func (b *Conns) Listen(inner net.Listener) net.Listener {
	l := &listener{Listener: inner, conns: b, closed: make(chan struct{})}
	if b.opts.Hello == 0 {
		return l
	}
	l.ready, l.silent = make(chan accepted), map[*Conn]struct{}{}
	l.waiting.Go(l.run)
	return l
}

// Enter gives a connection a place. It returns nil if there is none; then the connection is closed. With Hello in the
// options, it has one as a silent connection until AwaitHello.
func (b *Conns) Enter(c net.Conn) *Conn {
	own := &Conn{Conn: c, of: b, source: b.sourceOf(c.RemoteAddr())}
	victim, ok := b.admit(own)
	if victim != nil {
		_ = victim.Conn.Close() // it has lost its place already
	}
	if victim != nil || !ok {
		b.opts.Refused()
	}
	if !ok {
		_ = c.Close()
		return nil
	}
	return own
}

// AwaitHello waits for the client's ClientHello, which Read then returns first. If it returns false, the connection is
// closed: nothing has come in time, or the place was lost.
func (c *Conn) AwaitHello() bool {
	err := c.SetReadDeadline(time.Now().Add(c.of.opts.Hello))
	if err == nil {
		c.hello, err = readHello(c.Conn)
	}
	if err == nil {
		err = c.SetReadDeadline(time.Time{})
	}
	if err == nil && c.of.started(c) {
		return true
	}
	_ = c.Close()
	return false
}

// listener is a listener whose connections have places.
type listener struct {
	net.Listener
	conns  *Conns
	closed chan struct{}
	once   sync.Once
	// ready are the connections whose ClientHello has arrived, and errors of accepting. nil: Accept does not wait for
	// one.
	ready   chan accepted
	waiting sync.WaitGroup

	mu sync.Mutex
	// silent are the connections whose ClientHello is waited for; nil: the listener is closed.
	silent map[*Conn]struct{}
}

type accepted struct {
	conn *Conn
	err  error
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	if l.ready == nil {
		c, err := l.accept()
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	select {
	case a := <-l.ready:
		if a.err != nil {
			return nil, a.err
		}
		return a.conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// accept returns the next connection that gets a place.
func (l *listener) accept() (*Conn, error) {
	for {
		if !l.conns.await(l.closed) {
			return nil, net.ErrClosed
		}
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if own := l.conns.Enter(c); own != nil {
			return own, nil
		}
	}
}

// run accepts connections, and passes on those whose ClientHello arrives, until the listener is closed.
func (l *listener) run() {
	for {
		c, err := l.accept()
		if err != nil {
			// The next caller of Accept gets the error, and decides how long to wait.
			if !l.handOver(accepted{err: err}) || errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		l.waiting.Go(func() {
			if l.awaitHello(c) && !l.handOver(accepted{conn: c}) {
				_ = c.Close()
			}
		})
	}
}

// awaitHello waits for a connection's ClientHello, or for the end of the listener.
func (l *listener) awaitHello(c *Conn) bool {
	l.mu.Lock()
	open := l.silent != nil
	if open {
		l.silent[c] = struct{}{}
	}
	l.mu.Unlock()
	if !open {
		_ = c.Close()
		return false
	}
	arrived := c.AwaitHello()
	l.mu.Lock()
	delete(l.silent, c)
	l.mu.Unlock()
	return arrived
}

// handOver hands over a result, and reports whether somebody has taken it.
func (l *listener) handOver(a accepted) bool {
	select {
	case l.ready <- a:
		return true
	case <-l.closed:
		return false
	}
}

// Close implements net.Listener. It also closes the connections that Accept has not returned.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	err := l.Listener.Close()
	l.mu.Lock()
	silent := l.silent
	l.silent = nil
	l.mu.Unlock()
	for c := range silent {
		_ = c.Conn.Close() // its goroutine does the rest
	}
	l.waiting.Wait()
	return err
}
