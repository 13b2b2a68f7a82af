package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// Direction is one way through a link.
type Direction int

const (
	// ToCloud is what the edge sends, ToEdge what the cloud sends.
	ToCloud Direction = iota
	ToEdge
)

// Mischief is what may be done to one message.
type Mischief string

const (
	Drop      Mischief = "drop"      // it does not arrive
	Duplicate Mischief = "duplicate" // it arrives twice, one after the other
	Echo      Mischief = "echo"      // it arrives, and again after some that came later
	Reorder   Mischief = "reorder"   // it arrives after some that came later
	Delay     Mischief = "delay"     // it arrives late, and all behind it
	CutFrame  Mischief = "cut frame" // a part of it arrives, and the connection ends
)

// heldMessages is how many others overtake at most what is held back.
const heldMessages = 4

// FramesOptions say between whom a man in the middle stands.
type FramesOptions struct {
	// Target is the cloud's address.
	Target string
	// Server is the certificate that the edge is shown, Roots are those of the cloud's.
	Server tls.Certificate
	Roots  *x509.CertPool
	// Client is the certificate that the cloud is shown. It is asked for at each connection.
	Client func() (tls.Certificate, error)
	// Seed decides what is left to chance.
	Seed uint64
	// HeldTime bounds how long a message is held back; 0: 400 ms.
	HeldTime time.Duration
	// Sleep delays a message; nil is time.Sleep.
	Sleep func(time.Duration)
}

// Frames is a man in the middle of WebSockets under TLS: it knows where their messages begin and end, and does to
// single ones what it is told to. It does not look into them, so that they may be compressed, as long as each is by
// itself. Its methods may be called from any goroutine.
type Frames struct {
	opts FramesOptions
	l    net.Listener
	wg   sync.WaitGroup

	mu     sync.Mutex
	random *rand.Rand
	armed  map[Direction][]Mischief
	done   map[Mischief]int
	conns  map[net.Conn]struct{}
	closed bool
}

// StartFrames makes a man in the middle.
func StartFrames(o FramesOptions) (*Frames, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if o.HeldTime <= 0 {
		o.HeldTime = 400 * time.Millisecond
	}
	if o.Sleep == nil {
		o.Sleep = time.Sleep
	}
	f := &Frames{
		opts:   o,
		l:      l,
		random: rand.New(rand.NewPCG(o.Seed, 3)),
		armed:  map[Direction][]Mischief{},
		done:   map[Mischief]int{},
		conns:  map[net.Conn]struct{}{},
	}
	f.wg.Go(f.accept)
	return f, nil
}

// Addr is where it listens.
func (f *Frames) Addr() string { return f.l.Addr().String() }

// Close ends everything.
func (f *Frames) Close() error {
	err := f.l.Close()
	f.mu.Lock()
	f.closed = true
	for c := range f.conns {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
	return err
}

// Arm has something done to the next message that goes in a direction, or to the one after those that are armed
// already.
func (f *Frames) Arm(d Direction, m Mischief) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed[d] = append(f.armed[d], m)
}

// Disarm forgets what has not been done yet.
func (f *Frames) Disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.armed)
}

// Done is how often each mischief was done.
func (f *Frames) Done() map[Mischief]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.done)
}

// take is what is to be done to a message, and a random number with it.
func (f *Frames) take(d Direction) (Mischief, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.armed[d]) == 0 {
		return "", 0
	}
	m := f.armed[d][0]
	f.armed[d] = f.armed[d][1:]
	f.done[m]++
	return m, f.random.IntN(1 << 20)
}

func (f *Frames) accept() {
	for {
		c, err := f.l.Accept()
		if err != nil {
			return
		}
		f.wg.Go(func() { _ = f.join(c) }) // both ends see that it ended
	}
}

// keep makes Close end a connection, until done is called.
func (f *Frames) keep(c net.Conn) (done func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		_ = c.Close()
	}
	f.conns[c] = struct{}{}
	return func() {
		f.mu.Lock()
		delete(f.conns, c)
		f.mu.Unlock()
		_ = c.Close()
	}
}

func (f *Frames) join(raw net.Conn) error {
	defer f.keep(raw)()
	ctx, cancel := daemon.Within(context.Background())
	defer cancel()
	own, err := f.opts.Client()
	if err != nil {
		return err
	}
	edge := tls.Server(raw, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{f.opts.Server}})
	if err := edge.HandshakeContext(ctx); err != nil {
		return err
	}
	dialer := tls.Dialer{Config: &tls.Config{
		MinVersion:   tls.VersionTLS12,
		RootCAs:      f.opts.Roots,
		Certificates: []tls.Certificate{own},
		NextProtos:   []string{"http/1.1"},
	}}
	cloud, err := dialer.DialContext(ctx, "tcp", f.opts.Target)
	if err != nil {
		return err
	}
	defer f.keep(cloud)()
	up, down := bufio.NewReader(edge), bufio.NewReader(cloud)
	if _, err := passHead(cloud, up); err != nil {
		return err
	}
	status, err := passHead(edge, down)
	if err != nil {
		return err
	}
	if !strings.Contains(status, " 101 ") { // a refusal, with its reason
		_, err := io.Copy(edge, down)
		return err
	}
	cut := func() {
		_ = raw.Close()
		_ = cloud.(*tls.Conn).NetConn().Close()
	}
	var both sync.WaitGroup
	for _, w := range []*way{{
		f:    f,
		dir:  ToCloud,
		from: up,
		to:   cloud,
		cut:  cut,
	}, {f: f, dir: ToEdge, from: down, to: edge, cut: cut}} {
		both.Go(w.run)
	}
	both.Wait()
	return nil
}

// passHead passes the head of an HTTP message on, and returns its first line.
func passHead(to io.Writer, from *bufio.Reader) (first string, err error) {
	var head strings.Builder
	for {
		line, err := from.ReadString('\n')
		if err != nil {
			return "", err
		}
		if head.Len() == 0 {
			first = line
		}
		head.WriteString(line)
		if strings.TrimRight(line, "\r\n") == "" {
			_, err := io.WriteString(to, head.String())
			return first, err
		}
		if head.Len() > 1<<16 {
			return "", fmt.Errorf("a head of more than %d bytes", head.Len())
		}
	}
}
