package sourceaddr

import (
	"net"
	"net/netip"
	"testing"
)

func TestOf(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1:1":              "192.0.2.1/32",
		"[::ffff:192.0.2.1]:2":     "192.0.2.1/32",
		"[2001:db8::1]:1":          "2001:db8::/64",
		"[2001:db8:0:1::1%eth0]:1": "2001:db8:0:1::/64",
		"[::1]:1":                  "::1/128",
		"127.0.0.1:1":              "127.0.0.1/32",
	} {
		parsed := netip.MustParseAddrPort(text)
		for _, got := range []netip.Prefix{
			Parse(text), Of(net.TCPAddrFromAddrPort(parsed)), Of(net.UDPAddrFromAddrPort(parsed)),
		} {
			if got.String() != want {
				t.Errorf("source of %s = %v, want %s", text, got, want)
			}
		}
	}
	for _, got := range []netip.Prefix{
		Parse(""), Parse("nonsense"), Of(nil), Of(&net.UnixAddr{Name: "@"}), Of(&net.TCPAddr{}),
	} {
		if got.IsValid() {
			t.Errorf("source of no address = %v, want none", got)
		}
	}
}
