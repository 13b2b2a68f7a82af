// Package stream is the node's end of the tunnel of KubeEdge's CloudStream (package pkg/edgestream): it connects to
// KubeEdge's cloudcore, and makes the requests that come from there to the node's own kubelet API.
//
// KubeEdge's cloudcore asks nobody who they are, so what comes from it cannot be authenticated here. It promises that
// only the kubelet API is reached, and that connections and what waits for them are limited.
package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/klog/v2"

	tunnelend "github.com/edgecore-io/edgecore/edgehub/tunnel"
	"github.com/edgecore-io/edgecore/pkg/edgestream"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// connectionsMax is how many connections there are at a time.
	connectionsMax = 256
	// backoffMin and backoffMax are the delays between attempts to connect.
	backoffMin = 2 * time.Second
	backoffMax = time.Minute
	copyBuffer = 32 << 10
)

// Options configures a Client. Both functions are required.
type Options struct {
	// Dial connects to the cloud.
	Dial func(ctx context.Context) (*edgestream.Conn, error)
	// API connects to the node's kubelet API, which does not authenticate these connections.
	API func(ctx context.Context) (net.Conn, error)
}

// Client keeps the tunnel.
type Client struct {
	opts Options

	mu    sync.Mutex
	state tunnelend.State
}

// New makes a client; it does not connect yet.
func New(o Options) *Client { return &Client{opts: o} }

// State returns the state of the tunnel and its connections. Reason is "" while no tunnel is wanted.
func (c *Client) State() tunnelend.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

func (c *Client) update(f func(s *tunnelend.State)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.state)
}

// Run keeps a tunnel open until ctx ends.
func (c *Client) Run(ctx context.Context) {
	defer c.update(func(s *tunnelend.State) { s.Reason = "" })
	backoff := retry.NewBackoff(backoffMin, backoffMax)
	for ctx.Err() == nil {
		conn, err := c.opts.Dial(ctx)
		if err == nil {
			klog.InfoS("Stream tunnel to KubeEdge's cloudcore opened")
			backoff.Reset()
			c.update(func(s *tunnelend.State) { s.Tunnels++; s.Opened++; s.Reason = "" })
			err = c.serve(ctx, conn)
			c.update(func(s *tunnelend.State) { s.Tunnels-- })
		} else if ctx.Err() == nil {
			c.update(func(s *tunnelend.State) { s.Failed++ })
		}
		if ctx.Err() != nil {
			return
		}
		c.update(func(s *tunnelend.State) { s.Reason = "stream tunnel to KubeEdge's cloudcore: " + err.Error() })
		klog.InfoS("No stream tunnel: kubectl logs, exec and the like do not reach this node; trying again", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(backoff.Next()):
		}
	}
}

// tunnel is one that is open.
type tunnel struct {
	conn   *edgestream.Conn
	api    func(ctx context.Context) (net.Conn, error)
	update func(func(s *tunnelend.State))

	mu          sync.Mutex
	connections map[uint64]*connection
}

// connection is one of the cloud's, to the kubelet API.
type connection struct {
	*edgestream.Inbox
	request edgestream.Connect
	// The tunnel's mu is held for these. removed: the cloud has ended it. conn is the one to the kubelet API, once
	// there is one.
	removed bool
	conn    net.Conn
	// in and out count the bytes from and to the cloud.
}

// serve serves a tunnel until it ends, and returns why.
func (c *Client) serve(ctx context.Context, conn *edgestream.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	t := &tunnel{conn: conn, api: c.opts.API, update: c.update, connections: map[uint64]*connection{}}
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	parts.Go(func() { conn.KeepAlive(ctx) })
	for {
		m, err := conn.Read()
		if err != nil {
			return err
		}
		switch m.Kind {
		case edgestream.Logs, edgestream.Exec, edgestream.Metrics, edgestream.Attach:
			if t.find(m.ID) != nil {
				klog.InfoS("Request of the cloud for the kubelet API dropped: its ID is in use", "id", m.ID)
				continue
			}
			if err := t.startConnection(ctx, m, &parts); err != nil {
				klog.InfoS("Request of the cloud for the kubelet API dropped", "err", err)
				_ = conn.Write(edgestream.Message{ID: m.ID, Kind: edgestream.Remove}) // or the next Read fails
			}
		case edgestream.Data:
			n := t.find(m.ID)
			if n == nil {
				continue
			}
			t.update(func(s *tunnelend.State) { s.BytesIn += int64(len(m.Data)) })
			if !n.Give(m.Data, ctx.Done()) {
				klog.InfoS("Connection of the cloud to the kubelet API ended: what it sends is not read",
					"path", n.request.URL.Path)
				t.cutConnection(n, false)
			}
		case edgestream.Remove:
			if n := t.find(m.ID); n != nil {
				t.cutConnection(n, true)
			}
		case edgestream.Close:
			return fmt.Errorf("the cloud has closed it: %.200s", m.Data)
		}
	}
}

