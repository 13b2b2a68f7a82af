package kubeletproxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/pkg/auth"
	"github.com/edgecore-io/edgecore/pkg/edgestream"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// doors is a guard that lets in requests with a token.
type doors struct{}

func (doors) Check(r *http.Request, verb string, subresources ...string) error {
	if r.Header.Get("Authorization") != "Bearer "+verb+" "+strings.Join(subresources, " ") {
		return &auth.Refusal{Code: http.StatusForbidden, Text: "no"}
	}
	return nil
}

// edge is a node's end of the tunnel, whose requests the test answers.
type edge struct {
	t      *testing.T
	tunnel *Tunnel
	url    string
	// requests are the connections that the cloud has begun; got is what came for them.
	requests chan edgestream.Connect
	got      chan edgestream.Message
	ws       *websocket.Conn
}

func start(t *testing.T) *edge {
	t.Helper()
	e := &edge{t: t, requests: make(chan edgestream.Connect, 16), got: make(chan edgestream.Message, 16)}
	ready, ended := make(chan *Tunnel, 1), make(chan error, 1)
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := edgestream.Accept(w, r)
		if err != nil {
			t.Error(err)
			return
		}
		tunnel := New("edge-1", conn, doors{}, shares.NewMemory())
		ready <- tunnel
		ended <- tunnel.Run()
	}))
	ws, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(cloud.URL, "http")+edgestream.Path, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.ws, e.tunnel = ws, <-ready
	read := make(chan struct{})
	go func() {
		defer close(read)
		for {
			_, text, err := ws.ReadMessage()
			if err != nil {
				return
			}
			m, err := edgestream.Decode(text)
			if err != nil {
				t.Error(err)
				return
			}
			if m.Kind != edgestream.Exec {
				e.got <- edgestream.Message{ID: m.ID, Kind: m.Kind, Data: bytes.Clone(m.Data)}
				continue
			}
			var c edgestream.Connect
			if err := json.Unmarshal(m.Data, &c); err != nil {
				t.Error(err)
			}
			e.requests <- c
		}
	}()
	callers := httptest.NewServer(e.tunnel)
	e.url = callers.URL
	t.Cleanup(func() {
		callers.CloseClientConnections()
		e.tunnel.Close()
		_ = ws.Close()
		<-read
		<-ended
		callers.Close()
		cloud.Close()
	})
	return e
}

func (e *edge) send(kind edgestream.Kind, id uint64, data string) {
	e.t.Helper()
	m := edgestream.Message{ID: id, Kind: kind, Data: []byte(data)}
	if err := e.ws.WriteMessage(websocket.TextMessage, m.Encode()); err != nil {
		e.t.Fatal(err)
	}
}

// nothing checks that the node got nothing about a connection that it has ended: KubeEdge's would panic. What is sent
// to it is sent before the caller has its answer.
func (e *edge) nothing() {
	e.t.Helper()
	answer := e.ask(e.t.Context(), "GET", "/pods", "get proxy")
	c := <-e.requests // nothing is on the way before it
	if len(e.got) > 0 {
		e.t.Errorf("the node gets %+v, want nothing about a connection that it has ended", <-e.got)
	}
	e.send(edgestream.Data, c.ID, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
	e.send(edgestream.Remove, c.ID, "")
	<-answer
}

// ask makes a request as a caller that may, and returns a channel with its status and body.
func (e *edge) ask(ctx context.Context, method, path, may string) <-chan string {
	answer := make(chan string, 1)
	go func() {
		r, err := http.NewRequestWithContext(ctx, method, e.url+path, nil)
		if err != nil {
			e.t.Error(err)
		}
		r.Header.Set("Authorization", "Bearer "+may)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(r)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			body = fmt.Append(body, err)
		}
		answer <- fmt.Sprintf("%d %s", resp.StatusCode, body)
	}()
	return answer
}

