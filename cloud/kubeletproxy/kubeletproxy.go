// Package kubeletproxy makes requests to the kubelet API of a node of KubeEdge's over the node's stream tunnel (package
// pkg/edgestream). That API is open to everybody on the node, so callers are authenticated and authorized here.
//
// It promises:
//
//   - A request reaches the node only if the cluster's authorizer allows it. The caller's credentials do not.
//   - Answers are passed on as they are, with status and headers: each request is made as KubeEdge's cloud makes those
//     of kubectl exec.
//   - A caller that does not read holds 1 MiB, and the node's other callers for 10 seconds: the tunnel has no flow
//     control. Then its connection is ended.
package kubeletproxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/auth"
	"github.com/edgecore-io/edgecore/pkg/edgestream"
)

const (
	// answerTimeout is how long the node may take to begin its answer. Logs have none: a container may be silent.
	answerTimeout = 30 * time.Second
	copyBuffer    = 32 << 10
	// endsSoon is how long the node may take to end a connection whose caller has gone.
	endsSoon = 2 * time.Second
	// lastWordsDelay is for up to lastWords bytes from a caller: the node may be ending the connection.
	lastWordsDelay = 10 * time.Millisecond
	lastWords      = 256
)

// Guard decides who may ask; see package auth. Its errors are *auth.Refusal.
type Guard interface {
	Check(r *http.Request, verb string, subresources ...string) error
}

// Tunnel is a node's stream tunnel. It is the handler of its callers' requests, which come over HTTP/1.1.
type Tunnel struct {
	node  string
	conn  *edgestream.Conn
	guard Guard
	// done is closed when the tunnel has ended.
	done chan struct{}

	mu      sync.Mutex
	last    uint64
	callers map[uint64]*caller
}

// New makes a tunnel of a node, which owns the connection.
func New(node string, conn *edgestream.Conn, guard Guard) *Tunnel {
	return &Tunnel{node: node, conn: conn, guard: guard, done: make(chan struct{}), callers: map[uint64]*caller{}}
}

// Run serves the tunnel until it ends, and returns why.
func (t *Tunnel) Run() error {
	defer close(t.done)
	for {
		m, err := t.conn.Read()
		if err != nil {
			_ = t.conn.Close()
			return err
		}
		t.mu.Lock()
		c := t.callers[m.ID]
		t.mu.Unlock()
		switch {
		case c == nil: // it has just ended
		case m.Kind == edgestream.Data:
			if !c.Give(m.Data, t.done) {
				klog.InfoS("Connection to a node ended: its caller does not read", "node", t.node)
				c.cut()
			}
		case m.Kind == edgestream.Remove:
			t.remove(c)
			c.End()
			close(c.removed) // once: it is not found again
		}
	}
}

// Close ends the tunnel.
func (t *Tunnel) Close() { _ = t.conn.Close() }

// subresources are those of a Node of which one permits a request, as the kubelet names them.
func subresources(asked string) []string {
	of := "proxy"
	switch first, _, _ := strings.Cut(strings.TrimPrefix(asked, "/"), "/"); first {
	case "metrics", "stats":
		of = first
	case "logs":
		of = "log"
	}
	return slices.Compact([]string{of, "proxy"})
}

// verb is what the authorizer is asked about a request. What runs something in a container needs the right to create,
// also where a WebSocket begins with GET.
func verb(r *http.Request) string {
	switch first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); first {
	case "exec", "attach", "portForward", "run":
		return "create"
	}
	return auth.Verb(r.Method)
}

