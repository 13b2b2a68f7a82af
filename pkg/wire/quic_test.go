package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// quicCloud is a server that accepts edges over QUIC.
type quicCloud struct {
	t    *testing.T
	ca   *wiretest.CA
	l    *QUICListener
	addr string
}

// letAll lets every edge in.
func letAll(o AcceptOptions) Prepare {
	return func(Caller) (AcceptOptions, error) { return o, nil }
}

func newQUICCloud(t *testing.T, prepare Prepare) *quicCloud {
	t.Helper()
	return newQUICCloudOf(t, shares.NewMemory(), prepare)
}

func newQUICCloudOf(t *testing.T, memory *shares.Memory, prepare Prepare) *quicCloud {
	t.Helper()
	ca := wiretest.NewCA(t)
	l, err := ListenQUIC("127.0.0.1:0", ca.ServerTLS(t), patient, memory, prepare)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &quicCloud{t: t, ca: ca, l: l, addr: l.Addr().String()}
}

func (c *quicCloud) options(addr string, f Features) DialOptions {
	header := http.Header{}
	header.Set(HeaderNodeID, "edge-1")
	return DialOptions{
		URL:      "quic://" + addr + "/project/edge-1/events",
		TLS:      c.ca.ClientTLS(c.t, "edge-1"),
		Header:   header,
		Limits:   patient,
		Features: f,
	}
}

