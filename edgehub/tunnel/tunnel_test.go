package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// run runs a keeper until the test ends.
func run(t *testing.T, o Options) *Keeper {
	t.Helper()
	k := New(o)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { k.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return k
}

// clouds returns a Dial for a cloud that opens a stream on each tunnel, and the streams.
func clouds(t *testing.T) (dial func(context.Context, string) (net.Conn, error), streams chan net.Conn) {
	t.Helper()
	streams = make(chan net.Conn, 100)
	return func(context.Context, string) (net.Conn, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		node, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return nil, err
		}
		far, err := l.Accept()
		if err != nil {
			return nil, err
		}
		o, err := tunnel.NewOpener(far, shares.NewMemory())
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = o.Close() })
		stream, _, err := o.Open()
		if err != nil {
			return nil, err
		}
		streams <- stream
		return node, nil
	}, streams
}

// at connects to an address.
func at(address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", address) }
}

// TestNotOpened: the state says why there is no tunnel, until there is one.
func TestNotOpened(t *testing.T) {
	works, streams := clouds(t)
	broken := atomic.Bool{}
	broken.Store(true)
	k := run(t, Options{Backend: at("127.0.0.1:1"), Dial: func(ctx context.Context, token string) (net.Conn, error) {
		if broken.Load() {
			return nil, errors.New("no route for " + token)
		}
		return works(ctx, token)
	}})
	k.Open(tunnel.Request{Token: "a"})
	wait.True(t, "the failure", func() bool {
		s := k.State()
		return s.Failed == 1 && s.Reason == "no route for a" && s.Tunnels == 0
	})
	broken.Store(false)
	k.Open(tunnel.Request{Token: "b"})
	stream := wait.Receive(t, "a stream", streams)
	if n, err := stream.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("read %d bytes, %v of a kubelet API that does not listen; want an error", n, err)
	}
	wait.True(t, "the tunnel", func() bool {
		s := k.State()
		return s.Opened == 1 && s.Reason == "" && s.Tunnels == 1 && s.Streams == 0
	})
}

// TestPlus: what two kinds of tunnels have together, and why the one that is not open is not.
func TestPlus(t *testing.T) {
	ours := State{Tunnels: 1, Streams: 2, LinkStreams: 3, Opened: 4, Failed: 5, Carried: 6, Refused: 7, BytesIn: 8,
		BytesOut: 9, Reason: "ours"}
	want := State{Tunnels: 2, Streams: 4, LinkStreams: 6, Opened: 8, Failed: 10, Carried: 12, Refused: 14, BytesIn: 16,
		BytesOut: 18, Reason: "ours"}
	if got := ours.Plus(ours); got != want {
		t.Errorf("Plus = %+v, want %+v", got, want)
	}
	if got := ours.Plus(State{Reason: "theirs"}); got.Reason != "theirs" || got.Opened != 4 {
		t.Errorf("Plus = %+v, want the reason of the other one", got)
	}
}

// TestIdle: a tunnel without a stream is closed, one with a stream is not.
func TestIdle(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	dial, streams := clouds(t)
	k := run(t, Options{Backend: at(l.Addr().String()), Dial: dial, Idle: 20 * time.Millisecond})
	k.Open(tunnel.Request{Token: "a"})
	stream := wait.Receive(t, "a stream", streams)
	for i := range 5 { // each longer than the tunnel may be idle
		time.Sleep(30 * time.Millisecond)
		want := fmt.Sprint(i)
		if _, err := stream.Write([]byte(want)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 1)
		if _, err := io.ReadFull(stream, got); err != nil || string(got) != want {
			t.Fatalf("read %q, %v, want %q", got, err, want)
		}
	}
	_ = stream.Close()
	wait.True(t, "the idle tunnel to be closed", func() bool { return k.State().Tunnels == 0 })
}

// TestHalfClosed: a stream whose caller sends no more ends with its tunnel, also if the kubelet API sends nothing and
// does not close the connection.
func TestHalfClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial, streams := clouds(t)
	var node net.Conn
	k := run(t, Options{
		Backend: at(l.Addr().String()),
		Dial: func(ctx context.Context, token string) (net.Conn, error) {
			var err error
			node, err = dial(ctx, token)
			return node, err
		},
	})
	k.Open(tunnel.Request{Token: "a"})
	stream := wait.Receive(t, "a stream", streams)
	if err := tunnel.CloseWrite(stream); err != nil {
		t.Fatal(err)
	}
	api, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	if n, err := api.Read(make([]byte, 1)); n > 0 || err != io.EOF {
		t.Errorf("the kubelet API reads %d bytes, %v; want EOF", n, err)
	}
	if s := k.State(); s.Streams != 1 || s.Tunnels != 1 {
		t.Errorf("the state is %+v while the stream is half closed, want 1 stream of 1 tunnel", s)
	}
	_ = node.Close()
	wait.True(t, "the tunnel and its stream to end", func() bool {
		s := k.State()
		return s.Streams == 0 && s.Tunnels == 0
	})
}

// TestFlood: a cloud that asks for tunnels all the time gets a few.
func TestFlood(t *testing.T) {
	dial, _ := clouds(t)
	k := run(t, Options{Backend: at("127.0.0.1:1"), Dial: dial})
	for i := range 10000 {
		k.Open(tunnel.Request{Token: fmt.Sprint(i)})
	}
	wait.True(t, "the tunnels", func() bool { return k.State().Opened > 0 })
	if n := k.State().Opened; n > 3*requestBurst {
		t.Errorf("%d tunnels opened for 10,000 requests at once, want about %d", n, requestBurst)
	}
}
