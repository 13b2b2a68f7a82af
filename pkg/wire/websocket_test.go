package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// patient are limits that no test reaches, however long the machine holds it up.
var patient = Limits{MaxMessage: 1 << 20, ReadTimeout: time.Minute, WriteTimeout: time.Minute}

// cloud is a server that accepts WebSockets.
type cloud struct {
	addr  string
	ca    *wiretest.CA
	conns chan Conn
}

// serve runs a server over TLS with a handler.
func serve(t testing.TB, ca *wiretest.CA, h http.Handler) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	_ = s.Listener.Close()
	s.Listener, s.TLS = CountBytes(l), ca.ServerTLS(t)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return l.Addr().String()
}

func newCloud(t testing.TB, o AcceptOptions) *cloud {
	t.Helper()
	c := &cloud{ca: wiretest.NewCA(t), conns: make(chan Conn, 10)}
	c.addr = serve(t, c.ca, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := AcceptWebSocket(w, r, o)
		if err != nil {
			t.Errorf("accept: %v", err)
			return
		}
		c.conns <- conn
	}))
	return c
}

// newMemoryCloud is a cloud in memory behind a proxy, for a test on a simulated clock.
func newMemoryCloud(t *testing.T, o AcceptOptions) (*cloud, *wiretest.Proxy) {
	t.Helper()
	c := &cloud{ca: wiretest.NewCA(t), conns: make(chan Conn, 10)}
	l := wiretest.NewMemory(t)
	c.addr = l.Addr().String()
	s := &http.Server{TLSConfig: c.ca.ServerTLS(t), ErrorLog: log.New(io.Discard, "", 0)}
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := AcceptWebSocket(w, r, o)
		if err != nil {
			t.Errorf("accept: %v", err)
			return
		}
		c.conns <- conn
	})
	go func() { _ = s.ServeTLS(CountBytes(l), "", "") }()
	t.Cleanup(func() { _ = s.Close() })
	return c, wiretest.NewMemoryProxy(t, l)
}

func (c *cloud) options(t testing.TB, addr string, o DialOptions) DialOptions {
	o.URL, o.TLS = "wss://"+addr+"/project/edge-1/events", c.ca.ClientTLS(t, "edge-1")
	if o.Limits == (Limits{}) {
		o.Limits = patient
	}
	return o
}

// pair is both ends of a link, over an address.
func (c *cloud) pair(t testing.TB, addr string, o DialOptions) (edge, far Conn) {
	t.Helper()
	edge, err := DialWebSocket(t.Context(), c.options(t, addr, o))
	if err != nil {
		t.Fatal(err)
	}
	far = <-c.conns
	t.Cleanup(func() {
		_ = edge.Close(CloseNormal, "")
		_ = far.Close(CloseNormal, "")
	})
	return edge, far
}

func message(size int) *model.Message {
	content, _ := json.Marshal(strings.Repeat("0123456789abcdef", size/16))
	return model.New("edged", model.GroupMeta, model.OpPatch, "default/podpatch/a", content)
}

// reading reads a Conn to its end, from which it returns the error.
func reading(c Conn) (got <-chan *model.Message, end <-chan error) {
	messages, ended := make(chan *model.Message, 1000), make(chan error, 1)
	go func() {
		for {
			m, err := c.Read()
			if err != nil {
				ended <- err
				return
			}
			messages <- m
		}
	}()
	return messages, ended
}

func TestFeatures(t *testing.T) {
	all := AllFeatures()
	for _, c := range []struct{ edge, cloud, want Features }{
		{all, all, all},
		{all, Features{}, Features{}},
		{Features{}, all, Features{}},
		{Features{Lease: true}, Features{Lease: true, Inventory: true}, Features{Lease: true}},
		{all, Features{Inventory: true, Lease: true}, Features{Inventory: true, Lease: true}},
	} {
		cloud := newCloud(t, AcceptOptions{Limits: patient, Features: c.cloud})
		edge, far := cloud.pair(t, cloud.addr, DialOptions{Features: c.edge})
		if edge.Features() != c.want || far.Features() != c.want {
			t.Errorf("%v and %v: agreed on %v and %v, want %v", c.edge, c.cloud, edge.Features(), far.Features(),
				c.want)
		}
	}
	for header, want := range map[string]Features{
		"":                          {},
		"lease":                     {Lease: true},
		" Deflate , INVENTORY,warp": {Deflate: true, Inventory: true},
	} {
		if got := ParseFeatures(http.Header{HeaderFeatures: {header}}); got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
}

// TestMessagesBothWays: in order, of all sizes, from many writers, with and without compression.
func TestMessagesBothWays(t *testing.T) {
	for _, f := range []Features{{}, {Deflate: true}} {
		t.Run(f.String(), func(t *testing.T) {
			cloud := newCloud(t, AcceptOptions{Limits: patient, Features: f})
			edge, far := cloud.pair(t, cloud.addr, DialOptions{Features: f})
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
						t.Errorf("writer %d: message %d of %d bytes, want message %d", w, i, len(m.ContentData()),
							next[w])
					}
					next[w]++
				}
			}
			wg.Wait()
			checkStats(t, f, edge.Stats(), far)
		})
	}
}

