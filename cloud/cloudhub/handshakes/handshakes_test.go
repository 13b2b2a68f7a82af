package handshakes

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// client is a connection in the model: what should be true of it.
type client struct {
	*turn
	got <-chan struct{} // not nil: it has queued
}

// isOpen reports whether a channel is open.
func isOpen(c <-chan struct{}) bool {
	select {
	case <-c:
		return false
	default:
		return true
	}
}

// FuzzLimiter does what the bytes say with a few connections. Slots are never lost nor given twice, the queues are
// served in order, and nothing is left once all connections have ended.
func FuzzLimiter(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add([]byte{0, 4, 8, 12, 1, 0, 5, 4, 2, 6, 10, 14})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 8, 8, 1, 1, 5})
	f.Fuzz(func(t *testing.T, ops []byte) {
		const slots, waiting, connections = 2, 6, 12
		l := New(Options{Slots: slots, Waiting: waiting})
		var all [connections]client
		for i := range all {
			all[i].turn = &turn{source: netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(i % 3)}), 32)}
		}
		var started, fresh []*turn // the model of the queues
		pop := func() *turn {
			for _, queue := range []*[]*turn{&started, &fresh} {
				if len(*queue) > 0 {
					next := (*queue)[0]
					*queue = (*queue)[1:]
					return next
				}
			}
			return nil
		}
		for _, op := range ops {
			c := &all[int(op/4)%connections]
			queued := c.queue != nil
			worked := c.working
			switch op % 4 {
			case 0, 1:
				if queued || worked {
					continue // one goroutine reads, and leaves its slot before
				}
				first, ready, err := l.request(c.turn)
				if c.got = ready; ready == nil || err != nil {
					continue
				}
				if first || c.reads > promptReads {
					fresh = append(fresh, c.turn)
				} else {
					started = append(started, c.turn)
				}
			case 2:
				l.releaseSlot(c.turn)
			case 3:
				l.closeTurn(c.turn)
				same := func(t *turn) bool { return t == c.turn }
				started, fresh = slices.DeleteFunc(started, same), slices.DeleteFunc(fresh, same)
				if queued && isOpen(c.got) {
					t.Fatal("a connection that ended still waits")
				}
			}
			if op%4 >= 2 && worked {
				if next := pop(); next != nil && !next.working {
					t.Fatalf("the slot was not given to the next connection (reads %d)", next.reads)
				}
			}
			l.verify(t, started, fresh, all[:])
		}
		for i := range all {
			l.closeTurn(all[i].turn)
			if all[i].got != nil && isOpen(all[i].got) {
				t.Error("a connection waits after its end")
			}
		}
		if waiting, working := l.Counts(); waiting != 0 || working != 0 || l.places.Taken() != 0 {
			t.Errorf("%d wait, %d work, %d places taken after the end of all, want none", waiting, working,
				l.places.Taken())
		}
	})
}

// verify compares the limiter with the model.
func (l *Limiter) verify(t *testing.T, started, fresh []*turn, all []client) {
	t.Helper()
	working := 0
	for _, c := range all {
		if c.working {
			working++
		}
	}
	switch waiting, counted := l.Counts(); {
	case counted != working || working > l.opts.Slots:
		t.Fatalf("%d connections have slots, counted %d of %d", working, counted, l.opts.Slots)
	case waiting != len(started)+len(fresh):
		t.Fatalf("%d wait, want %d", waiting, len(started)+len(fresh))
	case waiting > 0 && working < l.opts.Slots:
		t.Fatalf("%d wait although only %d work", waiting, working)
	case len(fresh) > l.opts.Waiting:
		t.Fatalf("%d new connections wait, want at most %d", len(fresh), l.opts.Waiting)
	}
	sources := map[netip.Prefix]int{}
	for _, turn := range fresh {
		sources[turn.source]++
	}
	for source, n := range sources {
		if counted := l.places.Of(source); counted != int64(n) || n > l.opts.Waiting/2 {
			t.Fatalf("source %v has %d, counted %d, want at most %d", source, n, counted, l.opts.Waiting/2)
		}
	}
}

// TestFull: beyond the limits on waiting connections, one is refused at once; one that has been started never is.
func TestFull(t *testing.T) {
	refused := 0
	l := New(Options{Slots: 1, Waiting: 4, Timeout: time.Hour, Refused: func() { refused++ }})
	from := func(host byte) *turn {
		return &turn{source: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, host}), 32), accepted: time.Now()}
	}
	started := from(1)
	for _, c := range []*turn{started, from(1)} {
		if _, _, err := l.request(c); err != nil {
			t.Fatalf("request = %v, want room", err)
		}
	}
	l.releaseSlot(started) // to the second
	for i, c := range []struct {
		host byte
		want error
	}{{1, nil}, {1, nil}, {1, errBusy}, {2, nil}, {2, nil}, {3, errBusy}} {
		turn := from(c.host)
		if c.want != nil {
			if _, err := l.acquireSlot(turn); !errors.Is(err, c.want) {
				t.Errorf("connection %d: take = %v, want %v", i, err, c.want)
			}
		} else if _, ready, err := l.request(turn); err != nil || ready == nil {
			t.Errorf("connection %d: request = %v, want it to wait", i, err)
		}
	}
	if refused != 2 {
		t.Errorf("Refused was called %d times, want 2", refused)
	}
	if _, ready, err := l.request(started); err != nil || ready == nil {
		t.Errorf("request of a started connection = %v, want it to wait", err)
	}
}

