package wire

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/quic-go/quic-go"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var reachedAt = netip.MustParseAddr("192.0.2.1")

// linkWithStreams returns the ends of a link that has agreed on streams.
func linkWithStreams(t *testing.T) (edge, far Conn) {
	t.Helper()
	cloud := newQUICCloud(t, letAll(AcceptOptions{Limits: patient, Features: Features{Tunnel: true}}))
	edge, far = cloud.pair(cloud.options(cloud.addr, Features{Tunnel: true}))
	if edge.Streams() == nil || far.Streams() == nil {
		t.Fatalf("features %v and %v: no streams, want some at both ends", edge.Features(), far.Features())
	}
	return edge, far
}

// openStream returns the ends of a stream.
func openStream(t *testing.T, edge, far Conn) (cloud net.Conn, node *Stream) {
	t.Helper()
	cloud, _, err := far.Streams().Open(t.Context(), reachedAt)
	if err != nil {
		t.Fatal(err)
	}
	if node, err = edge.Streams().Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	if address, err := node.Opener(); err != nil || address != reachedAt {
		t.Fatalf("Opener = %v, %v; want %v", address, err, reachedAt)
	}
	return cloud, node
}

// TestQUICStreams: bytes pass unchanged both ways; the end of one direction leaves the other one open; a stream that is
// closed early is an error at the other end, and no end of what was sent.
func TestQUICStreams(t *testing.T) {
	edge, far := linkWithStreams(t)
	cloud, node := openStream(t, edge, far)
	data := make([]byte, 3<<20)
	_, _ = rand.Read(data) // never fails
	half := func(c net.Conn) {
		_, _ = c.Write(data)
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
	}
	for _, way := range []struct{ from, to net.Conn }{{cloud, node}, {node, cloud}} {
		go half(way.from)
		if got, err := io.ReadAll(way.to); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("got %d bytes, %v; want the %d that were sent", len(got), err, len(data))
		}
	}
	if err := errors.Join(cloud.Close(), node.Close()); err != nil {
		t.Error(err)
	}
	for _, cloudEnds := range []bool{true, false} {
		cloud, node := openStream(t, edge, far)
		var ends, other net.Conn = cloud, node
		if !cloudEnds {
			ends, other = node, cloud
		}
		if _, err := ends.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if err := ends.Close(); err != nil {
			t.Error(err)
		}
		var reset *quic.StreamError
		if _, err := other.Read(make([]byte, 1)); !errors.As(err, &reset) || !reset.Remote {
			t.Errorf("Read of a stream that the other end has closed = %v, want that it was reset", err)
		}
		_ = other.Close()
	}
	cloud, node = openStream(t, edge, far)
	_ = edge.Close(CloseNormal, "")
	for _, c := range []net.Conn{cloud, node} {
		if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("Read after the end of the link = %v, want an error that is not EOF", err)
		}
	}
}

// TestQUICStreamLimit: the cloud gets an error for one more stream than a link may have, until one has ended.
func TestQUICStreamLimit(t *testing.T) {
	edge, far := linkWithStreams(t)
	var last net.Conn
	var nodes []*Stream
	for range StreamsMax {
		cloud, node := openStream(t, edge, far)
		last, nodes = cloud, append(nodes, node)
	}
	if _, _, err := far.Streams().Open(t.Context(), reachedAt); !errors.Is(err, ErrStreams) {
		t.Errorf("Open = %v, want %v", err, ErrStreams)
	}
	_ = last.Close()
	_ = last.Close() // which counts once
	_ = nodes[StreamsMax-1].Close()
	wait.Until(t, "a stream to have ended at both ends", func() error {
		if n := far.Streams().open.Load(); n != StreamsMax-1 {
			return fmt.Errorf("%d streams are open", n)
		}
		return nil
	})
	openStream(t, edge, far)
	if _, _, err := far.Streams().Open(t.Context(), reachedAt); !errors.Is(err, ErrStreams) {
		t.Errorf("Open = %v, want %v", err, ErrStreams)
	}
}