func checkStats(t *testing.T, f Features, near Stats, c Conn) {
	t.Helper()
	const payload = 4 * (7 * 8 / 2) * 5000
	far := c.Stats()
	if near.MessagesSent != 32 || near.MessagesReceived != 32 || far.MessagesReceived != 32 {
		t.Errorf("messages: %+v, %+v; want 32 each way", near, far)
	}
	if f.Deflate && near.BytesSent > payload/4 ||
		!f.Deflate && (near.BytesSent < payload || near.BytesSent > payload*11/10) {
		t.Errorf("%d bytes sent for a payload of %d, want a fourth at most with deflate (%v), else up to 110 %%",
			near.BytesSent, payload, f.Deflate)
	}
	if near.LastReceived.IsZero() {
		t.Errorf("last heard at %v, want a time", near.LastReceived)
	}
	if c.Protocol() != ProtocolWebSocket || c.RemoteAddr() == nil {
		t.Errorf("protocol %s, address %v; want %s and an address", c.Protocol(), c.RemoteAddr(), ProtocolWebSocket)
	}
}

// TestSilence: a link whose other end is gone without a word ends when ReadTimeout is over; pings and pongs keep one
// that lives.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := Limits{ReadTimeout: time.Minute}
		var pings atomic.Int64
		cloud, proxy := newMemoryCloud(t, AcceptOptions{Limits: limits, OnPing: func() { pings.Add(1) }})
		edge, far := cloud.pair(t, cloud.addr, DialOptions{Limits: limits, Dial: proxy.Dial})
		_, edgeEnd := reading(edge)
		_, farEnd := reading(far)
		for n := range int64(keptPings) {
			time.Sleep(limits.ReadTimeout * 3 / 4)
			if err := edge.Ping(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if told, counted := pings.Load(), far.Stats().Pings; told != n+1 || counted != n+1 {
				t.Errorf("told of %d pings, counted %d; want %d", told, counted, n+1)
			}
		}
		proxy.Silence()
		began := time.Now()
		silent(t, [2]<-chan error{edgeEnd, farEnd})
		if took := time.Since(began); took != limits.ReadTimeout {
			t.Errorf("the silence was noticed after %v, want %v", took, limits.ReadTimeout)
		}
	})
}

// keptPings is how many pings keep a link: for far longer than it may be silent.
const keptPings = 10

// kept makes links until pings have kept one, and returns how its ends end. A machine that is held up may let others be
// silent for too long.
func kept(t *testing.T, limits Limits, pair func() (edge, far Conn)) (ends [2]<-chan error) {
	t.Helper()
	for range 20 {
		edge, far := pair()
		_, edgeEnd := reading(edge)
		_, farEnd := reading(far)
		switch err := beat(edge, far, limits.ReadTimeout/4, edgeEnd, farEnd); {
		case err == nil:
			return [2]<-chan error{edgeEnd, farEnd}
		case !errors.Is(err, ErrSilent):
			t.Fatalf("link with pings = %v, want it kept, or %v", err, ErrSilent)
		}
	}
	t.Fatalf("20 links with pings ended with %v, want one kept", ErrSilent)
	return ends
}

// beat sends pings, and sees them come. It returns how an end ended that did.
func beat(edge, far Conn, pause time.Duration, edgeEnd, farEnd <-chan error) error {
	for n := range int64(keptPings) {
		if err := edge.Ping(); err != nil {
			return err
		}
		for next := time.Now().Add(pause); far.Stats().Pings <= n || time.Now().Before(next); {
			select {
			case err := <-edgeEnd:
				return err
			case err := <-farEnd:
				return err
			case <-time.After(time.Millisecond):
			}
		}
		if got := far.Stats().Pings; got != n+1 {
			return fmt.Errorf("%d pings counted, want %d", got, n+1)
		}
	}
	return nil
}

// silent sees both ends of a link end because nothing comes.
func silent(t *testing.T, ends [2]<-chan error) {
	t.Helper()
	for _, end := range ends {
		if err := wait.Receive(t, "an end to notice the silence", end); !errors.Is(err, ErrSilent) {
			t.Errorf("err = %v, want %v", err, ErrSilent)
		}
	}
}