// TestRequest: a request is made at the node without the caller's credentials, and its answer is passed on.
func TestRequest(t *testing.T) {
	e := start(t)
	for _, tc := range []struct{ method, path, may string }{
		{"GET", "/metrics/cadvisor", "get metrics proxy"}, {"GET", "/stats/summary", "get stats proxy"},
		{"POST", "/exec/ns/pod/main?command=ls", "create proxy"}, {"GET", "/logs/syslog", "get log proxy"},
	} {
		answer := e.ask(t.Context(), tc.method, tc.path, tc.may)
		c := <-e.requests
		if got := c.URL.Path + "?" + c.URL.RawQuery; strings.TrimSuffix(got, "?") != tc.path || c.Method != tc.method ||
			c.URL.Host != "127.0.0.1:10350" || c.Header.Get("Authorization") != "" ||
			c.Header.Get("Connection") != "close" {
			t.Errorf("the request is %+v, want %s %s at the kubelet's API, without a token", c, tc.method, tc.path)
		}
		e.send(edgestream.Data, c.ID, "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\nno ")
		e.send(edgestream.Data, c.ID, "such thing")
		e.send(edgestream.Remove, c.ID, "")
		if got := <-answer; got != "404 no such thing" {
			t.Errorf("the answer is %q, want the node's", got)
		}
		e.nothing()
	}
	if got := <-e.ask(t.Context(), "GET", "/pods", "get metrics proxy"); got != "403 no\n" {
		t.Errorf("a caller that may not gets %q, want 403", got)
	}
	for path, want := range map[string]string{
		"/exec/ns/pod/main":          "403 no\n", // with GET, as a WebSocket begins
		"/metrics/../exec/a/b/c":     "400 the path is not clean: it has empty, . or .. parts\n",
		"//exec/ns/pod/main":         "400 the path is not clean: it has empty, . or .. parts\n",
		"/metrics/%2e%2e/exec/a/b/c": "400 the path is not clean: it has empty, . or .. parts\n",
	} {
		if got := <-e.ask(t.Context(), "GET", path, "get proxy"); got != want {
			t.Errorf("%s with the right to get: %q, want %q", path, got, want)
		}
	}
	if len(e.requests) != 0 {
		t.Error("a refused request reaches the node")
	}
}

// TestUpgrade: an upgraded connection carries bytes both ways, until one side ends it.
func TestUpgrade(t *testing.T) {
	e := start(t)
	for name, end := range map[string]func(net.Conn, uint64){
		"the caller": func(c net.Conn, _ uint64) { _ = c.Close() },
		"the node":   func(_ net.Conn, id uint64) { e.send(edgestream.Remove, id, "") },
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, "GET /exec/x HTTP/1.1\r\nHost: n\r\n"+
			"Authorization: Bearer create proxy\r\nConnection: Upgrade\r\n"+
			"Upgrade: SPDY/3.1\r\n\r\n")
		r := <-e.requests
		if r.Header.Get("Upgrade") != "SPDY/3.1" || r.Header.Get("Connection") != "Upgrade" {
			t.Errorf("the request's header is %v, want the upgrade", r.Header)
		}
		e.send(edgestream.Data, r.ID, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		in := bufio.NewReader(c)
		if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "101") {
			t.Errorf("the answer is %q, %v", line, err)
		}
		fmt.Fprint(c, "ping")
		if m := <-e.got; string(m.Data) != "ping" || m.ID != r.ID {
			t.Errorf("the node gets %+v, want ping", m)
		}
		end(c, r.ID)
		if name == "the caller" {
			if m := <-e.got; m.Kind != edgestream.Remove {
				t.Errorf("the caller ends it: the node gets %+v, want the end", m)
			}
		}
		_, _ = io.Copy(io.Discard, in) // it ends
		_ = c.Close()
		wait.True(t, "nothing to be left", func() bool {
			e.tunnel.mu.Lock()
			defer e.tunnel.mu.Unlock()
			return len(e.tunnel.callers) == 0
		})
		e.nothing()
	}
}

// TestSecondRequest: what a caller sends after its request does not reach the node unless the node has upgraded the
// connection: it would be a request that nobody has allowed.
func TestSecondRequest(t *testing.T) {
	e := start(t)
	const second = "POST /exec/ns/pod/main?command=sh HTTP/1.1\r\nHost: n\r\n\r\n"
	for name, tc := range map[string]struct{ line, may, answer, connection string }{
		"what is no upgrade": {"GET /metrics", "get metrics proxy", "HTTP/1.1 200 OK\r\n\r\n", "close"},
		"a refused upgrade":  {"GET /exec/x", "create proxy", "HTTP/1.1 404 Not Found\r\n\r\n", "Upgrade"},
		"an answer in parts": {"GET /exec/x", "create proxy", "HTTP/1.1 10", "Upgrade"},
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\n"+
			"Upgrade: x\r\n\r\n", tc.line, tc.may)
		r := <-e.requests
		got := r.Header.Get("Connection")
		if got != tc.connection || (got == "close") != (r.Header.Get("Upgrade") == "") {
			t.Errorf("%s: the node gets %v, want Connection: %s", name, r.Header, tc.connection)
		}
		e.send(edgestream.Data, r.ID, tc.answer)
		fmt.Fprint(c, second)
		if name == "an answer in parts" {
			e.send(edgestream.Data, r.ID, "0 Continue\r\n\r\n")
		}
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 ") {
			t.Errorf("%s: the answer is %q, %v", name, line, err)
		}
		e.send(edgestream.Remove, r.ID, "")
		_, _ = io.Copy(io.Discard, c) // it ends
		_ = c.Close()
		e.nothing()
	}
}