func (t *tunnel) find(id uint64) *connection {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.connections[id]
}

// cutConnection ends a connection, whatever waits for the kubelet API. removed: the cloud has ended it.
func (t *tunnel) cutConnection(n *connection, removed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.removed = n.removed || removed
	n.End() // after removed is set: end tells the cloud otherwise
	if n.conn != nil {
		_ = n.conn.Close()
	}
}

// connected notes the connection to the kubelet API, and reports whether it is still wanted.
func (t *tunnel) connected(n *connection, conn net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.conn = conn
	select {
	case <-n.Ended():
		return false
	default:
		return true
	}
}

// startConnection begins a connection.
func (t *tunnel) startConnection(ctx context.Context, m edgestream.Message, parts *sync.WaitGroup) error {
	n := &connection{Inbox: edgestream.NewInbox(nil)}
	if err := json.Unmarshal(m.Data, &n.request); err != nil {
		return fmt.Errorf("connection %d: %w", m.ID, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.connections) >= connectionsMax {
		return fmt.Errorf("there are %d connections, which is the limit", connectionsMax)
	}
	t.connections[m.ID] = n
	t.update(func(s *tunnelend.State) { s.Streams++; s.Carried++ })
	parts.Go(func() {
		var err error
		if m.Kind == edgestream.Exec || m.Kind == edgestream.Attach {
			err = t.carryConnection(ctx, m.ID, n)
		} else {
			err = t.requestAndSend(ctx, m.ID, n)
		}
		if err != nil {
			klog.V(2).InfoS("Request of the cloud to the kubelet API failed", "path", n.request.URL.Path, "err", err)
		}
		t.endConnection(m.ID, n)
	})
	return nil
}

// endConnection ends a connection, at the cloud as well.
func (t *tunnel) endConnection(id uint64, n *connection) {
	n.End()
	t.mu.Lock()
	delete(t.connections, id)
	removed := n.removed
	t.mu.Unlock()
	t.update(func(s *tunnelend.State) { s.Streams-- })
	if !removed {
		_ = t.conn.Write(edgestream.Message{ID: id, Kind: edgestream.Remove}) // or the tunnel has ended
	}
}

// carryConnection makes a request and carries the bytes of its connection both ways.
func (t *tunnel) carryConnection(ctx context.Context, id uint64, n *connection) error {
	request, err := n.request.Request(ctx)
	if err != nil {
		return err
	}
	conn, err := t.api(ctx)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if !t.connected(n, conn) {
		return conn.Close()
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer conn.Close()
	reading.Go(func() {
		defer n.End()
		t.send(id, n, conn)
	})
	if err := request.Write(conn); err != nil {
		return err
	}
	for {
		data, more := n.Take(ctx.Done())
		if len(data) > 0 {
			if _, err := conn.Write(data); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

// requestAndSend makes a request and sends the body of its answer: its status and header have no place.
func (t *tunnel) requestAndSend(ctx context.Context, id uint64, n *connection) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request, err := n.request.Request(ctx)
	if err != nil {
		return err
	}
	request.Header.Set("Accept-Encoding", "identity") // nobody would be told of another one
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return t.api(ctx) },
	}
	var ending sync.WaitGroup
	defer ending.Wait()
	defer cancel()
	ending.Go(func() {
		select {
		case <-n.Ended():
			cancel()
		case <-ctx.Done():
		}
	})
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	t.send(id, n, answer.Body)
	return nil
}

// send sends what it reads until that ends.
func (t *tunnel) send(id uint64, n *connection, from io.Reader) {
	b := make([]byte, copyBuffer)
	for {
		got, err := from.Read(b)
		if got > 0 && t.conn.Write(edgestream.Message{ID: id, Kind: edgestream.Data, Data: b[:got]}) != nil {
			return
		}
		t.update(func(s *tunnelend.State) { s.BytesOut += int64(got) })
		if err != nil {
			return
		}
	}
}
