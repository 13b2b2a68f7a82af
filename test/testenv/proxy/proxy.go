// Package proxy is a cable that tests can pull: a TCP proxy whose connections can be refused, cut, held or slowed down.
package proxy

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// State is what the cable does.
type State int

const (
	// Passing: bytes go through.
	Passing State = iota
	// Cut: connections are ended, and new ones as soon as they come.
	Cut
	// Silent: connections stay, new ones are taken, and nothing goes through: packets are dropped.
	Silent
)

// Proxy is one cable. Its methods may be called from any goroutine.
type Proxy struct {
	l  net.Listener
	wg sync.WaitGroup
	// Up and Down count the bytes to and from the target.
	Up, Down atomic.Int64

	mu     sync.Mutex
	target string
	state  State
	// changed is closed at each change of the state.
	changed chan struct{}
	delay   time.Duration
	// left is how many bytes still pass before all is cut; less than 0 is no end.
	left  int64
	conns map[net.Conn]struct{}
}

// Start makes a proxy to an address. It listens on 127.0.0.1.
func Start(target string) (*Proxy, error) { return StartOn("127.0.0.1", target) }

// StartOn makes a proxy that listens on an address of this machine, and on a free port.
func StartOn(address, target string) (*Proxy, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, err
	}
	p := &Proxy{l: l, target: target, changed: make(chan struct{}), left: -1, conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// Close ends everything.
func (p *Proxy) Close() error {
	p.Set(Cut)
	err := p.l.Close()
	p.wg.Wait()
	return err
}

// Set changes what the cable does.
func (p *Proxy) Set(s State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(s)
}

func (p *Proxy) set(s State) {
	p.state, p.left = s, -1
	close(p.changed)
	p.changed = make(chan struct{})
	if s == Cut {
		for c := range p.conns {
			_ = c.Close()
		}
	}
}

// Retarget ends all connections; new ones go elsewhere.
func (p *Proxy) Retarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
	p.set(Cut)
	p.set(Passing)
}

// CutAfter cuts the connections when so many more bytes have passed: in the middle of a frame, most likely. New ones
// pass again.
func (p *Proxy) CutAfter(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = bytes
}

// Delay holds each piece back for a time.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Conns is how many connections there are.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) / 2
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.join(c) })
	}
}

func (p *Proxy) join(from net.Conn) {
	defer from.Close()
	ctx, cancel := daemon.Within(context.Background())
	defer cancel()
	var dialer net.Dialer
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	to, err := dialer.DialContext(ctx, "tcp", target)
	if err != nil {
		return
	}
	defer to.Close()
	if !p.add(from, to) {
		return
	}
	defer p.remove(from, to)
	var wg sync.WaitGroup
	wg.Go(func() { p.pump(to, from, &p.Up) })
	wg.Go(func() { p.pump(from, to, &p.Down) })
	wg.Wait()
}

func (p *Proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == Cut {
		return false
	}
	for _, c := range conns {
		p.conns[c] = struct{}{}
	}
	return true
}

func (p *Proxy) remove(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
	}
}

// pump moves bytes one way until either end is gone.
func (p *Proxy) pump(to, from net.Conn, count *atomic.Int64) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			allowed, ok := p.pass(n)
			if allowed > 0 {
				if _, err := to.Write(buf[:allowed]); err != nil {
					return
				}
				count.Add(int64(allowed))
			}
			if !ok {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits until a piece may pass, and tells how much of it does; ok is false when the connection ends then.
func (p *Proxy) pass(n int) (allowed int, ok bool) {
	for {
		p.mu.Lock()
		state, delay, changed := p.state, p.delay, p.changed
		if state == Passing {
			allowed, ok = n, true
			if p.left >= 0 {
				if int64(n) >= p.left {
					allowed, ok = int(p.left), false
					p.set(Cut)
					p.set(Passing)
				} else {
					p.left -= int64(n)
				}
			}
			p.mu.Unlock()
			if delay > 0 {
				time.Sleep(delay)
			}
			return allowed, ok
		}
		p.mu.Unlock()
		if state == Cut {
			return 0, false
		}
		<-changed
	}
}