// fixture is a limiter with connections in memory.
type fixture struct {
	*Limiter
	refused int
}

func newFixture(slots int) *fixture {
	s := &fixture{}
	s.Limiter = New(Options{
		Slots: slots, Waiting: 1000, Timeout: 30 * time.Second, Refused: func() { s.refused++ },
	})
	return s
}

type pipes struct {
	net.Listener
	conns chan net.Conn
}

func (p pipes) Accept() (net.Conn, error) { return <-p.conns, nil }

// connect returns both ends of a connection.
func (s *fixture) connect(t *testing.T) (client, server net.Conn) {
	t.Helper()
	client, inner := net.Pipe()
	conns := make(chan net.Conn, 1)
	conns <- inner
	server, err := s.Listen(pipes{conns: conns}).Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return client, server
}

// want checks how many connections wait and work.
func (s *fixture) want(t *testing.T, when string, waiting, working int) {
	t.Helper()
	synctest.Wait()
	if w, k := s.Counts(); w != waiting || k != working {
		t.Errorf("%s: %d wait and %d work, want %d and %d", when, w, k, waiting, working)
	}
}

// read starts a read of the server's end.
func read(c net.Conn) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 8))
		result <- err
	}()
	return result
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// TestPhases: whatever a connection does when it ends, it leaves no slot behind.
func TestPhases(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *fixture, client, server net.Conn){
		"silent": func(t *testing.T, s *fixture, _, server net.Conn) {
			got := read(server)
			s.want(t, "silent", 0, 0)
			_ = server.Close()
			<-got
		},
		"client closes": func(_ *testing.T, _ *fixture, client, server net.Conn) {
			got := read(server)
			_ = client.Close()
			<-got
		},
		"working": func(t *testing.T, s *fixture, client, server net.Conn) {
			got := read(server)
			send(t, client, "hello")
			<-got
			s.want(t, "after a read", 0, 1)
		},
		"waits for more": func(t *testing.T, s *fixture, client, server net.Conn) {
			got := read(server)
			send(t, client, "hello")
			<-got
			got = read(server)
			s.want(t, "in the second read", 0, 0)
			_ = client.Close()
			<-got
		},
		"writes to a client that does not read": func(t *testing.T, s *fixture, client, server net.Conn) {
			got := read(server)
			send(t, client, "hello")
			<-got
			go func() { _, _ = server.Write([]byte("answer")) }()
			s.want(t, "in the write", 0, 0)
		},
		"done": func(t *testing.T, s *fixture, client, server net.Conn) {
			got := read(server)
			send(t, client, "hello")
			<-got
			Done(server)
			s.want(t, "done", 0, 0)
			got = read(server)
			send(t, client, "more")
			<-got
			s.want(t, "after a read of a session", 0, 0)
		},
		"queued": func(t *testing.T, s *fixture, client, server net.Conn) {
			other, holder := s.connect(t)
			got := read(holder)
			send(t, other, "hello")
			<-got
			got = read(server)
			send(t, client, "hello")
			s.want(t, "queued", 1, 1)
			_ = server.Close()
			if err := <-got; !errors.Is(err, net.ErrClosed) {
				t.Errorf("Read = %v, want that the connection is closed", err)
			}
			s.want(t, "after the end of the queued one", 0, 1)
			_ = holder.Close()
		},
		"queued for longer than its client waits": func(t *testing.T, s *fixture, client, server net.Conn) {
			other, holder := s.connect(t)
			got := read(holder)
			send(t, other, "hello")
			<-got
			got = read(server)
			send(t, client, "hello")
			time.Sleep(s.opts.Timeout + time.Second)
			_ = holder.Close()
			if err := <-got; !errors.Is(err, errWaited) || s.refused != 1 {
				t.Errorf("Read = %v with %d refused, want %v and 1", err, s.refused, errWaited)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFixture(1)
				client, server := s.connect(t)
				end(t, s, client, server)
				_ = server.Close()
				s.want(t, "at the end", 0, 0)
			})
		})
	}
}

// TestTimeout: a connection has the whole timeout from when it is started.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(1)
		client, server := s.connect(t)
		if err := server.SetDeadline(time.Now().Add(s.opts.Timeout)); err != nil { // as http.Server does
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		got := read(server)
		send(t, client, "hello")
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := <-read(server); err == nil || time.Since(began) != s.opts.Timeout {
			t.Errorf("Read = %v after %v, want the timeout after %v", err, time.Since(began), s.opts.Timeout)
		}
	})
}

// TestStartedFirst: a connection that has been started comes before those that wait, for its first reads only.
func TestStartedFirst(t *testing.T) {
	l := New(Options{Slots: 1, Waiting: 10, Timeout: time.Hour})
	holder, slow, good := &turn{}, &turn{reads: promptReads - 1}, &turn{}
	for _, c := range []*turn{holder, good, slow} {
		if _, _, err := l.request(c); err != nil {
			t.Fatal(err)
		}
	}
	l.releaseSlot(holder)
	if !slow.working {
		t.Fatal("a new connection came before one that was started")
	}
	l.releaseSlot(slow)
	if !good.working {
		t.Fatal("the slot was not given to the new connection")
	}
	next := &turn{}
	for _, c := range []*turn{next, slow} {
		if _, _, err := l.request(c); err != nil {
			t.Fatal(err)
		}
	}
	l.releaseSlot(good)
	if !next.working {
		t.Errorf("a connection came first with its read %d, want only %d such reads", slow.reads, promptReads)
	}
}