// TestQUICStreamsUnread: streams that are not read, in both directions and as many as there may be, delay neither the
// messages of the link nor a stream that is read.
func TestQUICStreamsUnread(t *testing.T) {
	edge, far := linkWithStreams(t)
	up, _ := reading(far)
	down, _ := reading(edge)
	var writers sync.WaitGroup
	var held []net.Conn
	stuck := make(chan struct{}, 2*StreamsMax)
	for range StreamsMax - 1 {
		cloud, node := openStream(t, edge, far)
		held = append(held, cloud, node)
		for _, way := range []struct{ from, to net.Conn }{{cloud, node}, {node, cloud}} {
			writers.Go(func() {
				if _, err := way.from.Write(make([]byte, windowLow-64)); err != nil { // there is room for it
					t.Error(err)
				}
				stuck <- struct{}{}
				_, _ = way.from.Write(make([]byte, 4<<20)) // there is not: until the end
			})
		}
	}
	for range 2 * (StreamsMax - 1) {
		wait.Receive(t, "all windows to be full", stuck)
	}
	cloud, node := openStream(t, edge, far)
	for _, way := range []struct {
		from, to net.Conn
		c        Conn
		got      <-chan *model.Message
	}{{cloud, node, far, down}, {node, cloud, edge, up}} {
		const size = 512 << 10 // more than any window
		writers.Go(func() {
			if err := way.c.Write(message(size)); err != nil {
				t.Error(err)
			}
		})
		if m := wait.Receive(t, "a message", way.got); len(m.ContentData()) != size {
			t.Errorf("a message of %d bytes came, want %d", len(m.ContentData()), size)
		}
		writers.Go(func() { _, _ = way.from.Write(make([]byte, 1<<20)) })
		if _, err := io.ReadFull(way.to, make([]byte, 1<<20)); err != nil {
			t.Errorf("a stream that is read: %v, want all that was sent", err)
		}
	}
	for _, c := range held {
		_ = c.Close()
	}
	writers.Wait()
}

