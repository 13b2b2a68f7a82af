package apitunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// silence is how long the link may be silent.
const silence = 26 * time.Second

// cloud accepts connections, and returns what comes over each stream.
type cloud struct {
	parts sync.WaitGroup
	// dials counts attempts. fail is the error of the next ones; delay is how long they take.
	dials atomic.Int64
	fail  atomic.Pointer[error]
	delay time.Duration

	mu        sync.Mutex
	last      *tunnel.APIAcceptor
	lastConn  *stoppable
	connected int
}

// stoppable is a connection whose bytes can be stopped, in both directions.
type stoppable struct {
	net.Conn
	stopped atomic.Bool
}

func (s *stoppable) Write(p []byte) (int, error) {
	if s.stopped.Load() {
		return len(p), nil
	}
	return s.Conn.Write(p)
}

func (c *cloud) dial(context.Context) (net.Conn, error) {
	c.dials.Add(1)
	time.Sleep(c.delay)
	if err := c.fail.Load(); err != nil {
		return nil, *err
	}
	node, far := net.Pipe()
	a, err := tunnel.NewAPIAcceptor(far, shares.NewMemory())
	if err != nil {
		return nil, err
	}
	near := &stoppable{Conn: node}
	c.mu.Lock()
	c.last, c.lastConn = a, near
	c.connected++
	c.mu.Unlock()
	c.parts.Go(func() {
		_ = a.Serve(func(s net.Conn) {
			c.parts.Go(func() { _, _ = io.Copy(s, s); _ = s.Close() })
		})
		c.mu.Lock()
		c.connected--
		c.mu.Unlock()
	})
	return near, nil
}

func (c *cloud) refuse(err error) { c.fail.Store(&err) }

// connections returns how many there are now.
func (c *cloud) connections() int {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.connected
}

// inBubble runs a test with a tunnel, on a simulated clock.
func inBubble(t *testing.T, test func(t *testing.T, c *cloud, tunnel *Tunnel)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{}
		tun := New(c.dial)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { tun.Run(ctx) })
		test(t, c, tun)
		cancel()
		running.Wait()
		c.parts.Wait()
		if _, err := tun.Open(t.Context()); !errors.Is(err, ErrEnded) {
			t.Errorf("Open after the end = %v, want %v", err, ErrEnded)
		}
	})
}

// echo opens a stream and sends a byte over it, which comes back.
func echo(t *testing.T, tun *Tunnel) net.Conn {
	t.Helper()
	s, err := tun.Open(t.Context())
	if err != nil {
		t.Fatalf("Open = %v, want a stream", err)
	}
	use(t, s)
	return s
}

func use(t *testing.T, s net.Conn) {
	t.Helper()
	got := make([]byte, 1)
	if _, err := s.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, got); err != nil || got[0] != 'x' {
		t.Fatalf("read %q, %v; want x", got, err)
	}
}

// TestOpen: the first stream makes the connection, which all streams share, and which is kept for a minute after the
// last one.
func TestOpen(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cloud, tun *Tunnel) {
		tun.LinkUp(true)
		if n := c.connections(); n != 0 {
			t.Errorf("%d connections before there is a stream, want none", n)
		}
		first, second := echo(t, tun), echo(t, tun)
		_ = first.Close()
		time.Sleep(time.Hour)
		use(t, second)
		_ = second.Close()
		_ = second.Close() // again changes nothing
		time.Sleep(idleTime - time.Second)
		if n := c.connections(); n != 1 || c.dials.Load() != 1 {
			t.Errorf("%d connections of %d attempts within a minute, want 1 of 1", n, c.dials.Load())
		}
		echo(t, tun).Close()
		time.Sleep(idleTime + time.Second)
		if n := c.connections(); n != 0 {
			t.Errorf("%d connections a minute after the last stream, want none", n)
		}
		echo(t, tun).Close()
		if n := c.dials.Load(); n != 2 {
			t.Errorf("%d attempts to connect, want 2", n)
		}
	})
}

