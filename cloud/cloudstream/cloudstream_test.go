package cloudstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/kubeletproxy"
	tunnelend "github.com/edgecore-io/edgecore/edgehub/tunnel"
	"github.com/edgecore-io/edgecore/pkg/edgestream"
	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// fixture is a server, and a node at the other end of its tunnels.
// from is where nodes connect from.
var from = netip.MustParseAddr("192.0.2.7")

type fixture struct {
	*Server
	t      testing.TB
	keeper *tunnelend.Keeper
	// api is the node's kubelet API.
	api *httptest.Server
	// dialer, which may be nil, replaces the fixture's own connections.
	dialer func(ctx context.Context, token string) (net.Conn, error)
	// open, which may be nil, takes requests for tunnels instead of the keeper.
	open func(tunnel.Request)

	mu sync.Mutex
	// refuse is the error of the node's dials; deaf has the node ignore requests.
	refuse error
	deaf   bool
	// others is how often a dial reaches another cloudcore first.
	others int
	// dialled is the newest tunnel's connection.
	dialled net.Conn
	failed  []string
	// reached are the addresses that the node was told.
	reached []string

	portsMu sync.Mutex
	// ports are those of the Nodes.
	ports map[string]int32
}

// hasPort sets the port that a Node has.
func (f *fixture) hasPort(node string, port int32) {
	f.portsMu.Lock()
	defer f.portsMu.Unlock()
	f.ports[node] = port
}

// start starts a server with one port for each node, and connects edge-1.
func start(t *testing.T, change func(*Options)) *fixture {
	t.Helper()
	return newFixture(t, httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, "hello from the node")
	})), change)
}

// newFixture does so with the node's kubelet API, which it closes in the end.
func newFixture(t testing.TB, api *httptest.Server, change func(*Options)) *fixture {
	t.Helper()
	f := &fixture{t: t, api: api, ports: map[string]int32{}}
	port, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Address: netip.MustParseAddr("127.0.0.1"), FirstPort: int32(port), LastPort: int32(port),
		Send: f.send,
		Previous: func(node string) int32 {
			f.portsMu.Lock()
			defer f.portsMu.Unlock()
			return f.ports[node]
		},
		Failed: func(_, why string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.failed = append(f.failed, why)
		},
	}
	if change != nil {
		change(&o)
	}
	if f.Server, err = New(o); err != nil {
		t.Fatal(err)
	}
	f.keeper = tunnelend.New(tunnelend.Options{
		Dial: f.dial, ReachedAt: func(address string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.reached = append(f.reached, address)
		},
		Backend: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", f.api.Listener.Addr().String())
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f.keeper.Run(ctx) })
	f.Connected("edge-1", from, nil)
	f.hasPort("edge-1", int32(port))
	t.Cleanup(func() {
		f.Close()
		cancel()
		running.Wait()
		f.api.CloseClientConnections()
		f.api.Close()
	})
	return f
}

// send is the link to the node.
func (f *fixture) send(_ string, m *model.Message) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, err := tunnel.ParseRequest(m)
	if err != nil {
		f.t.Error(err)
	}
	switch {
	case f.open != nil:
		go f.open(r)
	case !f.deaf:
		go f.keeper.Open(r)
	}
	return true
}

