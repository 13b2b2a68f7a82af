package forward

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/metaserver/apirequest"
)

// pipes is a listener of connections in memory, which have the time of the test's bubble.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Open(context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours, nil
}

func (p *pipes) Connected() (bool, time.Time) { return true, time.Time{} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.ended); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// inBubble runs a test on a simulated clock, with a device whose clients connect to its pipes.
func inBubble(t *testing.T, api http.HandlerFunc, do func(device *pipes)) {
	synctest.Test(t, func(t *testing.T) {
		upstream, device := newPipes(), newPipes()
		f := New(upstream)
		servers := []*http.Server{{Handler: api}, {Handler: http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				f.Serve(w, r, &Request{Info: apirequest.Of(r), Account: "a"})
			})}}
		for i, l := range []net.Listener{upstream, device} {
			go func() { _ = servers[i].Serve(l) }()
		}
		do(device)
		f.Close()
		for _, s := range servers {
			_ = s.Close()
		}
	})
}

// TestSilentWatchStays: no deadline ends a watch without events, and events that come after an hour arrive.
func TestSilentWatchStays(t *testing.T) {
	inBubble(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Hour)
			_, _ = io.WriteString(w, "event\n")
		}
	}, func(device *pipes) {
		conn, err := device.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(resp.Body); err != nil || strings.Count(string(text), "event") != 3 {
			t.Errorf("events %q, %v; want 3", text, err)
		}
	})
}

// TestSlowBodyEnds: a client that sends nothing of what it announced keeps neither its connection nor a stream.
func TestSlowBodyEnds(t *testing.T) {
	inBubble(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		func(device *pipes) {
			conn, err := device.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			begun := time.Now()
			const request = "POST /api/v1/nodes HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nx"
			if _, err := io.WriteString(conn, request); err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(conn)
			if took := time.Since(begun); err != nil || took < bodyTime || took > 2*bodyTime {
				t.Errorf("answer %q, %v, after %v; want the end of the connection after %v", text, err, took, bodyTime)
			}
		})
}

// TestSlowReaderEnds: a client that takes nothing of a long answer keeps no stream. It does take the header: otherwise
// a goroutine would wait for a mutex, with which the simulated clock does not go on.
func TestSlowReaderEnds(t *testing.T) {
	var lasted atomic.Int64
	inBubble(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		time.Sleep(time.Second) // the proxy's own goroutine has sent the header
		begun := time.Now()
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				break
			}
		}
		lasted.Store(int64(time.Since(begun)))
	}, func(device *pipes) {
		conn, err := device.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /api/v1/pods HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if took := time.Duration(lasted.Load()); took < writeTime || took > 2*writeTime {
			t.Errorf("the request ended after %v, want %v", took, writeTime)
		}
	})
}
