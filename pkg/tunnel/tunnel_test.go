package tunnel

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// pair returns the ends of a tunnel, and the result of Run.
func pair(t *testing.T) (*Opener, *Acceptor, <-chan error) {
	t.Helper()
	cloud, node := tcpPair(t)
	o, err := NewOpener(cloud, shares.NewMemory())
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewAcceptor(node)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- o.Run() }()
	t.Cleanup(func() {
		_ = o.Close()
		_ = a.Close()
	})
	return o, a, ended
}

// tcpPair returns the ends of a TCP connection.
func tcpPair(t *testing.T) (*net.TCPConn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	one, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = one.Close()
		_ = other.Close()
	})
	return one.(*net.TCPConn), other.(*net.TCPConn)
}

// joined returns the caller's and the server's end of a connection that goes through a tunnel.
func joined(t *testing.T, o *Opener, a *Acceptor) (caller, server *net.TCPConn) {
	t.Helper()
	caller, in := tcpPair(t)
	out, server := tcpPair(t)
	stream, _, err := o.Open()
	if err != nil {
		t.Fatal(err)
	}
	go Join(in, stream, nil, nil)
	accepted, err := a.Accept()
	if err != nil {
		t.Fatal(err)
	}
	go Join(accepted, out, nil, nil)
	return caller, server
}

// TestJoin: bytes pass unchanged both ways, and the end of one direction leaves the other one open.
func TestJoin(t *testing.T) {
	o, a, _ := pair(t)
	caller, server := joined(t, o, a)
	data := make([]byte, 3<<20)
	_, _ = rand.Read(data) // never fails
	go func() {
		_, _ = caller.Write(data)
		_ = caller.CloseWrite()
	}()
	got, err := io.ReadAll(server)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("the server got %d bytes, %v; want the %d that were sent", len(got), err, len(data))
	}
	go func() {
		_, _ = server.Write(data)
		_ = server.Close()
	}()
	got, err = io.ReadAll(caller)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("the caller got %d bytes, %v; want the %d that were sent", len(got), err, len(data))
	}
	wait.True(t, "the stream to be gone", func() bool { return o.Streams() == 0 && a.Streams() == 0 })
}

// TestSlowReader: a stream that is not read holds up no other one.
func TestSlowReader(t *testing.T) {
	o, a, _ := pair(t)
	slow, server := joined(t, o, a)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_, _ = io.Copy(server, zeros{}) // until the connection ends
	}()
	go func() { // as a kubelet API does
		_, _ = io.Copy(io.Discard, server)
		_ = server.Close()
	}()
	for range 3 {
		caller, server := joined(t, o, a)
		if _, err := caller.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(server, got); err != nil || string(got) != "hello" {
			t.Errorf("read %q, %v, want hello", got, err)
		}
		_ = caller.Close()
	}
	_ = slow.Close()
	wait.Closed(t, "the writer to be told that nobody reads", stopped)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestTunnelEnds: the end of the tunnel ends its connections, on both sides.
func TestTunnelEnds(t *testing.T) {
	o, a, ended := pair(t)
	caller, server := joined(t, o, a)
	_ = a.Close()
	if err := wait.Receive(t, "the cloud's end", ended); err == nil {
		t.Error("Run returned no error, want why the tunnel ended")
	}
	for name, c := range map[string]net.Conn{"caller": caller, "server": server} {
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("%s read %d bytes, %v; want an error", name, n, err)
		}
	}
}

// streamPair returns both ends of a stream.
func streamPair(t *testing.T, o *Opener, a *Acceptor) (near, far net.Conn) {
	t.Helper()
	near, _, err := o.Open()
	if err != nil {
		t.Fatal(err)
	}
	if far, err = a.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// TestEndIsNoEOF: only the end of a direction is io.EOF. A tunnel or a stream that breaks off returns another error.
func TestEndIsNoEOF(t *testing.T) {
	for name, tc := range map[string]struct {
		end func(a *Acceptor, far net.Conn) error
		eof bool
	}{
		"direction": {func(_ *Acceptor, far net.Conn) error { return CloseWrite(far) }, true},
		"stream":    {func(_ *Acceptor, far net.Conn) error { return far.Close() }, false},
		"tunnel":    {func(a *Acceptor, _ net.Conn) error { return a.Close() }, false},
	} {
		o, a, _ := pair(t)
		near, far := streamPair(t, o, a)
		if err := tc.end(a, far); err != nil {
			t.Fatal(err)
		}
		if _, err := near.Read(make([]byte, 1)); err == nil || (err == io.EOF) != tc.eof {
			t.Errorf("the %s has ended: Read = %v, want EOF: %v", name, err, tc.eof)
		}
	}
}

// bubblePair returns both ends of a tunnel, for a simulated clock.
func bubblePair(t *testing.T) (*Opener, *Acceptor) {
	t.Helper()
	cloud, node := net.Pipe()
	o, err := NewOpener(cloud, shares.NewMemory())
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewAcceptor(node)
	if err != nil {
		t.Fatal(err)
	}
	return o, a
}

// TestHalfClosed: a stream that one end has closed for writing carries the other direction for as long as it needs.
func TestHalfClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, a := bubblePair(t)
		defer a.Close()
		defer o.Close()
		near, far := streamPair(t, o, a)
		if err := CloseWrite(near); err != nil {
			t.Fatal(err)
		}
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("Read = %v, want EOF", err)
		}
		for _, want := range []string{"a", "b", "c"} {
			time.Sleep(time.Hour)
			got := make([]byte, 1)
			if _, err := far.Write([]byte(want)); err != nil {
				t.Fatalf("Write to a stream that is half closed: %v", err)
			}
			if _, err := io.ReadFull(near, got); err != nil || string(got) != want {
				t.Errorf("read %q, %v, want %q", got, err, want)
			}
		}
		if err := CloseWrite(far); err != nil {
			t.Error(err)
		}
		if rest, err := io.ReadAll(near); err != nil || len(rest) > 0 {
			t.Errorf("read %q, %v at the end, want nothing", rest, err)
		}
		if o.Streams() > 0 || a.Streams() > 0 {
			t.Errorf("%d and %d streams after both directions have ended, want none", o.Streams(), a.Streams())
		}
	})
}