// TestOneDial: streams that are opened at once wait for one attempt, and a caller that gives up ends its own wait only.
func TestOneDial(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cloud, tun *Tunnel) {
		c.delay = 5 * time.Second
		tun.LinkUp(true)
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() { _ = echo(t, tun).Close() })
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := tun.Open(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Open = %v, want the context's error", err)
		}
		callers.Wait()
		if n := c.dials.Load(); n != 1 {
			t.Errorf("%d attempts to connect, want 1", n)
		}
	})
}

// TestNotConnected: without a link, and with one over which the API is not offered, Open says so at once.
func TestNotConnected(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cloud, tun *Tunnel) {
		_, err := tun.Open(t.Context())
		var none *NotConnectedError
		if !errors.Is(err, ErrNotConnected) || !errors.As(err, &none) || !none.Since.IsZero() {
			t.Errorf("Open before there was a link = %v, want %v, since no time", err, ErrNotConnected)
		}
		if up, since := tun.Connected(); up || !since.IsZero() {
			t.Errorf("Connected = %v, %v before there was a link; want neither", up, since)
		}
		tun.LinkUp(false)
		if _, err := tun.Open(t.Context()); !errors.Is(err, ErrNotOffered) {
			t.Errorf("Open = %v where the API is not offered, want %v", err, ErrNotOffered)
		}
		time.Sleep(time.Minute)
		tun.LinkDown(silence)
		lost := time.Now()
		time.Sleep(time.Minute)
		if _, err := tun.Open(t.Context()); !errors.As(err, &none) || !none.Since.Equal(lost) {
			t.Errorf("Open = %v, want %v since %v", err, ErrNotConnected, lost)
		}
		if up, since := tun.Connected(); up || !since.Equal(lost) {
			t.Errorf("Connected = %v, %v; want false since %v", up, since, lost)
		}
		if n := c.dials.Load(); n != 0 {
			t.Errorf("%d attempts to connect, want none", n)
		}
	})
}

// TestBackoff: after a failure Open fails at once with its cause, and the pauses between attempts grow. A new link ends
// a pause.
func TestBackoff(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cloud, tun *Tunnel) {
		refused := errors.New("refused")
		c.refuse(refused)
		tun.LinkUp(true)
		for began := time.Now(); time.Since(began) < 10*time.Minute; time.Sleep(100 * time.Millisecond) {
			before := time.Now()
			if _, err := tun.Open(t.Context()); !errors.Is(err, refused) || time.Since(before) != 0 {
				t.Fatalf("Open = %v after %v, want %v at once", err, time.Since(before), refused)
			}
		}
		if n := c.dials.Load(); n < 10 || n > 40 {
			t.Errorf("%d attempts to connect in 10 minutes, want 10 to 40", n)
		}
		c.fail.Store(nil)
		tun.LinkUp(true)
		echo(t, tun).Close()
	})
}

// TestClosedAtOnce: a cloud that accepts connections only to close them is not dialled without a pause.
func TestClosedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cloud, tun *Tunnel) {
		tun.LinkUp(true)
		for began := time.Now(); time.Since(began) < 10*time.Minute; time.Sleep(100 * time.Millisecond) {
			if s, err := tun.Open(t.Context()); err == nil {
				c.mu.Lock()
				_ = c.last.Close()
				c.mu.Unlock()
				_ = s.Close()
			}
		}
		if n := c.dials.Load(); n < 10 || n > 40 {
			t.Errorf("%d attempts to connect in 10 minutes, want 10 to 40", n)
		}
	})
}

// TestLinkLost: a loss of the link that is shorter than the link may be silent does not end the connection; a longer
// one does.
func TestLinkLost(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cloud, tun *Tunnel) {
		tun.LinkUp(true)
		s := echo(t, tun)
		tun.LinkDown(silence)
		time.Sleep(silence - time.Second)
		use(t, s)
		echo(t, tun).Close()
		tun.LinkUp(true)
		time.Sleep(time.Hour)
		use(t, s)
		tun.LinkDown(silence)
		time.Sleep(silence)
		if n := c.connections(); n != 0 {
			t.Errorf("%d connections after the link was lost for %v, want none", n, silence)
		}
		if _, err := s.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("Read of a stream = %v, want an error that is not EOF", err)
		}
		_ = s.Close()
		if _, err := tun.Open(t.Context()); !errors.Is(err, ErrNotConnected) {
			t.Errorf("Open = %v, want %v", err, ErrNotConnected)
		}
	})
}