// TestSlowLinkIsNotSilent: a message may take longer than the limits, if it goes on.
func TestSlowLinkIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := Limits{ReadTimeout: time.Second, WriteTimeout: time.Second}
		cloud, proxy := newMemoryCloud(t, AcceptOptions{Limits: limits})
		edge, far := cloud.pair(t, cloud.addr, DialOptions{Limits: limits, Dial: proxy.Dial})
		messages, end := reading(far)
		_, edgeEnd := reading(edge)
		proxy.LimitRate(100 << 10)
		began := time.Now()
		wrote := make(chan error, 1)
		go func() { wrote <- edge.Write(message(300 << 10)) }()
		for waiting := true; waiting; {
			select {
			case <-messages:
				waiting = false
			case err := <-end:
				t.Fatalf("the cloud's end: %v, want it to last", err)
			case err := <-edgeEnd:
				t.Fatalf("the edge's end: %v, want it to last", err)
			case <-time.After(limits.ReadTimeout / 4):
				_ = far.Ping() // for the edge, that hears nothing else
			}
		}
		if err := <-wrote; err != nil {
			t.Errorf("Write: %v", err)
		}
		if took := time.Since(began); took < 2*limits.ReadTimeout {
			t.Errorf("the message took %v, want at least %v: the link was not slow", took, 2*limits.ReadTimeout)
		}
	})
}

// TestStuckPeer: one that reads nothing ends the link when WriteTimeout is over.
func TestStuckPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud, proxy := newMemoryCloud(t, AcceptOptions{Limits: Limits{ReadTimeout: time.Hour}})
		stuck := Limits{MaxMessage: 1 << 20, ReadTimeout: time.Hour, WriteTimeout: 2 * time.Second}
		edge, _ := cloud.pair(t, cloud.addr, DialOptions{Limits: stuck, Dial: proxy.Dial})
		_, end := reading(edge)
		began := time.Now()
		var err error
		for err == nil {
			err = edge.Write(message(512 << 10))
		}
		if took := time.Since(began); took != stuck.WriteTimeout ||
			!strings.Contains(err.Error(), "took nothing for 2s") {
			t.Errorf("Write: %v after %v; want that the network took nothing for 2s", err, took)
		}
		if e := <-end; e == nil || e.Error() != err.Error() {
			t.Errorf("Read says %v, want what Write said: %v", e, err)
		}
		if again := edge.Write(message(1)); again == nil {
			t.Error("Write after the end = nil, want an error")
		}
	})
}

// TestCloseOfStuckPeer: one that reads nothing holds Close up for the second that a farewell may take, and no longer.
func TestCloseOfStuckPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := Limits{MaxMessage: 1 << 20, ReadTimeout: time.Hour, WriteTimeout: time.Hour}
		cloud, proxy := newMemoryCloud(t, AcceptOptions{Limits: limits})
		edge, _ := cloud.pair(t, cloud.addr, DialOptions{Limits: limits, Dial: proxy.Dial})
		_, end := reading(edge)
		done := make(chan error, 1)
		go func() {
			var err error
			for err == nil {
				err = edge.Write(message(512 << 10))
			}
			done <- err
		}()
		synctest.Wait() // until Write is stuck
		began := time.Now()
		_ = edge.Close(ClosePolicy, "enough")
		if took := time.Since(began); took > 2*goodbye {
			t.Errorf("Close took %v, want at most %v", took, 2*goodbye)
		}
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Errorf("Write: %v, want %v", err, ErrClosed)
		}
		if err := <-end; !errors.Is(err, ErrClosed) {
			t.Errorf("Read: %v, want %v", err, ErrClosed)
		}
	})
}

func TestCloseTellsWhy(t *testing.T) {
	cloud := newCloud(t, AcceptOptions{Limits: patient})
	long := strings.Repeat("ä", 100)
	for _, c := range []struct {
		code         int
		reason, want string
	}{
		{CloseReplaced, "another connection of this node", "another connection of this node"},
		{CloseNormal, "", ""},
		{CloseTryLater, long, long[:122]},
	} {
		edge, far := cloud.pair(t, cloud.addr, DialOptions{})
		_, edgeEnd := reading(edge)
		_, farEnd := reading(far)
		if err := errors.Join(far.Close(c.code, c.reason), far.Close(CloseInternal, "twice")); err != nil {
			t.Error(err)
		}
		if err := <-farEnd; !errors.Is(err, ErrClosed) {
			t.Errorf("this end: %v, want ErrClosed", err)
		}
		var closed *Closed
		if err := <-edgeEnd; !errors.As(err, &closed) {
			t.Errorf("other end: %v, want *Closed", err)
		} else if diff := cmp.Diff(&Closed{c.code, c.want}, closed); diff != "" {
			t.Errorf("Closed mismatch (-want +got):\n%s", diff)
		}
		if err := edge.Write(message(1)); err == nil {
			t.Error("Write to an end that closed = nil, want an error")
		}
		if _, err := edge.Read(); !errors.As(err, &closed) {
			t.Errorf("after a write: %v, want *Closed all the same", err)
		}
		if err := far.Write(message(1)); !errors.Is(err, ErrClosed) {
			t.Errorf("Write afterwards: %v, want ErrClosed", err)
		}
	}
}

