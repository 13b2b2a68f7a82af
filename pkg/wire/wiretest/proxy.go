package wiretest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// queue is how many bytes wait in the proxy, a direction and socket.
const queue = 16 << 10

// Proxy stands between edge and cloud, and does what bad networks do. It ends with its test.
type Proxy struct {
	listener net.Listener
	// Dial connects to the proxy.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	target string
	onward func(ctx context.Context, network, addr string) (net.Conn, error)

	mu             sync.Mutex
	pairs          map[net.Conn]net.Conn
	refuse         bool
	silent         chan struct{} // not nil: nothing is passed on until it is closed
	wg             sync.WaitGroup
	bytesPerSecond atomic.Int64 // bytes a second; 0: as they come
	cutLeft        atomic.Int64 // bytes until the cut; below 0: none
	dials          atomic.Int64
}

// NewProxy passes connections on to a target.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, queue)
		})
	}}
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dialer := &net.Dialer{}
	to := l.Addr().String()
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, to)
	}
	return newProxy(t, l, dial, dialer.DialContext, target)
}

func newProxy(t testing.TB, l net.Listener, dial, onward func(context.Context, string, string) (net.Conn, error),
	target string) *Proxy {
	p := &Proxy{listener: l, Dial: dial, onward: onward, target: target, pairs: map[net.Conn]net.Conn{}}
	p.cutLeft.Store(-1)
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.Resume()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Addr is where to dial.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Dials is how many connections came.
func (p *Proxy) Dials() int { return int(p.dials.Load()) }

// Refuse closes new connections at once, or no longer.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// Cut resets all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, b := range p.pairs {
		reset(a)
		reset(b)
	}
	p.pairs = map[net.Conn]net.Conn{}
}

// CutAfter resets all connections when so many more bytes have passed.
func (p *Proxy) CutAfter(bytes int64) { p.cutLeft.Store(bytes) }

// LimitRate passes on so many bytes a second and direction; 0: as they come.
func (p *Proxy) LimitRate(bytes int64) { p.bytesPerSecond.Store(bytes) }

// Silence keeps the connections and passes nothing on, as a network does whose other half is gone.
func (p *Proxy) Silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent == nil {
		p.silent = make(chan struct{})
	}
}

// Resume ends the silence; what was held back is passed on.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent != nil {
		close(p.silent)
		p.silent = nil
	}
}

// small keeps what is under way in the proxy to what a network's queues hold.
func small(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(queue)
		_ = tcp.SetWriteBuffer(queue)
	}
}

func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.dials.Add(1)
		small(c)
		p.wg.Go(func() { p.serve(c) })
	}
}

func (p *Proxy) serve(c net.Conn) {
	defer c.Close()
	p.wait()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	far, err := p.onward(ctx, "tcp", p.target)
	if err != nil {
		reset(c)
		return
	}
	defer far.Close()
	small(far)
	p.mu.Lock()
	if p.refuse {
		p.mu.Unlock()
		reset(c)
		return
	}
	p.pairs[c] = far
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pass(c, far) })
	both.Go(func() { p.pass(far, c) })
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pairs, c)
}

// wait returns when the silence is over.
func (p *Proxy) wait() {
	p.mu.Lock()
	silent := p.silent
	p.mu.Unlock()
	if silent != nil {
		<-silent
	}
}

// passes counts n bytes that are to pass. It says how many of them do so before a cut, if it comes now.
func (p *Proxy) passes(n int64) (left int64, cut bool) {
	for {
		left = p.cutLeft.Load()
		next := left - n
		switch {
		case left < 0:
			return n, false
		case next <= 0:
			next = -1
		}
		if p.cutLeft.CompareAndSwap(left, next) {
			return min(n, left), next < 0
		}
	}
}

func (p *Proxy) pass(from, to net.Conn) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		p.wait()
		data := buf[:n]
		if left, cut := p.passes(int64(n)); cut {
			_, _ = to.Write(data[:left])
			p.Cut()
			return
		}
		if pace := p.bytesPerSecond.Load(); pace > 0 && n > 0 {
			time.Sleep(time.Duration(n) * time.Second / time.Duration(pace))
		}
		if _, werr := to.Write(data); werr != nil || err != nil {
			half, ok := to.(*net.TCPConn)
			if ok && werr == nil {
				_ = half.CloseWrite()
				return
			}
			_ = from.Close()
			if !ok {
				_ = to.Close() // a pipe has no halves
			}
			return
		}
	}
}