// dial is how the node connects for a tunnel.
func (f *fixture) dial(ctx context.Context, token string) (net.Conn, error) {
	if f.dialer != nil {
		return f.dialer(ctx, token)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return nil, f.refuse
	}
	if f.others > 0 {
		f.others--
		return nil, &wire.Refused{Status: http.StatusMisdirectedRequest}
	}
	if !f.Expects("edge-1", token) || f.Expects("edge-2", token) {
		f.t.Errorf("Expects of %s is wrong", token)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	f.dialled = conn
	accepted, err := l.Accept()
	if err != nil {
		return nil, err
	}
	go f.Serve(context.Background(), "edge-1", token, accepted)
	return conn, nil
}

// client returns a client without connections.
func client(t testing.TB) *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// get asks for a path of edge-1's port.
func (f *fixture) get(c *http.Client, path string) (int, string, error) {
	f.mu.Lock()
	n := f.existing("edge-1")
	f.mu.Unlock()
	resp, err := c.Get(fmt.Sprintf("https://127.0.0.1:%d%s", n.port, path))
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// want checks the answer of a request over a new connection.
func (f *fixture) want(code int, text string) {
	f.t.Helper()
	c := client(f.t)
	defer c.CloseIdleConnections()
	got, body, err := f.get(c, "/")
	if err != nil || got != code || !strings.Contains(body, text) {
		f.t.Errorf("GET = %d, %q, %v; want %d and %q", got, body, err, code, text)
	}
}

// wantUnverified checks the error of a caller that verifies certificates.
func (f *fixture) wantUnverified(text string) {
	f.t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: x509.NewCertPool()}}
	defer transport.CloseIdleConnections()
	var unknown x509.UnknownAuthorityError
	_, body, err := f.get(&http.Client{Transport: transport}, "/")
	if !errors.As(err, &unknown) || !strings.Contains(err.Error(), text) {
		f.t.Errorf("GET = %q, %v; want an unknown authority and %q", body, err, text)
	}
}

// TestKeepAlive: the kernel finds callers whose machine has vanished within a minute.
func TestKeepAlive(t *testing.T) {
	f := start(t, nil)
	port := f.existing("edge-1").port
	f.hasPort("edge-1", 0)
	f.Disconnected("edge-1") // frees the port
	l, err := f.listenOn(port)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	caller, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	option := func(level, name int) (value int) {
		var failed error
		err := raw.Control(func(fd uintptr) { value, failed = syscall.GetsockoptInt(int(fd), level, name) })
		if err = errors.Join(err, failed); err != nil {
			t.Fatal(err)
		}
		return value
	}
	if option(syscall.SOL_SOCKET, syscall.SO_KEEPALIVE) == 0 {
		t.Error("keep-alive is off, want on")
	}
	idle := option(syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE)
	interval := option(syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL)
	count := option(syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT)
	if got := idle + interval*count; got > 60 {
		t.Errorf("a vanished caller is found after %d s (%d s, then %d times %d s), want at most 60", got, idle, count,
			interval)
	}
}

// TestCallerSendsEnd: a caller that ends only its own direction (FIN) and keeps its connection ends a request whose
// answer is silent, as it does without a tunnel.
func TestCallerSendsEnd(t *testing.T) {
	f := start(t, nil)
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.existing("edge-1").port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	caller := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	if _, err := io.WriteString(caller, "GET /slow HTTP/1.1\r\nHost: node\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, streams, _ := f.count(); streams != 1 || f.keeper.State().Streams != 1 {
		t.Errorf("%d and %d streams during the request, want 1", streams, f.keeper.State().Streams)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	wait.True(t, "the stream to end at both ends", func() bool {
		_, streams, _ := f.count()
		return streams == 0 && f.keeper.State().Streams == 0
	})
}

// TestCarries: callers reach the node's kubelet API, all through one tunnel, which is closed when it is idle.
func TestCarries(t *testing.T) {
	const idle = 50 * time.Millisecond
	f := start(t, func(o *Options) { o.Idle = idle })
	if tunnels, _, _ := f.count(); tunnels != 0 {
		t.Errorf("%d tunnels before the first request, want 0", tunnels)
	}
	f.mu.Lock()
	f.others = 3 // the node reaches another cloudcore first
	f.mu.Unlock()
	busy := client(t)
	resp, err := busy.Get(fmt.Sprintf("https://127.0.0.1:%d/", f.existing("edge-1").port))
	if err != nil {
		t.Fatal(err)
	}
	// Only a body that was read to its end leaves the connection open, and with it the tunnel.
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if _, streams, _ := f.count(); streams != 1 {
		t.Fatalf("%d streams after the first request, want 1, which is kept", streams)
	}
	time.Sleep(4 * idle) // a tunnel with no stream would be closed
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() { f.want(http.StatusOK, "hello from the node") })
	}
	callers.Wait()
	if s := f.keeper.State(); s.Opened != 1 || s.Carried != 21 {
		t.Errorf("the node's state is %+v, want 1 tunnel and 21 streams", s)
	}
	if cert := resp.TLS.PeerCertificates[0]; !cert.Equal(f.api.Certificate()) {
		t.Errorf("the certificate is %s's, want the node's", cert.Subject)
	}
	busy.CloseIdleConnections()
	wait.True(t, "the idle tunnel to be closed at both ends", func() bool {
		tunnels, streams, _ := f.count()
		return tunnels == 0 && streams == 0 && f.keeper.State().Tunnels == 0
	})
	f.want(http.StatusOK, "hello from the node")
}