// TestCallerStays: a caller that does not close its connection when the node has ended its direction is cut off after a
// minute, at both ends. Until then it may send.
func TestCallerStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o1, a1 := bubblePair(t) // stands for the caller's connection, which needs to be half closed, too
		defer o1.Close()
		defer a1.Close()
		o2, a2 := bubblePair(t)
		defer o2.Close()
		defer a2.Close()
		caller, callerEnd := streamPair(t, o1, a1)
		nodeEnd, server := streamPair(t, o2, a2)
		joined := make(chan struct{})
		go func() {
			defer close(joined)
			Join(callerEnd, nodeEnd, nil, nil)
		}()
		if err := CloseWrite(server); err != nil {
			t.Fatal(err)
		}
		if _, err := caller.Read(make([]byte, 1)); err != io.EOF {
			t.Fatalf("the caller reads %v, want EOF", err)
		}
		time.Sleep(callerTimeout - time.Second)
		got := make([]byte, 4)
		if _, err := caller.Write([]byte("more")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(server, got); err != nil || string(got) != "more" {
			t.Fatalf("the server reads %q, %v, want more", got, err)
		}
		time.Sleep(2 * time.Second)
		<-joined
		synctest.Wait()
		if _, err := caller.Write([]byte("too late")); err == nil {
			t.Error("the caller writes after a minute, want an error")
		}
		if o2.Streams() > 0 || a2.Streams() > 0 {
			t.Errorf("%d and %d streams after a minute, want none", o2.Streams(), a2.Streams())
		}
	})
}

// TestFailedDirection: a connection that fails in one direction ends at both ends of the tunnel at once, whatever its
// other end does. Here the other end has seen the end of its caller's direction, no longer reads, and writes.
func TestFailedDirection(t *testing.T) {
	o, a, _ := pair(t)
	caller, server := joined(t, o, a)
	if err := caller.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("the server reads %v, want EOF", err)
	}
	if o.Streams() != 1 || a.Streams() != 1 {
		t.Fatalf("%d and %d streams while one direction is open, want one", o.Streams(), a.Streams())
	}
	_ = caller.Close()
	written := make(chan error, 1)
	go func() {
		_, err := io.Copy(server, zeros{})
		written <- err
	}()
	if err := wait.Receive(t, "the server's write to fail", written); err == nil {
		t.Error("the server writes without an error to a caller that is gone, want one")
	}
	wait.True(t, "the stream to be gone", func() bool { return o.Streams() == 0 && a.Streams() == 0 })
}

// TestNothingAccepted: a tunnel whose node accepts no streams is closed, and callers do not wait for it.
func TestNothingAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud, node := net.Pipe()
		o, err := NewOpener(cloud, shares.NewMemory())
		if err != nil {
			t.Fatal(err)
		}
		a, err := NewAcceptor(node)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		for range backlog {
			if _, _, err := o.Open(); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := o.Open(); err == nil || o.Run() == nil {
			t.Errorf("Open = %v while %d streams wait, want an error, and the tunnel closed", err, backlog)
		}
	})
}

// TestNodeOpensStream: a node that opens a stream loses the tunnel.
func TestNodeOpensStream(t *testing.T) {
	cloud, node := tcpPair(t)
	o, err := NewOpener(cloud, shares.NewMemory())
	if err != nil {
		t.Fatal(err)
	}
	hostile, err := yamux.Server(node, config(nodeWindow, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer hostile.Close()
	if _, err := hostile.OpenStream(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := o.Run(); !errors.Is(err, ErrStream) {
		t.Errorf("Run = %v, want %v", err, ErrStream)
	}
}

// FuzzOpener: whatever a node sends, the cloud's end ends, or waits for more, and holds no more than its windows.
func FuzzOpener(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0}) // opens stream 2
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 1, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9})
	f.Add([]byte{0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		cloud, node := net.Pipe()
		o, err := NewOpener(cloud, shares.NewMemory())
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = o.Run()
		}()
		go func() { _, _ = io.Copy(io.Discard, node) }()
		go func() {
			if s, _, err := o.Open(); err == nil {
				_, _ = io.Copy(io.Discard, s)
			}
		}()
		_, _ = node.Write(data)
		_ = node.Close()
		<-ended
	})
}

func TestParseRequest(t *testing.T) {
	want := Request{Token: "abc", Address: "192.0.2.1"}
	if got, err := ParseRequest(want.Message()); err != nil || got != want {
		t.Errorf("ParseRequest = %+v, %v, want %+v", got, err, want)
	}
	for content, text := range map[string]string{
		`{}`:       "its token has 0 bytes",
		`"x"`:      "cannot unmarshal",
		`{"token"`: "unexpected end",
		`{"token":"` + strings.Repeat("x", 65) + `"}`: "its token has 65 bytes",
		`{"token":"a","address":"example.com"}`:       "not an IP address",
	} {
		m := model.New(Source, Group, Operation, Resource, json.RawMessage(content))
		if _, err := ParseRequest(m); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("ParseRequest of %.40s = %v, want %q", content, err, text)
		}
	}
}
