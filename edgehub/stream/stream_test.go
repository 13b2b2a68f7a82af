package stream

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	tunnelend "github.com/edgecore-io/edgecore/edgehub/tunnel"
	"github.com/edgecore-io/edgecore/pkg/edgestream"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// cloud is the cloud's end of the tunnel.
type cloud struct {
	t      *testing.T
	client *Client
	server *httptest.Server
	conns  chan *edgestream.Conn
	conn   *edgestream.Conn
}

// start connects a client, whose kubelet API is a handler, to a cloud.
func start(t *testing.T, api http.HandlerFunc) *cloud {
	t.Helper()
	c := &cloud{t: t, conns: make(chan *edgestream.Conn, 4)}
	c.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(edgestream.HeaderNode) != "edge-1" || r.Header.Get(edgestream.HeaderIP) != "192.0.2.7" {
			t.Errorf("the header is %v, want the node's name and address", r.Header)
		}
		conn, err := edgestream.Accept(w, r)
		if err != nil {
			t.Error(err)
			return
		}
		c.conns <- conn
	}))
	kubelet := httptest.NewServer(api)
	c.client = New(Options{
		Dial: func(ctx context.Context) (*edgestream.Conn, error) {
			return edgestream.Dial(ctx, edgestream.DialOptions{
				Server: c.server.Listener.Addr().String(), Node: "edge-1", IP: "192.0.2.7",
				TLS: c.server.Client().Transport.(*http.Transport).TLSClientConfig,
			})
		},
		API: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", kubelet.Listener.Addr().String())
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.client.Run(ctx) })
	c.conn = <-c.conns
	t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = c.conn.Close()
		kubelet.CloseClientConnections()
		kubelet.Close()
		c.server.Close()
	})
	return c
}

func (c *cloud) send(kind edgestream.Kind, id uint64, data string) {
	c.t.Helper()
	if err := c.conn.Write(edgestream.Message{ID: id, Kind: kind, Data: []byte(data)}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cloud) connect(kind edgestream.Kind, id uint64, path string, header http.Header) {
	c.t.Helper()
	text, err := json.Marshal(edgestream.Connect{ID: id, URL: edgestream.URL{Path: path}, Header: header})
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(kind, id, string(text))
}

// read returns what comes for a connection until it ends.
func (c *cloud) read(id uint64) string {
	c.t.Helper()
	var got strings.Builder
	for {
		m, err := c.conn.Read()
		if err != nil {
			c.t.Fatal(err)
		}
		switch {
		case m.ID != id:
			c.t.Errorf("a message is about connection %d, want %d", m.ID, id)
		case m.Kind == edgestream.Remove:
			return got.String()
		default:
			got.Write(m.Data)
		}
	}
}

// echo is a kubelet API that upgrades /exec to a connection that returns what it gets, until "bye".
func echo(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, "/exec") {
		fmt.Fprintf(w, "%s %s as %s", r.Method, r.URL.Path, r.Header.Get("Accept-Encoding"))
		return
	}
	conn, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
	for {
		line, err := in.ReadString('\n')
		if err != nil || line == "bye\n" {
			return
		}
		fmt.Fprint(conn, line)
	}
}

// TestKinds: logs and metrics are answered with their body, exec and attach with the bytes of their connection.
func TestKinds(t *testing.T) {
	c := start(t, echo)
	for id, kind := range []edgestream.Kind{edgestream.Logs, edgestream.Metrics} {
		c.connect(kind, uint64(id), "/containerLogs/ns/pod/main", http.Header{"Accept-Encoding": {"gzip"}})
		if got := c.read(uint64(id)); got != "GET /containerLogs/ns/pod/main as identity" {
			t.Errorf("kind %d: the answer is %q, want the body", kind, got)
		}
	}
	for id, kind := range []edgestream.Kind{edgestream.Exec, edgestream.Attach} {
		c.connect(kind, uint64(id), "/exec/ns/pod/main",
			http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}})
		c.send(edgestream.Data, uint64(id), "hello\nbye\n")
		if got := c.read(uint64(id)); got != "HTTP/1.1 101 Switching Protocols\r\n\r\nhello\n" {
			t.Errorf("kind %d: the answer is %q, want the connection's bytes", kind, got)
		}
	}
	s := c.client.State()
	if s.BytesIn < int64(2*len("hello\nbye\n")) || s.BytesOut < int64(2*len("hello\n")) {
		t.Errorf("state %+v, want the bytes that came and went", s)
	}
	s.BytesIn, s.BytesOut = 0, 0
	if diff := cmp.Diff(tunnelend.State{Tunnels: 1, Opened: 1, Carried: 4}, s); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
}

