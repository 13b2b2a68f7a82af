package cloudstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// linkOf connects edge-1 by QUIC, and returns both ends of its link. The node serves the link's streams.
func linkOf(t testing.TB, f *fixture) (node, cloud wire.Conn) {
	t.Helper()
	ca := wiretest.NewCA(t)
	l, err := wire.ListenQUIC("127.0.0.1:0", ca.ServerTLS(t), wire.Limits{}, shares.NewMemory(),
		func(wire.Caller) (wire.AcceptOptions, error) {
			return wire.AcceptOptions{Features: wire.Features{Tunnel: true}}, nil
		})
	if err != nil {
		t.Fatal(err)
	}
	node, err = wire.DialQUIC(t.Context(), wire.DialOptions{
		URL: "quic://" + l.Addr().String(), TLS: ca.ClientTLS(t, "edge-1"), Features: wire.Features{Tunnel: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	cloud, _, _, err = l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { f.keeper.ServeLink(ctx, node.Streams()) })
	t.Cleanup(func() {
		_ = node.Close(wire.CloseNormal, "")
		_ = cloud.Close(wire.CloseNormal, "")
		cancel()
		serving.Wait()
		_ = l.Close()
	})
	f.Disconnected("edge-1")
	f.Connected("edge-1", from, cloud.Streams())
	return node, cloud
}

// TestLinkStreams: where the link is QUIC, callers reach the kubelet API by streams of it, without a tunnel; they end
// with the link.
func TestLinkStreams(t *testing.T) {
	f := start(t, nil)
	f.mu.Lock()
	f.refuse = errors.New("no WebSocket port is open")
	f.mu.Unlock()
	node, _ := linkOf(t, f)
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() { f.want(http.StatusOK, "hello from the node") })
	}
	callers.Wait()
	wait.True(t, "the streams to end at both ends", func() bool {
		tunnels, streams, onLink := f.count()
		s := f.keeper.State()
		return tunnels == 0 && streams == 0 && onLink == 0 && s.Streams == 0 && s.LinkStreams == 0
	})
	if s := f.keeper.State(); s.Opened != 0 || s.Carried != 20 || s.BytesOut == 0 {
		t.Errorf("the node's state is %+v, want 20 streams, with bytes, and no tunnel", s)
	}
	f.mu.Lock()
	if len(f.reached) != 20 || f.reached[0] != "127.0.0.1" {
		t.Errorf("the node was told the addresses %q, want 127.0.0.1 with each stream", f.reached)
	}
	f.mu.Unlock()
	ended := make(chan error, 1)
	go func() {
		_, _, err := f.get(client(t), "/slow")
		ended <- err
	}()
	wait.True(t, "the stream", func() bool {
		_, _, onLink := f.count()
		return onLink == 1 && f.keeper.State().LinkStreams == 1
	})
	_ = node.Close(wire.CloseNormal, "")
	if err := wait.Receive(t, "the request to end", ended); err == nil {
		t.Error("the request succeeded, want an error")
	}
	f.want(refusedStatus, "no stream of the link of node edge-1") // the session has not noticed yet
	f.Disconnected("edge-1")
	f.want(refusedStatus, "node edge-1 is offline since")
}

// fullLink is a link that takes no more streams.
type fullLink struct{}

func (fullLink) Open(context.Context, netip.Addr) (net.Conn, context.Context, error) {
	return nil, nil, wire.ErrStreams
}

// TestLinkIsFull: callers for whom the link has no stream are carried by a tunnel.
func TestLinkIsFull(t *testing.T) {
	f := start(t, nil)
	f.Disconnected("edge-1")
	f.Connected("edge-1", from, fullLink{})
	f.want(http.StatusOK, "hello from the node")
}

// TestLinkHalfClosed: the end of one direction reaches the kubelet API, and its answer still arrives. If the caller is
// gone, the kubelet API can send no more.
func TestLinkHalfClosed(t *testing.T) {
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cut := make(chan error, 1)
	var serving sync.WaitGroup
	serving.Go(func() {
		for { // answers with the number of bytes, or "endless" without end
			c, err := api.Accept()
			if err != nil {
				return
			}
			got, err := io.ReadAll(c)
			if err != nil {
				t.Error(err)
			}
			for string(got) == "endless" && err == nil {
				_, err = c.Write(got)
			}
			if err != nil {
				cut <- err
			} else {
				_, _ = fmt.Fprint(c, len(got))
			}
			_ = c.Close()
		}
	})
	defer serving.Wait()
	f := newFixture(t, &httptest.Server{Listener: api, Config: &http.Server{}}, nil)
	defer api.Close()
	linkOf(t, f)
	call := func(text string) *net.TCPConn {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.existing("edge-1").port))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		return c.(*net.TCPConn)
	}
	c := call(strings.Repeat("x", 1<<20))
	if got, err := io.ReadAll(c); err != nil || string(got) != fmt.Sprint(1<<20) {
		t.Errorf("read %q, %v; want %d", got, err, 1<<20)
	}
	_ = c.Close()
	c = call("endless")
	if _, err := io.ReadFull(c, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := wait.Receive(t, "the kubelet API to be told", cut); err == nil {
		t.Error("it could write all, want an error")
	}
	wait.True(t, "the streams to end", func() bool {
		_, streams, _ := f.count()
		return streams == 0 && f.keeper.State().Streams == 0
	})
}

// TestLost: a caller that sends nothing after the node's end of a connection is closed with the tunnel or link.
func TestLost(t *testing.T) {
	for name, start := range map[string]func(*testing.T, *fixture) (lose func()){
		"tunnel": func(_ *testing.T, f *fixture) func() {
			return func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				_ = f.dialled.Close()
			}
		},
		"link": func(t *testing.T, f *fixture) func() {
			node, _ := linkOf(t, f)
			return func() { _ = node.Close(wire.CloseNormal, "") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			api, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			f := newFixture(t, &httptest.Server{Listener: api, Config: &http.Server{}}, nil)
			lose := start(t, f)
			var serving sync.WaitGroup
			serving.Go(func() {
				c, err := api.Accept()
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
					t.Error(err)
				}
				_, _ = io.WriteString(c, "bye")
				_ = c.Close()
			})
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.existing("edge-1").port))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, "hello"); err != nil { // a caller that says nothing is not carried
				t.Fatal(err)
			}
			if got, err := io.ReadAll(c); err != nil || string(got) != "bye" {
				t.Errorf("read %q, %v; want bye", got, err)
			}
			serving.Wait()
			if _, streams, _ := f.count(); streams != 1 {
				t.Errorf("%d streams after the node's end, want 1: the caller may go on to send", streams)
			}
			lose()
			wait.True(t, "the stream to end at both ends", func() bool {
				_, streams, _ := f.count()
				return streams == 0 && f.keeper.State().Streams == 0
			})
		})
	}
}
