package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// answering is a proxy that answers each request with respond. requests are those that it got.
func answering(t *testing.T, respond func(net.Conn)) (via *url.URL, requests chan *http.Request) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	requests = make(chan *http.Request, 10)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					requests <- r
					respond(c)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return &url.URL{Scheme: "http", Host: l.Addr().String(), User: url.UserPassword("user", "hunter2")}, requests
}

func dialThrough(ctx context.Context, via *url.URL) error {
	d := websocket.Dialer{}
	Use(&d, func(*http.Request) (*url.URL, error) { return via, nil }, nil)
	ws, _, err := d.DialContext(ctx, "ws://cloud.example:10000/x", nil)
	if err == nil {
		err = ws.Close()
	}
	return err
}

// TestRefused: a proxy that refuses is an error with its status, whether or not it adds a text.
func TestRefused(t *testing.T) {
	for line, want := range map[string]Refused{
		"403 Forbidden":                     {Status: 403},
		"407 Proxy Authentication Required": {Status: 407},
		"502 Bad Gateway":                   {Status: 502},
		"403":                               {Status: 403},
		"403 ":                              {Status: 403},
		"299":                               {Status: 299},
	} {
		via, requests := answering(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 "+line+"\r\n\r\n") })
		err := dialThrough(t.Context(), via)
		var got *Refused
		if !errors.As(err, &got) || got.Status != want.Status || got.Proxy != via.Host {
			t.Errorf("%q: %v, want status %d of %s", line, err, want.Status, via.Host)
			continue
		}
		if text := got.Error() + got.Remedy(); strings.Contains(text, "hunter2") {
			t.Errorf("%q: %q shows the password", line, text)
		}
		r := <-requests
		if user, password, _ := (&http.Request{Header: http.Header{
			"Authorization": r.Header["Proxy-Authorization"],
		}}).BasicAuth(); r.Method != http.MethodConnect || r.Host != "cloud.example:10000" || user != "user" ||
			password != "hunter2" {
			t.Errorf("%q: the proxy was asked %s %s as %s, want CONNECT cloud.example:10000 as user", line, r.Method,
				r.Host, user)
		}
	}
}

// TestOddAnswers: no answer of a proxy makes the caller wait, read on or panic.
func TestOddAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		respond func(net.Conn)
		want    error
	}{
		"nothing": {func(net.Conn) {}, io.EOF},
		"half":    {func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200") }, io.EOF},
		"endless": {func(c net.Conn) {
			_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for err == nil {
				_, err = io.WriteString(c, "X-More: "+strings.Repeat("x", 4000)+"\r\n")
			}
		}, errLarge},
	} {
		via, _ := answering(t, c.respond)
		if err := dialThrough(t.Context(), via); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestSilent: a proxy that does not answer holds up the caller until its context ends.
func TestSilent(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	via, _ := answering(t, func(c net.Conn) {
		cancel()
		_, _ = c.Read(make([]byte, 1)) // until the caller closes it
	})
	if err := dialThrough(ctx, via); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
}

// TestThrough: a WebSocket through a proxy.
func TestThrough(t *testing.T) {
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil); err == nil {
			_ = ws.Close()
		}
	}))
	defer cloud.Close()
	via, _ := answering(t, func(c net.Conn) {
		far, err := net.Dial("tcp", cloud.Listener.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		defer far.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(far, c)
			_ = far.Close()
		}()
		_, _ = io.Copy(c, far)
		_ = c.Close()
		<-done
	})
	if err := dialThrough(t.Context(), via); err != nil {
		t.Error(err)
	}
}
