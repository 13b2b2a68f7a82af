// Package kubeletproxy makes requests to the kubelet API of a KubeEdge node over the node's stream tunnel (package
// pkg/edgestream). That API is open to every process on the node, so callers are authenticated and authorized here.
//
// It promises:
//
//   - A request reaches the node only if the cluster's authorizer allows it. The caller's credentials do not. A
//     connection carries one request: bytes that a caller sends after it reach the node only if the node has upgraded
//     the connection, for exec, attach or port-forward.
//   - Answers are passed on as they are, with status and headers: each request is made as KubeEdge's cloud makes those
//     of kubectl exec.
//   - The tunnel has no flow control. Up to 1 MiB waits for a caller that does not read; when more comes, the node's
//     other callers wait as well, until it reads or, after 10 seconds, its connection is ended. What waits for all
//     callers of a node, and of all nodes, is limited (shares.Memory). What a container does
//     not read from its standard input stops the node's tunnel, too, which then ends after 30 seconds and is opened
//     again.
package kubeletproxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/auth"
	"github.com/edgecore-io/edgecore/pkg/edgestream"
	"github.com/edgecore-io/edgecore/pkg/shares"
)

const (
	// answerTimeout is how long the node may take to begin its answer, and longAnswer what has to do something first.
	// For logs that are followed there is no limit: a container may be silent.
	answerTimeout = 30 * time.Second
	longAnswer    = 5 * time.Minute
	// slowCaller is how long a caller may take to read the last bytes.
	slowCaller = 10 * time.Second
	copyBuffer = 32 << 10
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
	// memory is for what callers have not read.
	memory *shares.Memory
	// done is closed when the tunnel has ended.
	done chan struct{}

	mu      sync.Mutex
	last    uint64
	callers map[uint64]*caller
}

// New makes a tunnel of a node, which owns the connection.
func New(node string, conn *edgestream.Conn, guard Guard, m *shares.Memory) *Tunnel {
	return &Tunnel{
		node: node, conn: conn, guard: guard, memory: m, done: make(chan struct{}), callers: map[uint64]*caller{},
	}
}

var _ shares.Holder = (*Tunnel)(nil)

// CutLargest implements shares.Holder.
func (t *Tunnel) CutLargest() bool {
	t.mu.Lock()
	var largest *caller
	var most int64
	for _, c := range t.callers {
		if n := c.Cost(); n > most {
			largest, most = c, n
		}
	}
	t.mu.Unlock()
	if largest == nil {
		return false
	}
	klog.InfoS("Connection to a node ended: its caller does not read", "node", t.node)
	largest.abort()
	return true
}

// Evict implements shares.Holder.
func (t *Tunnel) Evict() {
	t.Close()
	t.mu.Lock()
	callers := slices.Collect(maps.Values(t.callers))
	t.mu.Unlock()
	for _, c := range callers {
		c.abort()
	}
}

// share is the memory of a tunnel's callers.
type share struct{ *Tunnel }

func (s share) Take(n int64) error { return s.memory.Take(s.Tunnel, n) }
func (s share) Return(n int64)     { s.memory.Return(s.Tunnel, n) }

// Run serves the tunnel until it ends, and returns why.
func (t *Tunnel) Run() error {
	defer t.expireAll()
	defer close(t.done)
	ctx, cancel := context.WithCancel(context.Background())
	var pings sync.WaitGroup
	defer pings.Wait()
	defer cancel()
	pings.Go(func() { t.conn.KeepAlive(ctx) })
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
				c.abort()
			}
		case m.Kind == edgestream.Remove:
			t.remove(c)
			c.End()
			c.expire()
			close(c.removed) // once: it is not found again
		}
	}
}

func (t *Tunnel) expireAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.callers {
		c.expire()
	}
}

// Close ends the tunnel. It does not wait for the peer.
func (t *Tunnel) Close() { _ = t.conn.Close() }

// subresources returns subresources of a Node, with the kubelet's names. The caller needs access to one of them.
func subresources(path string) []string {
	of := "proxy"
	switch part := first(path); part {
	case "metrics", "stats":
		of = part
	case "logs":
		of = "log"
	}
	return slices.Compact([]string{of, "proxy"})
}

// first is the first part of a path.
func first(path string) string {
	part, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return part
}

// upgrades reports whether a request may upgrade its connection.
func upgrades(path string) bool {
	return slices.Contains([]string{"exec", "attach", "portForward"}, first(path))
}

// verb is what the authorizer is asked about a request. What runs something in a container needs the right to create,
// also where a WebSocket begins with GET.
func verb(r *http.Request) string {
	if upgrades(r.URL.Path) || first(r.URL.Path) == "run" {
		return "create"
	}
	return auth.Verb(r.Method)
}

// patience is how long the node may take to begin its answer; 0 is any time.
func patience(u *url.URL) time.Duration {
	switch first(u.Path) {
	case "containerLogs":
		if follow, err := strconv.ParseBool(u.Query().Get("follow")); err == nil && follow {
			return 0
		}
		return longAnswer
	case "debug", "run", "checkpoint":
		return longAnswer
	}
	return answerTimeout
}

// fail answers a request with an error and closes its connection: the caller's next one may find another tunnel, or
// other rights.
func fail(w http.ResponseWriter, code int, format string, args ...any) {
	w.Header().Set("Connection", "close")
	http.Error(w, fmt.Sprintf(format, args...), code)
}