// TestNotOpened: the state says why there is no tunnel, and no longer once none is wanted.
func TestNotOpened(t *testing.T) {
	c := New(Options{Dial: func(context.Context) (*edgestream.Conn, error) { return nil, errors.New("no route") }})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	wait.True(t, "the failure", func() bool {
		s := c.State()
		return s.Failed == 1 && s.Reason == "stream tunnel to KubeEdge's cloudcore: no route" && s.Tunnels == 0
	})
	cancel()
	running.Wait()
	if s := c.State(); s.Failed != 1 || s.Reason != "" {
		t.Errorf("state %+v without a link, want one failure and no reason", s)
	}
}

// TestRemove: the cloud ends a connection, and the request to the kubelet API with it.
func TestRemove(t *testing.T) {
	ended := make(chan struct{}, 2)
	c := start(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		ended <- struct{}{}
	})
	for id, kind := range []edgestream.Kind{edgestream.Logs, edgestream.Exec} {
		c.connect(kind, uint64(id), "/containerLogs/ns/pod/main", nil)
		if m, err := c.conn.Read(); err != nil || m.Kind != edgestream.Data {
			t.Fatalf("read %+v, %v, want the first bytes", m, err)
		}
		if s := c.client.State(); s.Streams != 1 {
			t.Errorf("state %+v, want one connection", s)
		}
		c.send(edgestream.Remove, uint64(id), "")
		<-ended
		wait.True(t, "the connection to be gone", func() bool { return c.client.State().Streams == 0 })
	}
}

// TestBadRequests: what cannot be a request is dropped, and the tunnel goes on.
func TestBadRequests(t *testing.T) {
	c := start(t, echo)
	c.send(edgestream.Exec, 1, "{")
	if got := c.read(1); got != "" {
		t.Errorf("the answer to nonsense is %q, want the end", got)
	}
	c.send(edgestream.Exec, 2, `{"method":"a b"}`)
	if got := c.read(2); got != "" {
		t.Errorf("the answer to an impossible method is %q, want the end", got)
	}
	c.send(edgestream.Data, 99, "for nobody")
	c.send(edgestream.Kind(77), 99, "of no kind")
	c.connect(edgestream.Logs, 3, "/logs", nil)
	if got := c.read(3); !strings.HasPrefix(got, "GET /logs") {
		t.Errorf("the answer is %q, want the body", got)
	}
}

// TestLimit: connections beyond the limit are ended at once.
func TestLimit(t *testing.T) {
	c := start(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for id := range uint64(connectionsMax) {
		c.connect(edgestream.Logs, id, "/logs", nil)
	}
	c.connect(edgestream.Logs, connectionsMax, "/logs", nil)
	if got := c.read(connectionsMax); got != "" {
		t.Errorf("the answer is %q, want the end", got)
	}
}

// TestAgain: a tunnel that ends, or that the cloud closes, is opened again.
func TestAgain(t *testing.T) {
	c := start(t, echo)
	c.send(edgestream.Close, 0, "failed to update the Node")
	before := c.conn
	c.conn = <-c.conns
	if _, err := before.Read(); err == nil {
		t.Error("the first tunnel goes on, want it to end")
	}
	_ = before.Close()
	wait.True(t, "the tunnel to be open", func() bool {
		s := c.client.State()
		return s.Tunnels == 1 && s.Opened == 2 && s.Reason == ""
	})
	c.connect(edgestream.Logs, 1, "/logs", nil)
	if got := c.read(1); !strings.HasPrefix(got, "GET /logs") {
		t.Errorf("the answer is %q, want the body", got)
	}
}

// TestBigAnswer: an answer arrives whole.
func TestBigAnswer(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 1<<17) // 2 MiB
	c := start(t, func(w http.ResponseWriter, _ *http.Request) {
		out := bufio.NewWriter(w)
		defer out.Flush()
		_, _ = out.WriteString(big)
	})
	c.connect(edgestream.Logs, 1, "/logs", nil)
	if got := c.read(1); got != big {
		t.Errorf("%d bytes came, want %d", len(got), len(big))
	}
}