// TestErrorsClose: a caller that gets an error asks again: its next request may find another tunnel.
func TestErrorsClose(t *testing.T) {
	e := start(t)
	resp, err := http.Get(e.url + "/pods")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden || !resp.Close {
		t.Errorf("the answer is %s, close %v; want 403 and a closed connection", resp.Status, resp.Close)
	}
}

func TestPatience(t *testing.T) {
	for path, want := range map[string]time.Duration{
		"/containerLogs/a/b/c?follow=true": 0, "/containerLogs/a/b/c": longAnswer, "/pods": answerTimeout,
		"/debug/pprof/profile?seconds=60": longAnswer, "/exec/a/b/c?follow=true": answerTimeout,
	} {
		u, err := url.Parse(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := patience(u); got != want {
			t.Errorf("patience(%s) = %v, want %v", path, got, want)
		}
	}
}

// TestNoAnswer: a caller is told why it gets no answer.
func TestNoAnswer(t *testing.T) {
	e := start(t)
	answer := e.ask(t.Context(), "GET", "/pods", "get proxy")
	e.send(edgestream.Remove, (<-e.requests).ID, "")
	if got := <-answer; !strings.Contains(got, "500 node edge-1: it has ended the connection without an answer") {
		t.Errorf("the answer is %q", got)
	}
	e.nothing()
	gone, cancel := context.WithCancel(t.Context())
	answer = e.ask(gone, "GET", "/containerLogs/ns/pod/main?follow=true", "get proxy") // silent
	r := <-e.requests
	cancel()
	<-answer
	if m := <-e.got; m.Kind != edgestream.Remove || m.ID != r.ID {
		t.Errorf("a caller goes: the node gets %+v, want the end of its connection", m)
	}
	e.send(edgestream.Data, r.ID, "late")
	e.send(edgestream.Kind(99), 99, "unknown")
	answer = e.ask(t.Context(), "GET", "/pods", "get proxy")
	<-e.requests
	_ = e.ws.Close()
	if got := <-answer; !strings.Contains(got, "500 node edge-1: the tunnel has ended") {
		t.Errorf("the answer is %q", got)
	}
	wait.Until(t, "an answer at once", func() error {
		if got := <-e.ask(t.Context(), "GET", "/pods", "get proxy"); !strings.Contains(got, "has ended") {
			return fmt.Errorf("the answer is %q", got)
		}
		return nil
	})
}

// TestBody: a request with a body is refused, since the tunnel would lose it.
func TestBody(t *testing.T) {
	e := start(t)
	resp, err := http.NewRequest(http.MethodPost, e.url+"/run/ns/pod/main", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Header.Set("Authorization", "Bearer create proxy")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	got, err := client.Do(resp)
	if err != nil {
		t.Fatal(err)
	}
	_ = got.Body.Close()
	if got.StatusCode != http.StatusNotImplemented {
		t.Errorf("the answer is %s, want 501", got.Status)
	}
}

// stuckConn is a connection whose Close waits for the peer.
type stuckConn struct {
	net.Conn
	closing, released chan struct{}
}

func (c *stuckConn) Close() error {
	close(c.closing)
	<-c.released
	return c.Conn.Close()
}

// TestEvictHoldsNoLock: while the connection of a caller that does not read is being closed, the tunnel and the caller
// are free for others: Take of another tunnel calls Evict.
func TestEvictHoldsNoLock(t *testing.T) {
	e := start(t)
	near, far := net.Pipe()
	defer far.Close()
	stuck := &stuckConn{near, make(chan struct{}), make(chan struct{})}
	c := newCaller(share{e.tunnel})
	if !e.tunnel.add(c) {
		t.Fatal("the tunnel has ended")
	}
	c.setConn(stuck)
	evicted := make(chan struct{})
	go func() {
		defer close(evicted)
		e.tunnel.Evict()
	}()
	<-stuck.closing
	for name, mu := range map[string]*sync.Mutex{"tunnel": &e.tunnel.mu, "caller": &c.mu} {
		free := false
		for range 1000 { // others hold it for a moment
			if free = mu.TryLock(); free {
				mu.Unlock()
				break
			}
			runtime.Gosched()
		}
		if !free {
			t.Errorf("the %s is locked while the connection of a caller is being closed", name)
		}
	}
	close(stuck.released)
	<-evicted
}
