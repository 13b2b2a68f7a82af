package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/quic-go/quic-go"

	"github.com/edgecore-io/edgecore/pkg/source"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestHandshakeSlots: one source takes its share, all sources what there is, and what is given back can be taken again.
func TestHandshakeSlots(t *testing.T) {
	var s handshakeSlots
	from := func(text string) netip.Prefix { return source.Of(&net.UDPAddr{IP: net.ParseIP(text), Port: 1}) }
	takes := func(text string) (n int) {
		for s.take(from(text)) {
			n++
		}
		return n
	}
	for _, tc := range []struct {
		from string
		want int
	}{
		{"192.0.2.1", sourceHandshakesMax},
		{"::ffff:192.0.2.1", 0},
		{"192.0.2.2", sourceHandshakesMax},
		{"2001:db8::1", sourceHandshakesMax},
		{"2001:db8::ffff:1", 0},
		{"2001:db8:0:1::1", sourceHandshakesMax},
	} {
		if got := takes(tc.from); got != tc.want {
			t.Errorf("%s takes %d slots, want %d", tc.from, got, tc.want)
		}
	}
	for _, other := range []string{"192.0.2.3", "192.0.2.4", "192.0.2.5", "192.0.2.6"} {
		takes(other)
	}
	if got := takes("192.0.2.7"); s.taken != handshakesMax || got != 0 {
		t.Errorf("%d slots are taken, and one more source takes %d; want %d and 0", s.taken, got, handshakesMax)
	}
	s.leave(from("192.0.2.1"))
	if got := takes("192.0.2.1"); got != 1 {
		t.Errorf("after one was given back, %d are taken, want 1", got)
	}
	for range sourceHandshakesMax {
		for _, last := range []string{"1", "2", "3", "4", "5", "6"} {
			s.leave(from("192.0.2." + last))
		}
		s.leave(from("2001:db8::7"))
		s.leave(from("2001:db8:0:1::7"))
	}
	if s.taken != 0 || len(s.sources) != 0 {
		t.Errorf("%d slots of %v are taken at the end, want none", s.taken, s.sources)
	}
}

// TestHandshakesOfOneSource: connections that say nothing take no more than their address's share, and others come in;
// links that stand take no share.
func TestHandshakesOfOneSource(t *testing.T) {
	cloud := newQUICCloud(t, letAll(AcceptOptions{Limits: patient, Features: AllFeatures()}))
	cloud.pair(cloud.options(cloud.addr, AllFeatures()))
	config := cloud.ca.ClientTLS(t, "edge-1").Clone()
	config.MinVersion, config.NextProtos = tls.VersionTLS13, []string{alpn}
	server, err := net.ResolveUDPAddr("udp", cloud.addr)
	if err != nil {
		t.Fatal(err)
	}
	from := func(ip string) *quic.Transport {
		socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(ip)})
		if err != nil {
			t.Fatal(err)
		}
		transport := &quic.Transport{Conn: socket}
		t.Cleanup(func() {
			_ = transport.Close()
			_ = socket.Close()
		})
		return transport
	}
	dial := func(transport *quic.Transport) *quic.Conn {
		conn, err := transport.Dial(wait.Context(t), server, config, quicConfig(patient, -1, windowHigh))
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	taken := func() int {
		cloud.l.slots.mu.Lock()
		defer cloud.l.slots.mu.Unlock()
		return cloud.l.slots.taken
	}
	wait.True(t, "the link to stand", func() bool { return taken() == 0 })
	greedy := from("127.0.0.1")
	var silent []*quic.Conn
	for range sourceHandshakesMax {
		silent = append(silent, dial(greedy))
	}
	wait.True(t, "the share of one source", func() bool { return taken() == sourceHandshakesMax })
	more := dial(greedy)
	wait.Closed(t, "the end of one connection too many", more.Context().Done())
	var closed *quic.ApplicationError
	if cause := context.Cause(more.Context()); !errors.As(cause, &closed) || closed.ErrorCode != CloseTryLater {
		t.Errorf("one connection too many ended with %v, want code %d", cause, CloseTryLater)
	}
	dial(from("127.0.0.2"))
	wait.True(t, "another source to come in", func() bool { return taken() == sourceHandshakesMax+1 })
	_ = silent[0].CloseWithError(0, "")
	wait.True(t, "a slot to be given back", func() bool { return taken() == sourceHandshakesMax })
	dial(greedy)
	wait.True(t, "the slot to be taken again", func() bool { return taken() == sourceHandshakesMax+1 })
}
