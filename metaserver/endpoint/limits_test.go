package endpoint

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/ratelimit"
)

// fill takes places until there is none, and returns how many there were, and why there was none.
func fill(t *testing.T, l *limits, c caller, long bool, now *time.Time) (n int, why string, give func()) {
	t.Helper()
	var all []func()
	for {
		*now = now.Add(time.Second) // not the rate
		release, refused := l.enter(c, long, *now)
		if refused != nil {
			if refused.status.Code != 429 || refused.status.Details.RetryAfterSeconds < 1 {
				t.Errorf("refused with %+v, want 429 and when to try again", refused.status)
			}
			return n, refused.why, func() {
				for _, release := range all {
					release()
				}
			}
		}
		all = append(all, release)
		n++
	}
}

// TestShares: an account has its share of requests and of watches; what it has not, others get; and all of it comes
// back.
func TestShares(t *testing.T) {
	l, now := newLimits(), time.Now()
	var gives []func()
	for _, tc := range []struct {
		caller caller
		long   bool
		want   int
		why    string
	}{
		{caller{pod, "a/a"}, false, accountRequests, whyRequests},
		{caller{pod, "a/a"}, true, accountWatches, whyWatches},
		{caller{pod, "b/b"}, true, accountWatches, whyWatches},
		{caller{unknown, "unknown 1"}, true, sourceUnknown, whyWatches},
		{caller{unknown, "unknown 2"}, true, maxUnknown - sourceUnknown, whyWatches},
		{caller{unknown, "unknown 3"}, true, 0, whyWatches},
		{caller{unknown, "unknown 3"}, false, sourceUnknown, whyRequests},
		{caller{health, "probes"}, false, accountRequests, whyRequests},
		{caller{pod, "c/c"}, false, accountRequests, whyRequests},
		{caller{pod, "d/d"}, false, maxRequests - 3*accountRequests - sourceUnknown, whyRequests},
		{caller{pod, "e/e"}, false, 0, whyRequests},
	} {
		n, why, give := fill(t, l, tc.caller, tc.long, &now)
		gives = append(gives, give)
		if n != tc.want || why != tc.why {
			t.Errorf("%v, watches %v: %d, then refused for %s; want %d and %s", tc.caller, tc.long, n, why, tc.want,
				tc.why)
		}
	}
	for _, give := range gives {
		give()
	}
	if l.requests.Taken()+l.watches.Taken()+l.unknownRequests.Taken()+l.unknownWatches.Taken() != 0 ||
		len(l.clients) != 0 {
		t.Errorf("after the end: %d requests, %d watches, clients %v; want none", l.requests.Taken(),
			l.watches.Taken(), l.clients)
	}
}

// TestRates: how many requests a caller can make at once, and in each second after that. A refused one costs nothing.
func TestRates(t *testing.T) {
	for k, want := range map[kind][2]int{
		pod:      {accountBurst, accountRate},
		unknown:  {unknownBurst, unknownRate},
		stranger: {strangerBurst, strangerRate},
		health:   {strangerBurst, strangerRate},
	} {
		l, now := newLimits(), time.Now()
		count := func() (n int) {
			for {
				release, refused := l.enter(caller{k, "a"}, false, now)
				if refused != nil {
					if refused.why != whyRate || refused.status.Details.RetryAfterSeconds != 1 {
						t.Errorf("kind %d: refused for %s with %+v, want the rate, and 1 s", k, refused.why,
							refused.status.Details)
					}
					return n
				}
				release()
				n++
			}
		}
		burst := count()
		_ = count()
		now = now.Add(time.Second)
		if second := count(); burst != want[0] || second != want[1] {
			t.Errorf("kind %d: %d at once and %d a second, want %v", k, burst, second, want)
		}
		if release, refused := l.enter(caller{k, "b"}, false, now); refused != nil {
			t.Errorf("kind %d: another caller is refused, want it served", k)
		} else {
			release()
		}
	}
}

// TestSources: only this machine and its pods connect, also if others have a route to the address.
func TestSources(t *testing.T) {
	own := "192.0.2.1"
	var failure error
	now := time.Now()
	s := newSources(&device{}, func() {})
	s.now = func() time.Time { return now }
	s.list = func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.ParseIP(own), Mask: net.CIDRMask(24, 32)}}, failure
	}
	const local = "169.254.30.10"
	check := func(remote string, want bool) {
		t.Helper()
		if got := s.allows(netip.MustParseAddr(remote), netip.MustParseAddr(local)); got != want {
			t.Errorf("%s may connect: %v, want %v", remote, got, want)
		}
	}
	check(local, true)
	check("127.0.0.1", true)
	check("::1", true)
	check("10.1.0.9", true)
	check("192.0.2.1", true)
	check("192.0.2.2", false)
	check("10.1.0.8", false)
	check("2001:db8::1", false)
	own = "fe80::1" // of any interface
	now = now.Add(addressesAge)
	check("fe80::1", false)
	own = "192.0.2.1"
	now = now.Add(addressesAge)
	check("192.0.2.1", true)
	own = "192.0.2.2"
	check("192.0.2.2", false)
	now = now.Add(addressesAge)
	check("192.0.2.2", true)
	check("192.0.2.1", false)
	failure, now = errors.New("no answer"), now.Add(addressesAge)
	check("192.0.2.2", true)
	if s.allows(netip.Addr{}, netip.MustParseAddr(local)) {
		t.Error("a connection without an address may connect, want it closed")
	}
}

// TestHandshakeRate: connections of an address that come too fast are closed before TLS; other addresses are not slowed
// down.
func TestHandshakeRate(t *testing.T) {
	now := time.Now()
	s := newSources(&device{}, func() {})
	s.now = func() time.Time { return now }
	local := netip.MustParseAddr("127.0.0.1")
	count := func(remote netip.Addr) (n int) {
		for s.allows(remote, local) {
			n++
		}
		return n
	}
	one := netip.MustParseAddr("10.1.0.9")
	if n := count(one); n != handshakesBurst {
		t.Errorf("%d connections at once, want %d", n, handshakesBurst)
	}
	if n := count(netip.MustParseAddr("127.0.0.2")); n != handshakesBurst {
		t.Errorf("%d connections at once of another address, want %d", n, handshakesBurst)
	}
	now = now.Add(time.Second)
	if n := count(one); n != handshakes {
		t.Errorf("%d connections a second later, want %d", n, handshakes)
	}
}

// TestRefusedConnectionIsClosed: nothing is read of it.
func TestRefusedConnectionIsClosed(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{}, 2)
	s := newSources(&device{}, func() { refused <- struct{}{} })
	s.rate = ratelimit.New[netip.Prefix](0, 1) // one connection
	l := s.listen(inner)
	defer l.Close()
	accepted := make(chan error, 2)
	go func() {
		for range 2 {
			c, err := l.Accept()
			accepted <- err
			if err == nil {
				_ = c.Close()
			}
		}
	}()
	for i := range 2 {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("connection %d: %d bytes, want it closed", i, n)
		}
		_ = c.Close()
	}
	<-refused
	if err := <-accepted; err != nil {
		t.Error(fmt.Errorf("the first connection: %w", err))
	}
}