// TestRefused: callers are told why they do not reach a node.
func TestRefused(t *testing.T) {
	f := start(t, func(o *Options) { o.Streams = 1 })
	f.mu.Lock()
	f.refuse = errors.New("no route")
	f.deaf = true
	f.mu.Unlock()
	asking := make(chan struct{})
	go func() {
		defer close(asking)
		f.want(refusedStatus, "no tunnel to node edge-1: the node's connection ended")
	}()
	wait.True(t, "the request for a tunnel", func() bool {
		n := f.existing("edge-1")
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.asked != nil
	})
	f.want(refusedStatus, "1 connections through its tunnel, which is the limit")
	f.Disconnected("edge-1")
	wait.Closed(t, "the answer", asking)
	f.want(refusedStatus, "node edge-1 is offline since 2")
	f.wantUnverified("node edge-1 is offline since 2")
	f.mu.Lock()
	if len(f.failed) != 1 {
		t.Errorf("failures are %q, want one", f.failed)
	}
	f.refuse, f.deaf = nil, false
	f.mu.Unlock()
	f.Connected("edge-1", from, nil)
	f.want(http.StatusOK, "hello from the node")
	f.Disconnected("edge-1")
	wait.True(t, "the stream to end", func() bool {
		_, streams, _ := f.count()
		return streams == 0
	})
	f.Connected("edge-1", from, nil)
	f.want(http.StatusOK, "hello from the node")
}

// TestSessionEnds: a tunnel ends with the session of its node, and with it what it carries.
func TestSessionEnds(t *testing.T) {
	f := start(t, nil)
	ended := make(chan error, 1)
	go func() {
		_, _, err := f.get(client(t), "/slow")
		ended <- err
	}()
	wait.True(t, "the stream", func() bool { return f.keeper.State().Streams == 1 })
	f.Disconnected("edge-1")
	if err := wait.Receive(t, "the request to end", ended); err == nil {
		t.Error("the request succeeded, want an error")
	}
	wait.True(t, "the node to notice", func() bool { return f.keeper.State().Streams == 0 })
}

// TestPorts: a node keeps its port while it is offline and its Node has it, and gets the one that it had before.
func TestPorts(t *testing.T) {
	f := start(t, nil)
	address, port, ok := f.Endpoint("edge-1", nil)
	if address != "127.0.0.1" || !ok || !f.Port(port) || f.Port(port+1) || f.Port(port-1) {
		t.Errorf("Endpoint = %s, %d, %v; want the only port at 127.0.0.1", address, port, ok)
	}
	f.Connected("edge-2", from, nil)
	if _, _, ok := f.Endpoint("edge-2", nil); ok {
		t.Error("a second node has a port, want none: the only one is in use")
	}
	f.mu.Lock()
	if len(f.failed) != 1 || !strings.Contains(f.failed[0], "node edge-2 gets no port") {
		t.Errorf("failures are %q, want one that says why", f.failed)
	}
	f.mu.Unlock()
	f.Disconnected("edge-2")
	f.hasPort("edge-1", port)
	f.Disconnected("edge-1")
	f.NodeChanged("edge-1")
	if _, _, ok := f.Endpoint("edge-1", nil); ok || f.existing("edge-1") == nil {
		t.Error("a node that is offline has an endpoint or no port, want the port alone")
	}
	f.Connected("edge-1", from, nil)
	f.hasPort("edge-1", 0) // the Node is deleted
	f.NodeChanged("edge-1")
	f.want(http.StatusOK, "hello from the node") // as long as it is connected
	f.Disconnected("edge-1")
	if f.existing("edge-1") != nil {
		t.Error("a node that was deleted has a port after its connection has ended, want none")
	}
	f.hasPort("edge-2", port)
	f.Restore("edge-3", time.Time{}) // had none
	f.hasPort("edge-3", port+1)
	f.Restore("edge-3", time.Time{}) // had one outside the range
	f.Restore("edge-2", time.Date(2026, 11, 25, 15, 22, 22, 0, time.UTC))
	if n := f.existing("edge-2"); n == nil || n.port != port || f.existing("edge-3") != nil {
		t.Errorf("edge-2 is %+v, want port %d, and edge-3 without one", n, port)
	}
	if err := f.existing("edge-2").countConn(netip.Prefix{}); err == nil ||
		!strings.Contains(err.Error(), "is offline since 2026-11-25T15:22:22Z") {
		t.Errorf("callers of edge-2 are told %v, want since when it is offline", err)
	}
	f.Connected("edge-2", from, nil)
	if _, got, ok := f.Endpoint("edge-2", nil); !ok || got != port {
		t.Errorf("Endpoint = %d, %v; want %d", got, ok, port)
	}
}

