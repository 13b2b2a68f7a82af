package shares

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"testing/synctest"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// pipes is a listener in memory. Each value sent to it is a connection that waits to be accepted.
type pipes struct {
	queue  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.queue:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// from is an end of a connection from an address.
type from struct {
	net.Conn
	ip string
}

func (f from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.ip), Port: 1} }

// placesOf returns places, and a function that makes them accept a connection from an address: nil if it is closed
// instead.
func placesOf(t *testing.T, size, share int) (*Conns, func(ip string) *Conn) {
	l := &pipes{queue: make(chan net.Conn), closed: make(chan struct{})}
	b := New(Options{Size: Fixed(size), Share: share, FreeLoopback: true})
	bounded := b.Listen(l)
	accepted := make(chan net.Conn)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := bounded.Accept()
			if err != nil {
				return
			}
			select {
			case accepted <- c:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := bounded.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return b, func(ip string) *Conn {
		near, far := net.Pipe()
		t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
		select {
		case l.queue <- from{near, ip}:
		case <-ctx.Done():
		}
		synctest.Wait()
		select {
		case c := <-accepted:
			return c.(*Conn)
		default:
			return nil
		}
	}
}

// open reports whether a connection has not been closed by the listener.
func open(c *Conn) bool {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	return !c.gone
}

// TestShares: a source has no more than its share until it is admitted, wherever in its network it is.
func TestShares(t *testing.T) {
	for name, c := range map[string]struct {
		ips  []string
		want int
	}{
		"one address":                {[]string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.1"}, 2},
		"the same in another form":   {[]string{"192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1"}, 2},
		"several addresses":          {[]string{"192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.2"}, 4},
		"a network of IPv6":          {[]string{"2001:db8::1", "2001:db8::2", "2001:db8::3"}, 2},
		"several networks of IPv6":   {[]string{"2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:2::1"}, 3},
		"the loopback has no shares": {[]string{"127.0.0.1", "127.0.0.2", "::1", "127.0.0.1"}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, accept := placesOf(t, 8, 2)
				got := 0
				for _, ip := range c.ips {
					if accept(ip) != nil {
						got++
					}
				}
				if got != c.want {
					t.Errorf("%d of %d connections accepted, want %d", got, len(c.ips), c.want)
				}
			})
		})
	}
}

// TestAdmittedHasNoShare: an admitted connection does not count for its source, and a closed connection gives its place
// back once.
func TestAdmittedHasNoShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, accept := placesOf(t, 8, 2)
		var conns []*Conn
		for i := range 6 {
			c := accept("192.0.2.1")
			if c == nil {
				t.Fatalf("connection %d was not accepted, want it: those before were admitted", i)
			}
			Of(tls.Server(c, nil)).Admit()
			c.Admit() // again changes nothing
			conns = append(conns, c)
		}
		if b.admitted != len(conns) || len(b.sources) != 0 || len(b.order) != 0 {
			t.Errorf("%d admitted, others of %d sources; want %d, 0", b.admitted, len(b.sources), len(conns))
		}
		for _, c := range conns {
			_ = c.Close()
			_ = c.Close()
			c.Admit() // too late
		}
		if b.admitted != 0 {
			t.Errorf("%d admitted after all were closed, want 0", b.admitted)
		}
	})
}

// TestNewcomerGetsAPlace: where unauthenticated connections hold all places, one from elsewhere gets that of the oldest
// of the source that has most; admitted ones keep theirs.
func TestNewcomerGetsAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, accept := placesOf(t, 4, 2)
		kept := accept("192.0.2.9")
		kept.Admit()
		first, second, third := accept("192.0.2.1"), accept("192.0.2.1"), accept("192.0.2.2")
		newcomer := accept("192.0.2.3")
		if newcomer == nil || open(first) || !open(second) || !open(third) || !open(kept) {
			t.Fatalf("newcomer %v; open are first %v, second %v, third %v, kept %v; want the first closed for the "+
				"newcomer",
				newcomer, open(first), open(second), open(third), open(kept))
		}
		if c := accept("192.0.2.4"); c == nil || open(second) || !open(third) || !open(newcomer) {
			t.Errorf("a newcomer to sources of one each: %v; open are second %v, third %v, newcomer %v; want the "+
				"oldest closed for it",
				c, open(second), open(third), open(newcomer))
		}
		if c := accept("192.0.2.4"); c != nil {
			t.Error("accepted one more although no source has more connections than its own, want it closed")
		}
	})
}

// TestAllAdmitted: where all places belong to admitted connections, others wait for one, and get it.
func TestAllAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &pipes{queue: make(chan net.Conn, 2), closed: make(chan struct{})}
		b := New(Options{Size: Fixed(1), Share: 1}).Listen(l)
		for range cap(l.queue) {
			near, far := net.Pipe()
			t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
			l.queue <- from{near, "192.0.2.1"}
		}
		first, err := b.Accept()
		if err != nil {
			t.Fatal(err)
		}
		first.(*Conn).Admit()
		second := make(chan net.Conn, 1)
		accept := func() {
			c, _ := b.Accept()
			second <- c
		}
		go accept()
		synctest.Wait()
		if got := len(second) + 1; got != 1 {
			t.Errorf("%d connections are accepted at once, want 1", got)
		}
		_ = first.Close()
		c := <-second
		if c == nil {
			t.Fatal("Accept() after the first connection was closed = nil, want the second connection")
		}
		c.(*Conn).Admit()
		go accept()
		synctest.Wait()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if got := <-second; got != nil {
			t.Errorf("Accept() after the listener was closed = %v, want nil", got)
		}
	})
}