// TestDeadConnection: a connection that carries nothing any more ends although the link is there, and the next stream
// makes another one.
func TestDeadConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cloud, tun *Tunnel) {
		tun.LinkUp(true)
		s := echo(t, tun)
		c.mu.Lock()
		c.lastConn.stopped.Store(true)
		c.mu.Unlock()
		began := time.Now()
		_, err := s.Read(make([]byte, 1))
		if after := time.Since(began); err == nil || after > 80*time.Second {
			t.Errorf("Read = %v after %v, want an error within 80 s", err, after)
		}
		_ = s.Close()
		echo(t, tun).Close()
		if n := c.dials.Load(); n != 2 {
			t.Errorf("%d attempts to connect, want 2", n)
		}
	})
}

// TestOtherNetwork: a connection that is dead when the link is back is noticed soon.
func TestOtherNetwork(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cloud, tun *Tunnel) {
		tun.LinkUp(true)
		s := echo(t, tun)
		c.mu.Lock()
		c.lastConn.stopped.Store(true)
		c.mu.Unlock()
		tun.LinkDown(silence)
		time.Sleep(time.Second)
		tun.LinkUp(true)
		began := time.Now()
		_, err := s.Read(make([]byte, 1))
		if after := time.Since(began); err == nil || after > 20*time.Second {
			t.Errorf("Read = %v after %v, want an error within 20 s", err, after)
		}
		_ = s.Close()
		echo(t, tun).Close()
	})
}

// TestTooManyStreams: a node has no more streams than it may, and closing one makes room.
func TestTooManyStreams(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *cloud, tun *Tunnel) {
		tun.LinkUp(true)
		var all []net.Conn
		for range tunnel.APIStreams {
			all = append(all, echo(t, tun))
		}
		if _, err := tun.Open(t.Context()); !errors.Is(err, tunnel.ErrAPIStreams) {
			t.Errorf("Open = %v, want %v", err, tunnel.ErrAPIStreams)
		}
		_ = all[0].Close()
		synctest.Wait()
		echo(t, tun).Close()
		for _, s := range all {
			_ = s.Close()
		}
	})
}

// TestDecide: what happens to a connection, and when.
func TestDecide(t *testing.T) {
	now := time.Unix(1e9, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	up, down := link{up: true}, func(d time.Duration) link { return link{since: ago(d), silence: silence} }
	used := func(pinged time.Duration) connection { return connection{streams: 1, pinged: ago(pinged)} }
	for name, tc := range map[string]struct {
		link link
		conn connection
		want action
		in   time.Duration
	}{
		"idle":                    {up, connection{idle: ago(time.Second)}, wait, idleTime - time.Second},
		"idle for long":           {up, connection{idle: ago(idleTime)}, end, 0},
		"used":                    {up, used(time.Second), wait, tunnel.APIPing - time.Second},
		"used for long":           {up, used(tunnel.APIPing), ping, 0},
		"link is back":            {up, connection{idle: ago(0), suspect: true}, ping, 0},
		"link lost":               {down(time.Second), used(0), wait, silence - time.Second},
		"link lost, ping is due":  {down(time.Second), used(tunnel.APIPing), ping, 0},
		"link lost for long":      {down(silence), used(0), end, 0},
		"link lost, idle is next": {down(0), connection{idle: ago(idleTime - time.Second)}, wait, time.Second},
	} {
		got, at := decide(tc.link, tc.conn, now)
		if got != tc.want || got == wait && at.Sub(now) != tc.in {
			t.Errorf("%s: %v in %v, want %v in %v", name, got, at.Sub(now), tc.want, tc.in)
		}
	}
}