// TestAdopt: a node of a cloudcore that is gone gets a port, which stays only if its Node has it.
func TestAdopt(t *testing.T) {
	f := start(t, nil)
	_, port, _ := f.Endpoint("edge-1", nil)
	if _, got, err := f.Adopt("edge-2", port, time.Time{}); err == nil {
		t.Errorf("Adopt = %d without a free port, want an error", got)
	}
	f.hasPort("edge-1", 0)
	f.Disconnected("edge-1")
	since := time.Date(2026, 11, 25, 15, 22, 22, 0, time.UTC)
	address, got, err := f.Adopt("edge-1", port, since)
	if address != "127.0.0.1" || got != port || err != nil {
		t.Errorf("Adopt = %s, %d, %v; want the only port at 127.0.0.1", address, got, err)
	}
	f.want(refusedStatus, "node edge-1 is offline since 2026-11-25T15:22:22Z")
	f.NodeChanged("edge-1")
	if f.existing("edge-1") != nil {
		t.Error("the port stays open although the Node has another one, want it closed")
	}
	if _, _, err := f.Adopt("edge-1", port, since); err != nil {
		t.Error(err)
	}
	f.hasPort("edge-1", port)
	f.NodeChanged("edge-1")
	f.want(refusedStatus, "node edge-1 is offline since 2026-11-25T15:22:22Z")
}

// TestAdoptFew: Adopt leaves a tenth of the ports to nodes that connect, and tries few ports at a time where other
// programs have them.
func TestAdoptFew(t *testing.T) {
	first, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	const ports = 20
	s, err := New(Options{
		Address:   netip.AddrFrom4([4]byte{127, byte(rand.N(255)), byte(rand.N(255)), 2}), // nobody else listens there
		FirstPort: int32(first), LastPort: int32(first + ports - 1),
		Send: func(string, *model.Message) bool { return false },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var others []net.Listener
	for port := range adoptTries + 1 {
		l, err := s.listenOn(int32(first + port))
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, l)
	}
	adopt := func(i int) error {
		_, _, err := s.Adopt(fmt.Sprintf("offline-%d", i), int32(first), time.Time{})
		return err
	}
	if err := adopt(0); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Adopt = %v where the first %d ports are in use, want an error that says so", err, len(others))
	}
	if err := adopt(0); err != nil {
		t.Errorf("Adopt = %v when it is called again, want it to try the next ports", err)
	}
	for _, l := range others {
		_ = l.Close()
	}
	for i := range 18 {
		if err := adopt(i); err != nil {
			t.Errorf("Adopt of node %d: %v, want no error", i, err)
		}
	}
	if err := adopt(18); err == nil || !strings.HasPrefix(err.Error(), "2 of the ports from ") {
		t.Errorf("Adopt = %v with 2 of 20 ports free, want an error that says so", err)
	}
	if err := adopt(0); err != nil {
		t.Errorf("Adopt = %v of a node that has a port, want no error", err)
	}
	for _, name := range []string{"online-0", "online-1"} {
		s.Connected(name, from, nil)
		if _, _, ok := s.Endpoint(name, nil); !ok {
			t.Errorf("%s has connected and has no port, want one of those that were kept", name)
		}
	}
}