// ServeHTTP implements http.Handler: it makes the request, if the caller may.
func (t *Tunnel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if clean := path.Clean(r.URL.Path); clean != r.URL.Path && clean+"/" != r.URL.Path {
		// The authorizer would be asked about another path than the node serves.
		fail(w, http.StatusBadRequest, "the path is not clean: it has empty, . or .. parts")
		return
	}
	if err := t.guard.Check(r, verb(r), subresources(r.URL.Path)...); err != nil {
		code := http.StatusInternalServerError
		if refusal, ok := errors.AsType[*auth.Refusal](err); ok {
			code = refusal.Code
		}
		klog.V(2).InfoS("Request to a node refused", "node", t.node, "from", r.RemoteAddr, "method", r.Method,
			"path", r.URL.Path, "code", code, "why", err)
		fail(w, code, "%v", err)
		return
	}
	if r.ContentLength != 0 {
		fail(w, http.StatusNotImplemented,
			"node %s runs KubeEdge's edgecore, whose tunnel carries no request with a body", t.node)
		return
	}
	c := newCaller(share{t})
	defer c.Drop()
	if !t.add(c) {
		fail(w, http.StatusInternalServerError, "the tunnel of node %s has ended", t.node)
		return
	}
	defer t.remove(c)
	upgrade := r.Header.Get("Upgrade") != "" && upgrades(r.URL.Path)
	if err := t.connect(c, r, upgrade); err != nil {
		fail(w, http.StatusInternalServerError, "node %s: %v", t.node, err)
		return
	}
	defer t.disconnect(c)
	if why := t.await(c, r); why != "" {
		fail(w, http.StatusInternalServerError, "node %s: %s", t.node, why)
		return
	}
	if r.Context().Err() != nil {
		return // the caller has gone
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		fail(w, http.StatusInternalServerError, "%v", err)
		return
	}
	t.carryCaller(c, conn, buffered, upgrade)
}

// await waits until the node begins its answer or the caller goes, and returns why there is no answer.
func (t *Tunnel) await(c *caller, r *http.Request) string {
	var late <-chan time.Time
	limit := patience(r.URL)
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-c.Began():
	case <-c.Ended():
		select {
		case <-c.Began(): // both
		default:
			return "it has ended the connection without an answer"
		}
	case <-t.done:
		return "the tunnel has ended"
	case <-r.Context().Done():
	case <-late:
		return fmt.Sprintf("it has not answered for %v: does its edged serve %s?", limit, edgestream.KubeletAPI)
	}
	return ""
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

// connect asks the node to make a request.
func (t *Tunnel) connect(c *caller, r *http.Request, upgrade bool) error {
	header := r.Header.Clone()
	for _, name := range []string{"Authorization", "Cookie"} {
		header.Del(name)
	}
	if !upgrade {
		header.Del("Upgrade")
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

// hasCaller reports whether the node has not ended a connection.
func (t *Tunnel) hasCaller(c *caller) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.callers[c.id] == c
}

// carryCaller copies between the node and the caller, until one of them ends. Nothing goes to the node unless it has
// upgraded the connection: it would be another request, which nobody has allowed.
func (t *Tunnel) carryCaller(c *caller, conn net.Conn, buffered io.Reader, upgrade bool) {
	var reading sync.WaitGroup
	defer reading.Wait()
	defer conn.Close()
	_ = conn.SetDeadline(time.Time{}) // fails only on a closed connection
	c.setConn(conn)
	head, more := t.head(c)
	switched := upgrade && bytes.HasPrefix(head, []byte("HTTP/1.1 101"))
	reading.Go(func() {
		defer c.End()
		t.toNode(c, buffered, switched)
	})
	for data := head; ; data, more = c.Take(t.done) {
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

// head returns the first bytes of the node's answer, enough for its status.
func (t *Tunnel) head(c *caller) (head []byte, more bool) {
	for more = true; more && len(head) < len("HTTP/1.1 101"); {
		var data []byte
		data, more = c.Take(t.done)
		head = append(head, data...)
	}
	return head, more
}

// toNode sends the node what comes from the caller, or drops it, until that ends.
func (t *Tunnel) toNode(c *caller, from io.Reader, wanted bool) {
	b := make([]byte, copyBuffer)
	for {
		n, err := from.Read(b)
		if n < lastWords { // perhaps the caller's answer to the end, which the node is not to get
			select {
			case <-c.Ended():
			case <-time.After(lastWordsDelay):
			}
		}
		if n > 0 && wanted && t.hasCaller(c) {
			err = errors.Join(err, t.conn.Write(edgestream.Message{ID: c.id, Kind: edgestream.Data, Data: b[:n]}))
		}
		if err != nil {
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

func newCaller(m edgestream.Memory) *caller {
	return &caller{Inbox: edgestream.NewInbox(m), removed: make(chan struct{})}
}

// setConn notes the caller's connection.
func (c *caller) setConn(conn net.Conn) {
	c.mu.Lock()
	c.conn = conn
	c.mu.Unlock()
	select {
	case <-c.Ended():
		c.expire()
	default:
	}
}

// expire limits the time that the caller may take to read what waits for it.
func (c *caller) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		_ = c.conn.SetWriteDeadline(time.Now().Add(slowCaller)) // fails only on a closed connection
	}
}

// abort ends the connection, whatever waits for the caller. It does not wait for the caller.
func (c *caller) abort() {
	c.Drop()
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		_ = edgestream.CloseAtOnce(conn)
	}
}
