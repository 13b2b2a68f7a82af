package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
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
	from := func(ip string) *quic.Transport { return quicFrom(t, ip) }
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

// quicFrom returns a transport that sends from an address.
func quicFrom(t *testing.T, ip string) *quic.Transport {
	t.Helper()
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

// TestUnfinishedTLS: connections whose TLS handshake does not go on take no more than their address's share: the next
// one is refused, and the edge is told why; others come in. Callers that do not answer get no place once some are
// taken.
func TestUnfinishedTLS(t *testing.T) {
	cloud := newQUICCloud(t, letAll(AcceptOptions{Limits: patient, Features: AllFeatures()}))
	server, err := net.ResolveUDPAddr("udp", cloud.addr)
	if err != nil {
		t.Fatal(err)
	}
	taken := func() int64 { return cloud.l.secrets.Taken() }
	// The certificate callback of these clients waits, so their handshakes do not end.
	release := make(chan struct{})
	finish := sync.OnceFunc(func() { close(release) })
	t.Cleanup(finish)
	stuck := cloud.ca.ClientTLS(t, "edge-1").Clone()
	stuck.MinVersion, stuck.NextProtos = tls.VersionTLS13, []string{alpn}
	certificates := stuck.Certificates
	stuck.Certificates = nil
	stuck.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		<-release
		return &certificates[0], nil
	}
	greedy := quicFrom(t, "127.0.0.2")
	var dials sync.WaitGroup
	for range sourceSecretsMax {
		dials.Go(func() { _, _ = greedy.Dial(t.Context(), server, stuck, quicConfig(patient, -1, windowHigh)) })
	}
	t.Cleanup(dials.Wait)
	wait.True(t, "the share of one source", func() bool { return taken() == sourceSecretsMax })
	_, err = greedy.Dial(wait.Context(t), server, stuck, quicConfig(patient, -1, windowHigh))
	var refused *Refused
	if err = refusalQUIC(err); !errors.As(err, &refused) || refused.Text != errSecrets.Error() {
		t.Errorf("one connection too many: %v, want %v", err, errSecrets)
	}
	// An Initial packet from an address that does not answer: as a spoofed one.
	mute, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP("127.0.0.3")}, server)
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	if _, err := mute.Write(initialPacket(t)); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 2000)
	defer context.AfterFunc(wait.Context(t), func() { _ = mute.Close() })()
	n, err := mute.Read(answer)
	if err != nil {
		t.Fatal(err)
	}
	if kind := answer[0] >> 4 & 3; n < 5 || kind != 3 {
		t.Errorf("a caller that may be spoofed is answered by a packet of type %d, want 3 (Retry)", kind)
	}
	if got := taken(); got != sourceSecretsMax {
		t.Errorf("%d places are taken, want the %d of before", got, sourceSecretsMax)
	}
	edge, far := cloud.pair(cloud.options(cloud.addr, AllFeatures())) // from 127.0.0.1
	_, _ = edge.Close(CloseNormal, ""), far.Close(CloseNormal, "")
	finish()
	wait.True(t, "the places to be given back", func() bool { return taken() == 0 })
}

// initialPacket returns the first packet of a caller.
func initialPacket(t *testing.T) []byte {
	t.Helper()
	l, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var dial sync.WaitGroup
	dial.Go(func() {
		_, _ = quic.DialAddr(ctx, l.LocalAddr().String(), &tls.Config{NextProtos: []string{alpn}, ServerName: "x"},
			quicConfig(patient, -1, windowHigh))
	})
	defer dial.Wait()
	defer cancel()
	packet := make([]byte, 2000)
	n, err := l.Read(packet)
	if err != nil {
		t.Fatal(err)
	}
	return packet[:n]
}