// TestWaiting: nodes that got no port wait for one, in order, as long as they are connected; one that was deleted makes
// room for the first.
func TestWaiting(t *testing.T) {
	opened := make(chan string, 10)
	f := start(t, func(o *Options) { o.Opened = func(node string) { opened <- node } })
	_, port, _ := f.Endpoint("edge-1", nil)
	for _, name := range []string{"edge-2", "edge-3", "edge-3", "edge-4"} {
		f.Connected(name, from, nil)
	}
	f.mu.Lock()
	want := fmt.Sprintf("node edge-2 gets no port for kubectl logs, exec and the like: no port from %d to %d is free: "+
		"1 nodes have them; enlarge the range", port, port)
	if len(f.failed) != 4 || !strings.HasPrefix(f.failed[0], want) {
		t.Errorf("failures are %q, want four, and the first %q", f.failed, want)
	}
	f.mu.Unlock()
	f.Disconnected("edge-2")
	f.Disconnected("edge-1")
	f.NodeChanged("edge-1")
	if _, _, ok := f.Endpoint("edge-3", nil); ok || f.existing("edge-1") == nil {
		t.Error("a waiting node has the port of one that is offline, want it with its node")
	}
	f.hasPort("edge-1", 0) // the Node is deleted
	f.NodeChanged("edge-1")
	if got := wait.Receive(t, "a node to get the port", opened); got != "edge-3" {
		t.Errorf("%s got the port, want edge-3, which has waited longest", got)
	}
	if _, got, ok := f.Endpoint("edge-3", nil); !ok || got != port {
		t.Errorf("Endpoint of edge-3 = %d, %v, want %d", got, ok, port)
	}
	f.Disconnected("edge-3") // the older of its two sessions
	if _, _, ok := f.Endpoint("edge-3", nil); !ok {
		t.Error("edge-3 has no port while it is connected, want one")
	}
	f.Disconnected("edge-3")
	if got := wait.Receive(t, "a node to get the port", opened); got != "edge-4" {
		t.Errorf("%s got the port, want edge-4: the Node edge-3 does not have it", got)
	}
	if len(f.waiting) > 0 {
		t.Errorf("%v wait, want none", f.waiting)
	}
}

// TestDirect: a node that connects from an address of its own keeps it, if the administrator wants that.
func TestDirect(t *testing.T) {
	elsewhere := netip.MustParseAddr("192.0.2.8")
	for name, tc := range map[string]struct {
		direct bool
		own    []netip.Addr
		want   bool
	}{
		"behind NAT":      {true, []netip.Addr{elsewhere}, true},
		"from its own":    {true, []netip.Addr{elsewhere, from}, false},
		"nothing known":   {true, nil, true},
		"tunnel wherever": {false, []netip.Addr{from}, true},
	} {
		f := start(t, func(o *Options) { o.Direct = tc.direct })
		if _, _, ok := f.Endpoint("edge-1", tc.own); ok != tc.want {
			t.Errorf("%s: it has an endpoint: %v, want %v", name, ok, tc.want)
		}
	}
}

// TestLimitOfBytes: with a limit the same bytes arrive.
func TestLimitOfBytes(t *testing.T) {
	f := start(t, func(o *Options) { o.BytesPerSecond = 1 << 20 })
	f.want(http.StatusOK, "hello from the node")
}