// ServeHTTP implements http.Handler: it makes the request, if the caller may.
func (t *Tunnel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if clean := path.Clean(r.URL.Path); clean != r.URL.Path && clean+"/" != r.URL.Path {
		http.Error(w, "the path is not clean: it has empty, . or .. parts", http.StatusBadRequest)
		return // the authorizer would be asked about another one than the node serves
	}
	if err := t.guard.Check(r, verb(r), subresources(r.URL.Path)...); err != nil {
		code := http.StatusInternalServerError
		if refusal, ok := errors.AsType[*auth.Refusal](err); ok {
			code = refusal.Code
		}
		klog.V(2).InfoS("Request to a node refused", "node", t.node, "from", r.RemoteAddr, "method", r.Method,
			"path", r.URL.Path, "code", code, "why", err)
		http.Error(w, err.Error(), code)
		return
	}
	if r.ContentLength != 0 {
		http.Error(w, fmt.Sprintf("node %s runs KubeEdge's edgecore, whose tunnel carries no request with a body",
			t.node), http.StatusNotImplemented)
		return
	}
	c := newCaller()
	if !t.add(c) {
		http.Error(w, fmt.Sprintf("the tunnel of node %s has ended", t.node), http.StatusInternalServerError)
		return
	}
	defer t.remove(c)
	if err := t.connect(c, r); err != nil {
		http.Error(w, fmt.Sprintf("node %s: %v", t.node, err), http.StatusInternalServerError)
		return
	}
	defer t.disconnect(c)
	var patience <-chan time.Time
	if !strings.HasPrefix(r.URL.Path, "/containerLogs/") {
		timer := time.NewTimer(answerTimeout)
		defer timer.Stop()
		patience = timer.C
	}
	why := "the tunnel has ended"
	select {
	case <-c.Began():
		why = ""
	case <-c.Ended():
		select {
		case <-c.Began(): // both
			why = ""
		default:
			why = "it has ended the connection without an answer"
		}
	case <-t.done:
	case <-r.Context().Done():
		return
	case <-patience:
		why = fmt.Sprintf("it has not answered for %v: does its edged serve %s?", answerTimeout, edgestream.KubeletAPI)
	}
	if why != "" {
		http.Error(w, fmt.Sprintf("node %s: %s", t.node, why), http.StatusInternalServerError)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	t.carry(c, conn, buffered)
}

func (t *Tunnel) add(c *caller) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.done:
		return false
	default:
	}
	t.last++
	c.id = t.last
	t.callers[c.id] = c
	return true
}

func (t *Tunnel) remove(c *caller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.callers, c.id)
}

// connect has the node make a request.
func (t *Tunnel) connect(c *caller, r *http.Request) error {
	header := r.Header.Clone()
	for _, name := range []string{"Authorization", "Cookie"} {
		header.Del(name)
	}
	if header.Get("Upgrade") == "" {
		header.Set("Connection", "close")
	}
	data, err := json.Marshal(edgestream.Connect{
		ID: c.id,
		URL: edgestream.URL{
			Scheme: "http", Host: edgestream.KubeletAPI, Path: r.URL.Path, RawPath: r.URL.RawPath,
			RawQuery: r.URL.RawQuery,
		},
		Header: header,
		Method: r.Method,
	})
	if err != nil {
		return err
	}
	if len(data) > edgestream.MaxData {
		return fmt.Errorf("the request has %d bytes, limit %d", len(data), edgestream.MaxData)
	}
	return t.conn.Write(edgestream.Message{ID: c.id, Kind: edgestream.Exec, Data: data})
}

// disconnect ends a connection, unless the node soon does: it has, when an answer is complete. A message for a
// connection that KubeEdge's edgecore is just ending makes v1.12 panic.
func (t *Tunnel) disconnect(c *caller) {
	c.End()
	soon := time.NewTimer(endsSoon)
	defer soon.Stop()
	select {
	case <-c.removed:
	case <-t.done:
	case <-soon.C:
		_ = t.conn.Write(edgestream.Message{ID: c.id, Kind: edgestream.Remove}) // or the tunnel has ended
	}
}

// has reports whether the node has not ended a connection.
func (t *Tunnel) has(c *caller) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.callers[c.id] == c
}

// carry copies between the node and the caller, until one of them ends. Nothing goes to the node before its first bytes
// have come: it would lose them.
func (t *Tunnel) carry(c *caller, conn net.Conn, buffered io.Reader) {
	var reading sync.WaitGroup
	defer reading.Wait()
	defer conn.Close()
	c.mu.Lock()
	c.conn = conn
	c.mu.Unlock()
	_ = conn.SetDeadline(time.Time{}) // fails only on a closed connection
	reading.Go(func() {
		defer c.End()
		b := make([]byte, copyBuffer)
		for {
			n, err := buffered.Read(b)
			if n < lastWords { // perhaps the caller's answer to the end, which the node is not to get
				select {
				case <-c.Ended():
				case <-time.After(lastWordsDelay):
				}
			}
			if n > 0 && t.has(c) {
				err = errors.Join(err, t.conn.Write(edgestream.Message{ID: c.id, Kind: edgestream.Data, Data: b[:n]}))
			}
			if err != nil {
				return
			}
		}
	})
	for {
		data, more := c.Take(t.done)
		if len(data) > 0 {
			if _, err := conn.Write(data); err != nil {
				return
			}
		}
		if !more {
			return
		}
	}
}

// caller is a connection over the tunnel, with what has come for it from the node.
type caller struct {
	*edgestream.Inbox
	id uint64
	// removed is closed when the node has ended the connection.
	removed chan struct{}

	mu sync.Mutex
	// conn is the caller's connection once it is carried.
	conn net.Conn
}

func newCaller() *caller { return &caller{Inbox: edgestream.NewInbox(), removed: make(chan struct{})} }

// cut ends the connection, whatever waits for the caller.
func (c *caller) cut() {
	c.End()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		_ = c.conn.Close()
	}
}
