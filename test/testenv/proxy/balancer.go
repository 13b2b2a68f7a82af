package proxy

import (
	"io"
	"net"
	"sync"
	"time"
)

// Balancer is one address for several servers, as a Service is: each connection goes to the next server in turn that
// takes it. Its methods may be called from any goroutine.
type Balancer struct {
	l       net.Listener
	servers []string
	wg      sync.WaitGroup

	mu    sync.Mutex
	next  int
	conns map[net.Conn]struct{}
}

// StartBalancer starts a balancer that listens on an IP address.
func StartBalancer(ip string, servers ...string) (*Balancer, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		return nil, err
	}
	b := &Balancer{l: l, servers: servers, conns: map[net.Conn]struct{}{}}
	b.wg.Go(b.accept)
	return b, nil
}

// Addr is where the balancer listens.
func (b *Balancer) Addr() string { return b.l.Addr().String() }

// Next sends the next connection to a server, given by its index in the list.
func (b *Balancer) Next(server int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next = server
}

// Close ends everything.
func (b *Balancer) Close() error {
	err := b.l.Close()
	b.mu.Lock()
	for c := range b.conns {
		_ = c.Close()
	}
	b.conns = nil
	b.mu.Unlock()
	b.wg.Wait()
	return err
}

func (b *Balancer) accept() {
	for {
		c, err := b.l.Accept()
		if err != nil {
			return
		}
		b.wg.Go(func() { b.join(c) })
	}
}

func (b *Balancer) join(from net.Conn) {
	defer from.Close()
	to := b.dial()
	if to == nil {
		return
	}
	defer to.Close()
	b.mu.Lock()
	if b.conns == nil {
		b.mu.Unlock()
		return
	}
	b.conns[from], b.conns[to] = struct{}{}, struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.conns, from)
		delete(b.conns, to)
	}()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(to, from); _ = to.Close() }) // what it carries ends as a whole
	_, _ = io.Copy(from, to)
	_ = from.Close()
	wg.Wait()
}

// dial connects to the next server that takes the connection.
func (b *Balancer) dial() net.Conn {
	for range b.servers {
		b.mu.Lock()
		server := b.servers[b.next]
		b.next = (b.next + 1) % len(b.servers)
		b.mu.Unlock()
		if c, err := net.DialTimeout("tcp", server, time.Second); err == nil {
			return c
		}
	}
	return nil
}
