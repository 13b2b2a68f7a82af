package shares

import (
	"net"
	"net/netip"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/sourceaddr"
)

// TestBudget: one source takes its share, all sources what there is, and what is given back can be taken again.
func TestBudget(t *testing.T) {
	const total, share = 256, 32
	b := NewBudget[netip.Prefix](total, share)
	from := func(text string) netip.Prefix { return sourceaddr.Of(&net.UDPAddr{IP: net.ParseIP(text), Port: 1}) }
	takes := func(text string) (n int) {
		for b.Take(from(text), 1) {
			n++
		}
		return n
	}
	for _, tc := range []struct {
		from string
		want int
	}{
		{"192.0.2.1", share},
		{"::ffff:192.0.2.1", 0},
		{"192.0.2.2", share},
		{"2001:db8::1", share},
		{"2001:db8::ffff:1", 0},
		{"2001:db8:0:1::1", share},
	} {
		if got := takes(tc.from); got != tc.want {
			t.Errorf("%s takes %d, want %d", tc.from, got, tc.want)
		}
	}
	for _, other := range []string{"192.0.2.3", "192.0.2.4", "192.0.2.5", "192.0.2.6"} {
		takes(other)
	}
	if got := takes("192.0.2.7"); b.Taken() != total || got != 0 {
		t.Errorf("%d are taken, and one more source takes %d; want %d and 0", b.Taken(), got, total)
	}
	b.Return(from("192.0.2.1"), 2)
	if b.Take(from("192.0.2.1"), 3) || !b.Take(from("192.0.2.1"), 2) {
		t.Error("after 2 were given back: want that 3 are refused as a whole, and 2 are taken")
	}
	for _, last := range []string{"1", "2", "3", "4", "5", "6"} {
		b.Return(from("192.0.2."+last), share)
	}
	b.Return(from("2001:db8::7"), share)
	b.Return(from("2001:db8:0:1::7"), share)
	if b.Taken() != 0 || len(b.keys) != 0 {
		t.Errorf("%d of %v are taken at the end, want none", b.Taken(), b.keys)
	}
}
