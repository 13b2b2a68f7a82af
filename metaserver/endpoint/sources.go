package endpoint

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/ratelimit"
	"github.com/edgecore-io/edgecore/pkg/sourceaddr"
)

const (
	// handshakes and handshakesBurst are new connections of an address, in a second and at once.
	handshakes, handshakesBurst = 20, 40
	// addressesAge is how long the addresses of this machine are taken for unchanged.
	addressesAge = time.Second
)

// sources decides whose connections are taken. An address of the loopback interface can be reached from other machines
// that have a route to it, since Linux takes packets for any of its addresses on any interface.
type sources struct {
	pods    Pods
	rate    *ratelimit.Limiter[netip.Prefix]
	refused func()
	// list lists the addresses of this machine.
	list func() ([]net.Addr, error)
	now  func() time.Time

	mu   sync.Mutex
	own  map[netip.Addr]struct{}
	read time.Time
}

func newSources(pods Pods, refused func()) *sources {
	return &sources{
		pods:    pods,
		rate:    ratelimit.New[netip.Prefix](handshakes, handshakesBurst),
		refused: refused,
		list:    net.InterfaceAddrs,
		now:     time.Now,
	}
}

// allows reports whether a connection may be used. local is the address of this machine that it was made to.
func (s *sources) allows(remote, local netip.Addr) bool {
	now := s.now()
	if !s.rate.Of(sourceaddr.OfAddr(remote), now).AllowN(now, 1) { // also before the search among the pods
		return false
	}
	if remote.Is6() && remote.IsLinkLocalUnicast() {
		return false // each interface has some of its own, and other machines may choose the same ones
	}
	return remote.IsLoopback() || remote == local || s.pods.HasAddress(remote) || s.isOwn(remote)
}

// isOwn reports whether this machine has an address.
func (s *sources) isOwn(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.now(); s.own == nil || now.Sub(s.read) >= addressesAge {
		all, err := s.list()
		if err != nil {
			klog.V(2).InfoS("Addresses of this machine are not known; using those known before", "err", err)
		} else {
			s.own, s.read = map[netip.Addr]struct{}{}, now
			for _, a := range all {
				if ip, ok := a.(*net.IPNet); ok {
					own, _ := netip.AddrFromSlice(ip.IP)
					s.own[own.Unmap()] = struct{}{}
				}
			}
		}
	}
	_, ok := s.own[addr]
	return ok
}

// listen closes connections of others before anything is read of them.
func (s *sources) listen(inner net.Listener) net.Listener { return &sourceListener{inner, s} }

type sourceListener struct {
	net.Listener
	sources *sources
}

// Accept implements net.Listener.
func (l *sourceListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		remote, local := addrOf(c.RemoteAddr()), addrOf(c.LocalAddr())
		if l.sources.allows(remote, local) {
			return c, nil
		}
		l.sources.refused()
		klog.V(4).InfoS("Connection to the API endpoint refused", "from", remote)
		_ = c.Close() // nothing was read or written
	}
}

func addrOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}