// TestCutMidFrame: what came whole is delivered, what was cut is not.
func TestCutMidFrame(t *testing.T) {
	cloud := newCloud(t, AcceptOptions{Limits: patient})
	proxy := wiretest.NewProxy(t, cloud.addr)
	edge, far := cloud.pair(t, proxy.Addr(), DialOptions{})
	messages, end := reading(far)
	if err := edge.Write(message(100)); err != nil {
		t.Fatal(err)
	}
	<-messages
	proxy.CutAfter(5000)
	_ = edge.Write(message(9000))
	if err := <-end; err == nil || errors.Is(err, ErrSilent) {
		t.Errorf("err = %v, want that the connection ended", err)
	}
	if len(messages) != 0 {
		t.Errorf("%d messages delivered, want none: half of one came", len(messages))
	}
}

func TestRefused(t *testing.T) {
	ca := wiretest.NewCA(t)
	addr := serve(t, ca, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "node edge-1 is not \x1b[31mallowed\nsecond line", http.StatusUnauthorized)
	}))
	cloud := &cloud{ca: ca}
	_, err := DialWebSocket(t.Context(), cloud.options(t, addr, DialOptions{}))
	var refused *Refused
	if !errors.As(err, &refused) {
		t.Fatalf("err = %v, want *Refused", err)
	}
	if diff := cmp.Diff(&Refused{401, "node edge-1 is not  [31mallowed"}, refused); diff != "" {
		t.Errorf("Refused mismatch (-want +got):\n%s", diff)
	}
}

// TestHandshakeIsPlain: headers arrive, h2 is never offered, and nothing beyond the protocol when nothing was asked
// for.
func TestHandshakeIsPlain(t *testing.T) {
	ca := wiretest.NewCA(t)
	requests := make(chan *http.Request, 1)
	addr := serve(t, ca, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r
		http.Error(w, "", http.StatusTeapot)
	}))
	cloud := &cloud{ca: ca}
	o := cloud.options(t, addr, DialOptions{Header: http.Header{}})
	o.TLS.NextProtos = []string{"h2", "http/1.1"}
	o.Header.Set(HeaderNodeID, "edge-1")
	o.Header.Set(HeaderUse, UseMessages)
	if _, err := DialWebSocket(t.Context(), o); err == nil {
		t.Fatalf("DialWebSocket with status %d = nil, want an error", http.StatusTeapot)
	}
	r := <-requests
	if r.ProtoMajor != 1 || r.TLS.NegotiatedProtocol == "h2" || r.URL.Path != "/project/edge-1/events" {
		t.Errorf("%s over %q, path %s; want HTTP/1, not h2, /project/edge-1/events", r.Proto, r.TLS.NegotiatedProtocol,
			r.URL.Path)
	}
	if r.Header["Node_id"] == nil || r.Header["Connectionuse"] == nil {
		t.Errorf("headers %v, want %s and %s", r.Header, HeaderNodeID, HeaderUse)
	}
	for _, name := range []string{"Sec-Websocket-Extensions", "Sec-Websocket-Protocol", "Origin", HeaderFeatures} {
		if r.Header[name] != nil {
			t.Errorf("header %s = %q, want none", name, r.Header[name])
		}
	}
}

func TestHandshakeTimeout(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cloud := &cloud{ca: wiretest.NewCA(t)}
	o := cloud.options(t, l.Addr().String(), DialOptions{HandshakeTimeout: 200 * time.Millisecond})
	if _, err := DialWebSocket(t.Context(), o); !errors.Is(err, context.DeadlineExceeded) {
		if ne := net.Error(nil); !errors.As(err, &ne) || !ne.Timeout() {
			t.Errorf("err = %v, want a timeout", err)
		}
	}
}

// TestIdleLinkCosts: what an idle minute of four pings costs on the wire, both ways.
func TestIdleLinkCosts(t *testing.T) {
	cloud := newCloud(t, AcceptOptions{Limits: patient})
	edge, far := cloud.pair(t, cloud.addr, DialOptions{})
	_, _ = reading(edge)
	_, _ = reading(far)
	pong := func(after int64) {
		t.Helper()
		wait.True(t, "a pong", func() bool { return edge.Stats().BytesReceived > after })
	}
	before := edge.Stats()
	for range 4 {
		was := edge.Stats().BytesReceived
		if err := edge.Ping(); err != nil {
			t.Fatal(err)
		}
		pong(was)
	}
	after := edge.Stats()
	if cost := after.BytesSent + after.BytesReceived - before.BytesSent - before.BytesReceived; cost == 0 ||
		cost > 256 {
		t.Errorf("%d bytes, want at most 256", cost)
	}
}