// clientHello returns the first message of a TLS handshake.
func clientHello(t *testing.T) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() { _ = tls.Client(client, &tls.Config{InsecureSkipVerify: true}).Handshake() }() // until server is closed
	head := make([]byte, 5)
	if _, err := io.ReadFull(server, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(server, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// dialFrom connects to edge-1's port from a source, and sends something.
func (f *fixture) dialFrom(ip string, sends []byte) net.Conn {
	f.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	c, err := d.DialContext(f.t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", f.existing("edge-1").port))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = c.Close() })
	_, _ = c.Write(sends) // fails if it was closed
	return c
}

// TestMetrics: bytes are counted while their connection is open, and the names are those of OpenMetrics: no counter has
// the name of another metric and _total.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	f := start(t, func(o *Options) { o.Registry = registry })
	resp, err := client(t).Get(fmt.Sprintf("https://127.0.0.1:%d/", f.existing("edge-1").port))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() // until then its connection is kept: a client closes it if it has not read the whole body
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values, names := map[string]float64{}, map[string]bool{}
	for _, family := range families {
		names[family.GetName()] = true
		for _, m := range family.GetMetric() {
			key := family.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			values[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for name := range names {
		if plain, counter := strings.CutSuffix(name, "_total"); counter && names[plain] {
			t.Errorf("there are metrics %s and %s, which OpenMetrics takes for one", name, plain)
		}
	}
	if values["cloudcore_tunnel_streams"] != 1 || values["cloudcore_tunnel_connections_total"] != 1 {
		t.Errorf("metrics are %v, want one open connection", values)
	}
	for _, direction := range []string{"to_node", "from_node"} {
		if n := values["cloudcore_tunnel_bytes_total "+direction]; n < 200 { // a handshake of TLS alone has more
			t.Errorf("%v bytes %s are counted while the connection is open, want all", n, direction)
		}
	}
}

// TestSilentCallers: connections that say nothing, or not all of a ClientHello, open no tunnel and count for no node.
// Callers that say something come in beside them.
func TestSilentCallers(t *testing.T) {
	for _, sources := range []int{1, 8} {
		t.Run(fmt.Sprintf("from %d addresses", sources), func(t *testing.T) { silentCallers(t, sources) })
	}
}

func silentCallers(t *testing.T, sources int) {
	f := start(t, nil)
	hello := clientHello(t)
	const silent = callersMax + 100
	var closed sync.WaitGroup
	for i := range silent {
		c := f.dialFrom(fmt.Sprintf("127.0.1.%d", 1+i%sources), hello[:i%len(hello)])
		closed.Go(func() { _, _ = io.Copy(io.Discard, c) })
	}
	wait.True(t, "the silent connections to have places", func() bool {
		all, _ := f.callers.Counts()
		return all == callersMax
	})
	if tunnels, streams, _ := f.count(); tunnels != 0 || streams != 0 {
		t.Errorf("%d tunnels and %d streams for connections that say nothing, want none", tunnels, streams)
	}
	f.want(http.StatusOK, "hello from the node")
	if s := f.keeper.State(); s.Carried != 1 {
		t.Errorf("the node has carried %d connections, want the one that began TLS", s.Carried)
	}
	f.Close()
	closed.Wait()
}

// TestShareOfACaller: one source gets no more than its share of a node's connections, and is told so; others come in.
func TestShareOfACaller(t *testing.T) {
	f := start(t, func(o *Options) { o.Streams = 8 })
	hello := clientHello(t)
	streams := func(n int) {
		t.Helper()
		wait.True(t, fmt.Sprintf("%d streams", n), func() bool {
			_, streams, _ := f.count()
			return streams == n
		})
	}
	for range 6 {
		f.dialFrom("127.0.0.1", hello)
	}
	streams(6)
	f.want(refusedStatus, "127.0.0.1 has 6 of the 8 connections that node edge-1 may have through its tunnel")
	f.dialFrom("127.0.0.2", hello)
	streams(7)
}

// stuckConn is a node's connection whose Close waits for the node until it is released. Nothing comes over it.
type stuckConn struct {
	net.Conn
	closing, released chan struct{}
	close, release    func()
}

func newStuckConn(t *testing.T) *stuckConn {
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, far) }() // until near is closed
	c := &stuckConn{Conn: near, closing: make(chan struct{}), released: make(chan struct{})}
	c.close, c.release = sync.OnceFunc(func() { close(c.closing) }), sync.OnceFunc(func() { close(c.released) })
	t.Cleanup(func() {
		c.release()
		_ = near.Close()
	})
	return c
}

func (c *stuckConn) Close() error {
	c.close()
	<-c.released
	return c.Conn.Close()
}

// stuckWriter answers a request on a stuckConn.
type stuckWriter struct {
	http.ResponseWriter
	conn *stuckConn
}

func (w stuckWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return w.conn, bufio.NewReadWriter(bufio.NewReader(w.conn), bufio.NewWriter(w.conn)), nil
}

// streamTunnel serves a stream tunnel of a node of KubeEdge's over a connection, and returns what is closed when it has
// ended.
func (f *fixture) streamTunnel(c *stuckConn) <-chan struct{} {
	f.t.Helper()
	r := httptest.NewRequest(http.MethodGet, edgestream.Path, nil)
	for key, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-Websocket-Version": "13",
		"Sec-Websocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	} {
		r.Header.Set(key, value)
	}
	conn, err := edgestream.Accept(stuckWriter{httptest.NewRecorder(), c}, r)
	if err != nil {
		f.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.ServeStream(context.Background(), "edge-1", conn)
	}()
	return ended
}

// TestCloseHoldsNoLock: while the tunnel of a node that does not read is being closed, other nodes are served.
func TestCloseHoldsNoLock(t *testing.T) {
	f := start(t, func(o *Options) { o.Guard = func(string) kubeletproxy.Guard { return nil } })
	free := func(when string) {
		t.Helper()
		wait.True(t, "the server to be free "+when, func() bool {
			locked := f.Server.mu.TryLock()
			if locked {
				f.Server.mu.Unlock()
			}
			return locked
		})
	}
	serves := func() bool { return f.existing("edge-1").proxy() != nil }
	older, newer := newStuckConn(t), newStuckConn(t)
	olderEnded := f.streamTunnel(older)
	wait.True(t, "the tunnel to be served", serves)
	newerEnded := f.streamTunnel(newer)
	<-older.closing
	free("while a newer tunnel replaces one")
	older.release()
	<-olderEnded
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		f.Close()
	}()
	<-newer.closing
	free("while it closes all tunnels")
	newer.release()
	<-newerEnded
	<-closed
}

// TestThousandCallers: callers beyond the limit are refused or closed, and hold up nobody: as soon as a connection
// ends, another one is carried. The callers have several addresses, or all have one, as kube-apiserver does.
func TestThousandCallers(t *testing.T) {
	const limit = 100
	for name, tc := range map[string]struct {
		sources, carried int
	}{
		"from four addresses": {4, limit},
		"from one address":    {1, limit - limit/callerRest},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, func(o *Options) { o.Streams = limit })
			hello := clientHello(t)
			var held []net.Conn
			for i := range 1000 {
				held = append(held, f.dialFrom(fmt.Sprintf("127.0.0.%d", 1+i%tc.sources), hello))
			}
			wait.True(t, "the limit to be reached", func() bool {
				tunnels, streams, _ := f.count()
				return tunnels == 1 && streams == tc.carried && f.keeper.State().Streams == tc.carried
			})
			for _, c := range held { // whichever of them are carried
				_ = c.Close()
			}
			wait.Until(t, "another caller to be carried", func() error {
				c := client(t)
				defer c.CloseIdleConnections()
				code, body, err := f.get(c, "/")
				if err == nil && code != http.StatusOK {
					err = fmt.Errorf("status %d: %s", code, body)
				}
				return err
			})
			if n := f.keeper.State().Opened; n != 1 {
				t.Errorf("%d tunnels opened, want 1", n)
			}
		})
	}
}

// TestBurstOfOneCaller: many connections of one address that come before any of them begins TLS are all carried while
// no other address wants their places.
func TestBurstOfOneCaller(t *testing.T) {
	const burst = 500
	f := start(t, func(o *Options) { o.Streams = 2 * burst })
	var held []net.Conn
	for range burst {
		held = append(held, f.dialFrom("127.0.0.1", nil))
	}
	wait.Until(t, "all connections to have places", func() error {
		if all, silent := f.callers.Counts(); all != burst || silent != burst {
			return fmt.Errorf("%d have one, %d of them without a ClientHello", all, silent)
		}
		return nil
	})
	hello := clientHello(t)
	for _, c := range held {
		if _, err := c.Write(hello); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, "all connections to be carried", func() error {
		if _, streams, _ := f.count(); streams != burst {
			return fmt.Errorf("%d of %d are", streams, burst)
		}
		return nil
	})
}