func (c *quicCloud) pair(o DialOptions) (edge, far Conn) {
	c.t.Helper()
	edge, err := DialQUIC(c.t.Context(), o)
	if err != nil {
		c.t.Fatal(err)
	}
	far, header, chain, err := c.l.Accept(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	if header.Get("node_id") != "edge-1" || len(chain) != 1 || chain[0].Subject.CommonName != "system:node:edge-1" {
		c.t.Errorf("header %v, chain %v; want node edge-1 and its certificate", header, chain)
	}
	c.t.Cleanup(func() {
		_ = edge.Close(CloseNormal, "")
		_ = far.Close(CloseNormal, "")
	})
	return edge, far
}

// TestQUICMessages: in order, of all sizes, from many writers, also when each tenth datagram is lost.
func TestQUICMessages(t *testing.T) {
	cloud := newQUICCloud(t, letAll(AcceptOptions{Limits: patient, Features: AllFeatures()}))
	for _, lose := range []int64{0, 10} {
		proxy := wiretest.NewUDPProxy(t, cloud.addr)
		proxy.LoseEach(lose)
		edge, far := cloud.pair(cloud.options(proxy.Addr(), AllFeatures()))
		want := Features{Inventory: true, Lease: true, Report: true, Batch: true}
		if edge.Features() != want || far.Features() != want || edge.Protocol() != "quic" {
			t.Errorf("features %v and %v, want all but deflate", edge.Features(), far.Features())
		}
		up, _ := reading(far)
		down, _ := reading(edge)
		const writers, each = 4, 8
		var wg sync.WaitGroup
		for _, c := range []Conn{edge, far} {
			for w := range writers {
				wg.Go(func() {
					for i := range each {
						m := message(i * 5000)
						m.Header.ResourceVersion = fmt.Sprintf("%d/%d", w, i)
						if err := errors.Join(c.Write(m), c.Ping()); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		for _, ch := range []<-chan *model.Message{up, down} {
			next := map[int]int{}
			for range writers * each {
				m := <-ch
				var w, i int
				if _, err := fmt.Sscanf(m.Header.ResourceVersion, "%d/%d", &w, &i); err != nil {
					t.Fatal(err)
				}
				if next[w] != i || len(m.ContentData()) != i*5000/16*16 {
					t.Errorf("writer %d: message %d of %d bytes, want message %d", w, i, len(m.ContentData()), next[w])
				}
				next[w]++
			}
		}
		wg.Wait()
		if s := far.Stats(); s.MessagesReceived != 32 || s.MessagesSent != 32 || s.BytesReceived < 400<<10 ||
			s.LastReceived.IsZero() {
			t.Errorf("stats %+v, want 32 messages each way, 400 KB or more received, and a sign of life", s)
		}
	}
}

func TestQUICSilence(t *testing.T) {
	short := Limits{ReadTimeout: 400 * time.Millisecond}
	var pings atomic.Int64
	cloud := newQUICCloud(t, letAll(AcceptOptions{Limits: short, OnPing: func() { pings.Add(1) }}))
	proxy := wiretest.NewUDPProxy(t, cloud.addr)
	o := cloud.options(proxy.Addr(), Features{})
	o.Limits = short
	ends := kept(t, short, func() (edge, far Conn) { return cloud.pair(o) })
	if n := pings.Load(); n < keptPings {
		t.Errorf("told of %d pings, want %d", n, keptPings)
	}
	proxy.Silence(true)
	silent(t, ends)
}

func TestQUICClose(t *testing.T) {
	cloud := newQUICCloud(t, letAll(AcceptOptions{Limits: Limits{MaxMessage: 64 << 10}}))
	edge, far := cloud.pair(cloud.options(cloud.addr, Features{}))
	_, edgeEnd := reading(edge)
	_, farEnd := reading(far)
	if err := errors.Join(far.Close(CloseReplaced, "another came"), far.Close(CloseInternal, "twice")); err != nil {
		t.Error(err)
	}
	var closed *Closed
	if err := <-edgeEnd; !errors.As(err, &closed) || closed.Code != CloseReplaced || closed.Reason != "another came" {
		t.Errorf("the other end learns %v, want %d: another came", err, CloseReplaced)
	}
	if err := <-farEnd; !errors.Is(err, ErrClosed) {
		t.Errorf("this end: %v, want ErrClosed", err)
	}
	if err := far.Write(message(1)); !errors.Is(err, ErrClosed) {
		t.Errorf("Write afterwards: %v, want ErrClosed", err)
	}

	edge, far = cloud.pair(cloud.options(cloud.addr, Features{}))
	_, edgeEnd = reading(edge)
	_, farEnd = reading(far)
	var large *TooLarge
	if err := edge.Write(message(2 << 20)); !errors.As(err, &large) {
		t.Errorf("err = %v, want *TooLarge of this end", err)
	}
	wrote := make(chan error, 1)
	go func() { wrote <- edge.Write(message(512 << 10)) }()
	err := <-farEnd
	if !errors.As(err, &large) || large.Limit != 64<<10 {
		t.Errorf("err = %v, want *TooLarge", err)
	}
	_ = far.Close(CloseCode(err))
	if err := <-edgeEnd; !errors.As(err, &closed) || closed.Code != CloseTooLarge ||
		!strings.Contains(closed.Reason, "larger than 65536") {
		t.Errorf("the sender learns %v, want %d: larger than 65536", err, CloseTooLarge)
	}
	if err := <-wrote; err == nil {
		t.Error("Write of more than fits = nil, want an error")
	}
}

func TestQUICRefusals(t *testing.T) {
	cloud := newQUICCloud(t, func(c Caller) (AcceptOptions, error) {
		return AcceptOptions{}, fmt.Errorf("node %s has the certificate of another", c.Header.Get("node_id"))
	})
	_, err := DialQUIC(t.Context(), cloud.options(cloud.addr, Features{}))
	var refused *Refused
	if !errors.As(err, &refused) || refused.Text != "node edge-1 has the certificate of another" {
		t.Errorf("err = %v, want *Refused with the reason", err)
	}
	o := cloud.options(cloud.addr, Features{})
	o.TLS.Certificates = nil
	if _, err := DialQUIC(t.Context(), o); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("DialQUIC without a certificate = %v, want an error with %q", err, "certificate required")
	}
	o = cloud.options(cloud.addr, Features{})
	o.TLS.RootCAs = wiretest.NewCA(t).Pool()
	var unknown x509.UnknownAuthorityError
	if _, err := DialQUIC(t.Context(), o); !errors.As(err, &unknown) {
		t.Errorf("DialQUIC to a cloud of another CA = %v, want %T", err, unknown)
	}
}

// TestQUICAnswerLost: an edge that was held up, and finds the connection ended, learns why all the same.
func TestQUICAnswerLost(t *testing.T) {
	ca := wiretest.NewCA(t)
	config := ca.ServerTLS(t)
	config.NextProtos = []string{alpn}
	l, err := quic.ListenAddr("127.0.0.1:0", config, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(t.Context()); err == nil {
			_ = conn.CloseWithError(ClosePolicy, "no room\x00")
		}
	}()
	cloud := &quicCloud{t: t, ca: ca}
	_, err = DialQUIC(t.Context(), cloud.options(l.Addr().String(), Features{}))
	var refused *Refused
	if !errors.As(err, &refused) || refused.Text != "no room" {
		t.Errorf("err = %v, want *Refused with the reason", err)
	}
}

// TestQUICPatience: a dial waits for a cloud that does not answer as long as it may, also longer than QUIC by itself.
func TestQUICPatience(t *testing.T) {
	t.Parallel() // it waits most of the time
	nobody, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	cloud := &quicCloud{t: t, ca: wiretest.NewCA(t)}
	o := cloud.options(nobody.LocalAddr().String(), Features{})
	o.HandshakeTimeout = 6 * time.Second // QUIC's own limit is 5 s
	if _, err := DialQUIC(t.Context(), o); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v, want that the time was over", err)
	}
}

// TestQUICHostile: an edge that breaks the rules is sent away; those after it are let in.
func TestQUICHostile(t *testing.T) {
	cloud := newQUICCloud(t, letAll(AcceptOptions{Limits: patient}))
	config := cloud.ca.ClientTLS(t, "edge-1")
	config.NextProtos = []string{alpn}
	header := model.New("", "", headerName, headerName, []byte(`{"Node_id":["edge-1"]}`))
	write := func(text string) func(*quic.Stream) error {
		return func(s *quic.Stream) error {
			_, err := io.WriteString(s, text)
			return err
		}
	}
	hello := func(s *quic.Stream) error {
		if err := WritePacked(s, header); err != nil {
			return err
		}
		_, err := ReadPacked(s, maxHeader)
		return err
	}
	for name, streams := range map[string][]func(*quic.Stream) error{
		"no packer":         {write("GET / HTTP/1.1\r\n\r\n")},
		"large header":      {write("\x01\x01\x01\x00\x01\x00\x01\x00\x00\x00")},
		"other message":     {func(s *quic.Stream) error { return WritePacked(s, message(1)) }},
		"stream of another": {hello, write("str")},
		"message is none":   {hello, write("msg\x09\x09\x09\x09\x00\x00\x00\x00\x00\x00")},
		"sign is none": {func(s *quic.Stream) error {
			return errors.Join(hello(s), write("\x07")(s))
		}, write("msg")},
		"ends in the middle": {hello, func(s *quic.Stream) error {
			return errors.Join(write("msg\x01\x01")(s), s.Close())
		}},
		"cuts its stream off": {hello, func(s *quic.Stream) error {
			defer s.CancelWrite(7)
			return write("msg\x01\x01")(s)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := wait.Context(t)
			conn, err := quic.DialAddr(ctx, cloud.addr, config, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.CloseWithError(0, "") }()
			for _, do := range streams {
				s, err := conn.OpenStreamSync(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if err := do(s); err != nil {
					t.Fatal(err)
				}
			}
			accepting, stop := context.WithCancel(ctx)
			defer context.AfterFunc(conn.Context(), stop)()
			for { // it gets that far, or not; and so may one before it, late
				far, _, _, err := cloud.l.Accept(accepting)
				if err != nil {
					break
				}
				_, end := reading(far)
				_ = far.Close(CloseCode(<-end))
			}
			select {
			case <-conn.Context().Done():
			case <-ctx.Done():
				t.Fatalf("the connection is open at the end of the test's time, %v; want it closed", ctx.Err())
			}
			var closed *quic.ApplicationError
			if err := context.Cause(conn.Context()); !errors.As(err, &closed) || !closed.Remote {
				t.Errorf("ended by %v, want the cloud's word", err)
			}
		})
	}
	cloud.pair(cloud.options(cloud.addr, Features{}))
	plain := config.Clone()
	plain.NextProtos = []string{"h3"}
	var alert *quic.TransportError
	if _, err := quic.DialAddr(t.Context(), cloud.addr, plain, nil); !errors.As(err, &alert) {
		t.Errorf("dial with another protocol = %v, want %T", err, alert)
	}
}

// TestQUICListenerEnds: what waits in Accept, or in its handshake, ends, and what was accepted.
func TestQUICListenerEnds(t *testing.T) {
	cloud := newQUICCloud(t, letAll(AcceptOptions{Limits: patient}))
	_, far := cloud.pair(cloud.options(cloud.addr, Features{}))
	got := make(chan error, 1)
	go func() {
		_, _, _, err := cloud.l.Accept(context.Background())
		got <- err
	}()
	if err := cloud.l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-got; err == nil {
		t.Error("Accept after the end = nil, want an error")
	}
	_, ended := reading(far)
	wait.Receive(t, "the end of a connection", ended)
	if _, err := ListenQUIC("256.0.0.1:0", &tls.Config{}, patient, shares.NewMemory(), nil); err == nil ||
		!strings.Contains(err.Error(), "256.0.0.1") {
		t.Errorf("ListenQUIC = %v, want an error with 256.0.0.1", err)
	}
}

// TestQUICIdleCosts: what an idle minute of four pings costs on the wire.
func TestQUICIdleCosts(t *testing.T) {
	cloud := newQUICCloud(t, letAll(AcceptOptions{Limits: patient}))
	edge, far := cloud.pair(cloud.options(cloud.addr, Features{}))
	_, _ = reading(edge)
	_, _ = reading(far)
	heard := func(after time.Time) {
		t.Helper()
		wait.True(t, "a pong", func() bool { return edge.Stats().LastReceived.After(after) })
	}
	if err := edge.Ping(); err != nil {
		t.Fatal(err)
	}
	heard(time.Now().Add(-time.Hour))
	least := int64(math.MaxInt64)
	// The least of some rounds: with the first there is still something of the handshake, and a machine that is held up
	// sends again what has arrived.
	for range 5 {
		before := edge.Stats()
		for range 4 {
			now := time.Now()
			if err := edge.Ping(); err != nil {
				t.Fatal(err)
			}
			heard(now)
			time.Sleep(30 * time.Millisecond) // the acknowledgement of the pong goes alone
		}
		after := edge.Stats()
		least = min(least, after.BytesSent+after.BytesReceived-before.BytesSent-before.BytesReceived)
	}
	if least == 0 || least > 700 {
		t.Errorf("4 pings cost %d bytes, want at most 700", least)
	}
	t.Logf("4 pings cost %d bytes", least)
}

// TestQUICWindows: the window of a connection has room for all streams' windows even if a quarter of it was read and
// not extended yet, and a node has at most 32 MiB on its way to cloudcore.
func TestQUICWindows(t *testing.T) {
	c := quicConfig(Limits{}, 2, streamWindow)
	streams := (StreamsMax + 2) * c.MaxStreamReceiveWindow
	for _, window := range []uint64{c.InitialConnectionReceiveWindow, c.MaxConnectionReceiveWindow} {
		if window*3/4 < streams {
			t.Errorf("three quarters of the window of %d bytes are less than %d, all streams' windows", window, streams)
		}
		if window > 32<<20 {
			t.Errorf("the window of a connection is %d bytes, want at most 32 MiB", window)
		}
	}
}
