package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"testing"

	"github.com/quic-go/quic-go"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

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
	taken := func() int64 { return cloud.l.slots.Taken() }
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
