package wiretest

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// UDPProxy passes datagrams of edges on to a cloud, until it is silenced. It ends with its test.
type UDPProxy struct {
	front  *net.UDPConn
	target *net.UDPAddr
	silent atomic.Bool
	// deaf drops what the cloud sends.
	deaf atomic.Bool
	// lose drops each nth datagram; 0: none.
	lose, seen atomic.Int64

	mu    sync.Mutex
	backs map[string]*net.UDPConn
	wg    sync.WaitGroup
}

// NewUDPProxy passes datagrams on to a target.
func NewUDPProxy(t testing.TB, target string) *UDPProxy {
	t.Helper()
	to, err := net.ResolveUDPAddr("udp", target)
	if err != nil {
		t.Fatal(err)
	}
	front, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	p := &UDPProxy{front: front, target: to, backs: map[string]*net.UDPConn{}}
	p.wg.Go(p.run)
	t.Cleanup(func() {
		_ = front.Close()
		p.mu.Lock()
		for _, b := range p.backs {
			_ = b.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

// Addr is where to dial.
func (p *UDPProxy) Addr() string { return p.front.LocalAddr().String() }

// Silence drops everything from now on, or no more.
func (p *UDPProxy) Silence(on bool) { p.silent.Store(on) }

// Deafen drops what the cloud sends from now on, or no more: the edges do not hear it.
func (p *UDPProxy) Deafen(on bool) { p.deaf.Store(on) }

// LoseEach drops each nth datagram; 0: none.
func (p *UDPProxy) LoseEach(n int64) { p.lose.Store(n) }

func (p *UDPProxy) drops() bool {
	n := p.lose.Load()
	return p.silent.Load() || n > 0 && p.seen.Add(1)%n == 0
}

func (p *UDPProxy) run() {
	buf := make([]byte, 65536)
	for {
		n, from, err := p.front.ReadFromUDP(buf)
		if err != nil {
			return
		}
		back := p.back(from)
		if back != nil && !p.drops() {
			_, _ = back.Write(buf[:n])
		}
	}
}

// back is the socket that stands for an edge.
func (p *UDPProxy) back(from *net.UDPAddr) *net.UDPConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.backs[from.String()]; b != nil {
		return b
	}
	b, err := net.DialUDP("udp", nil, p.target)
	if err != nil {
		return nil
	}
	p.backs[from.String()] = b
	p.wg.Go(func() {
		buf := make([]byte, 65536)
		for {
			n, err := b.Read(buf)
			if err != nil {
				return
			}
			if !p.deaf.Load() && !p.drops() {
				_, _ = p.front.WriteToUDP(buf[:n], from)
			}
		}
	})
	return b
}