// TestQUICStreamsUnknown: an end that does not know of streams is served without, and so is one without tunnels.
func TestQUICStreamsUnknown(t *testing.T) {
	all := AcceptOptions{Limits: patient, Features: Features{Tunnel: true, Lease: true}}
	cloud := newQUICCloud(t, letAll(all))
	edge, far := cloud.pair(cloud.options(cloud.addr, Features{Lease: true}))
	if edge.Streams() != nil || far.Streams() != nil {
		t.Error("a node without tunnels has streams, want none")
	}

	t.Run("older node", func(t *testing.T) {
		ctx := wait.Context(t)
		config := cloud.ca.ClientTLS(t, "edge-1")
		config.NextProtos = []string{alpn}
		conn, err := quic.DialAddr(ctx, cloud.addr, config, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.CloseWithError(0, "") }()
		control, err := conn.OpenStreamSync(ctx)
		if err != nil {
			t.Fatal(err)
		}
		header := model.New("", "", headerName, headerName,
			[]byte(`{"Node_id":["edge-1"],"Edgecore-Features":["lease,tunnel"]}`))
		if err := WritePacked(control, header); err != nil {
			t.Fatal(err)
		}
		answer, err := ReadPacked(control, maxHeader)
		if err != nil || strings.Contains(string(answer.ContentData()), "streams") {
			t.Fatalf("the answer is %s, %v; want one without streams", answer.ContentData(), err)
		}
		messages, err := conn.OpenStreamSync(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(messages, streamUse); err != nil {
			t.Fatal(err)
		}
		far, _, _, err := cloud.l.Accept(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if far.Streams() != nil || !far.Features().Tunnel {
			t.Errorf("features %v, want tunnel without streams", far.Features())
		}
		var limit *quic.StreamLimitReachedError
		if _, err := conn.OpenStream(); !errors.As(err, &limit) {
			t.Errorf("a third stream of the node: %v, want that none is allowed", err)
		}
		if _, err := conn.OpenUniStream(); !errors.As(err, &limit) {
			t.Errorf("a unidirectional stream of the node: %v, want that none is allowed", err)
		}
	})
}

// olderCloud answers one node with features, as a cloudcore before streams does, and returns its connection.
func olderCloud(t *testing.T, features string) (cloud *quicCloud, conns <-chan *quic.Conn) {
	t.Helper()
	ca := wiretest.NewCA(t)
	config := ca.ServerTLS(t)
	config.NextProtos = []string{alpn}
	l, err := quic.ListenAddr("127.0.0.1:0", config, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ready := make(chan *quic.Conn, 1)
	go func() {
		conn, err := l.Accept(t.Context())
		if err != nil {
			return
		}
		control, err := conn.AcceptStream(t.Context())
		if err != nil {
			return
		}
		m, err := ReadPacked(control, maxHeader)
		if err != nil {
			return
		}
		_ = answerHeader(control, m, headerAnswer{Ack: true, Header: map[string][]string{HeaderFeatures: {features}}})
		ready <- conn
	}()
	return &quicCloud{t: t, ca: ca, addr: l.Addr().String()}, ready
}

// TestQUICStreamNotAgreed: a cloud that opens a stream without having agreed on them loses the link, and is told why.
func TestQUICStreamNotAgreed(t *testing.T) {
	cloud, conns := olderCloud(t, "lease,tunnel")
	edge, err := DialQUIC(t.Context(), cloud.options(cloud.addr, Features{Lease: true, Tunnel: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer edge.Close(CloseNormal, "")
	if edge.Streams() != nil || !edge.Features().Tunnel {
		t.Errorf("features %v of an older cloud, want tunnel without streams", edge.Features())
	}
	_, end := reading(edge)
	conn := wait.Receive(t, "the link", conns)
	s, err := conn.OpenStreamSync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("api\x00")); err != nil {
		t.Fatal(err)
	}
	var bad *Malformed
	if err := wait.Receive(t, "the link's end", end); !errors.As(err, &bad) {
		t.Errorf("the link ends with %v, want *Malformed", err)
	}
	var closed *quic.ApplicationError
	<-conn.Context().Done()
	if err := context.Cause(conn.Context()); !errors.As(err, &closed) || closed.ErrorCode != CloseMalformed {
		t.Errorf("the cloud is told %v, want code %d", err, CloseMalformed)
	}
}

// TestQUICStreamOpeners: a stream with other first bytes is reset; the link goes on, and so do its other streams.
func TestQUICStreamOpeners(t *testing.T) {
	cloud, conns := olderCloud(t, "lease,tunnel,streams")
	edge, err := DialQUIC(t.Context(), cloud.options(cloud.addr, Features{Lease: true, Tunnel: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer edge.Close(CloseNormal, "")
	conn := wait.Receive(t, "the link", conns)
	open := func(text string, ends bool) (*quic.Stream, *Stream) {
		t.Helper()
		s, err := conn.OpenStreamSync(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(s, text); err != nil {
			t.Fatal(err)
		}
		if ends {
			_ = s.Close()
		}
		node, err := edge.Streams().Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s, node
	}
	for name, tc := range map[string]struct {
		text string
		ends bool
	}{
		"another use":     {"msg\x00", false},
		"HTTP":            {"GET / HTTP/1.1\r\n\r\n", false},
		"too long":        {"api\xff" + strings.Repeat("x", 4096), false},
		"too short":       {"ap", true},
		"no IP address":   {"api\x05abcde", false},
		"half an address": {"api\x10abc", true},
		"nothing":         {"a", true},
	} {
		s, node := open(tc.text, tc.ends)
		if address, err := node.Opener(); err == nil {
			t.Errorf("%s: Opener = %v, want an error", name, address)
		}
		var reset *quic.StreamError
		if _, err := s.Read(make([]byte, 1)); !errors.As(err, &reset) || reset.ErrorCode != streamOpener {
			t.Errorf("%s: the cloud reads %v, want code %d", name, err, streamOpener)
		}
	}
	for text, want := range map[string]netip.Addr{
		"api\x00":                 {},
		"api\x04\xc0\x00\x02\x01": reachedAt,
		"api\x10\x20\x01\x0d\xb8" + strings.Repeat("\x00", 11) + "\x01": netip.MustParseAddr("2001:db8::1"),
	} {
		_, node := open(text, false)
		if got, err := node.Opener(); err != nil || got != want {
			t.Errorf("Opener of %q = %v, %v; want %v", text, got, err, want)
		}
	}
}

// FuzzOpener: whatever a stream begins with, at most 20 bytes of it are read.
func FuzzOpener(f *testing.F) {
	f.Add([]byte("api\x00"))
	f.Add([]byte("api\x04\xc0\x00\x02\x01"))
	f.Add([]byte("api\x10abc"))
	f.Add([]byte("msg"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		address, err := readOpener(r)
		read := len(data) - r.Len()
		if read > 20 || err == nil && read != 4+len(address.AsSlice()) {
			t.Errorf("%d bytes of %q read for %v, %v; want the opener alone", read, data, address, err)
		}
	})
}

// TestQUICStreamsUnended: a node that ends each stream at once, and takes only its first bytes, keeps each of them in
// the cloud. Their number is limited, and the link goes on.
func TestQUICStreamsUnended(t *testing.T) {
	server := newQUICCloud(t, letAll(AcceptOptions{Limits: patient, Features: Features{Tunnel: true}}))
	o := server.options(server.addr, Features{Tunnel: true})
	config := o.TLS.Clone()
	config.MinVersion, config.NextProtos = tls.VersionTLS13, []string{alpn}
	hostile := quicConfig(patient, 1<<20, streamWindow)
	hostile.InitialStreamReceiveWindow = 512
	conn, err := quic.DialAddr(t.Context(), server.addr, config, hostile)
	if err != nil {
		t.Fatal(err)
	}
	node, err := introduce(t.Context(), conn, o, patient)
	if err != nil {
		t.Fatal(err)
	}
	node.start()
	defer node.Close(CloseNormal, "")
	far, _, _, err := server.l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close(CloseNormal, "")
	go func() {
		for {
			s, err := conn.AcceptStream(t.Context())
			if err != nil {
				return
			}
			_ = s.Close()
		}
	}()
	for n := 0; ; n++ {
		c, _, err := far.Streams().Open(t.Context(), reachedAt)
		if errors.Is(err, ErrStreams) && n == endedMax {
			break
		}
		if err != nil || n > endedMax {
			t.Fatalf("stream %d: %v, want %v at stream %d", n, err, ErrStreams, endedMax)
		}
		_, _ = c.Write(make([]byte, 1200))
		_ = c.(*Stream).CloseWrite()
		if _, err := io.ReadAll(c); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	if open := far.Streams().open.Load(); open != 0 {
		t.Errorf("%d streams count as open, want none", open)
	}
	up, _ := reading(far)
	if err := node.Write(model.New("", "", "after", "insert", nil)); err != nil {
		t.Fatal(err)
	}
	wait.Receive(t, "a message over the link", up)
}

// TestQUICHalfClosed: what a caller has sent, and ended, before it goes away reaches the node, also if datagrams are
// lost.
func TestQUICHalfClosed(t *testing.T) {
	const size = 20 << 10
	server := newQUICCloud(t, letAll(AcceptOptions{Limits: patient, Features: Features{Tunnel: true}}))
	proxy := wiretest.NewUDPProxy(t, server.addr)
	edge, far := server.pair(server.options(proxy.Addr(), Features{Tunnel: true}))
	for i := range 10 {
		cloud, node := openStream(t, edge, far)
		proxy.LoseEach(10)
		if _, err := cloud.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		_, _ = cloud.(*Stream).CloseWrite(), cloud.Close()
		got, err := io.ReadAll(node)
		proxy.LoseEach(0)
		if err != nil || len(got) != size {
			t.Errorf("upload %d: %d bytes, %v; want %d", i, len(got), err, size)
		}
		_ = node.Close()
	}
}
