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

	"github.com/hashicorp/yamux"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// pair returns the ends of a tunnel, and the result of Run.
func pair(t *testing.T) (*Opener, *Acceptor, <-chan error) {
	t.Helper()
	cloud, node := tcpPair(t)
	o, err := NewOpener(cloud)
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
	stream, err := o.Open()
	if err != nil {
		t.Fatal(err)
	}
	go Join(in, stream)
	accepted, err := a.Accept()
	if err != nil {
		t.Fatal(err)
	}
	go Join(accepted, out)
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

// TestEndIsNoEOF: a tunnel that ends in the middle of what a stream carries is not taken for the end of that.
func TestEndIsNoEOF(t *testing.T) {
	o, a, _ := pair(t)
	near, err := o.Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := near.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	far, err := a.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := near.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the stream has ended: Read = %v, want EOF", err)
	}
	if near, err = o.Open(); err != nil {
		t.Fatal(err)
	}
	_ = a.Close()
	if _, err := near.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("the tunnel has ended: Read = %v, want an error that is not EOF", err)
	}
}

// TestNodeOpensStream: a node that opens a stream loses the tunnel.
func TestNodeOpensStream(t *testing.T) {
	cloud, node := tcpPair(t)
	o, err := NewOpener(cloud)
	if err != nil {
		t.Fatal(err)
	}
	hostile, err := yamux.Server(node, config(nodeWindow))
	if err != nil {
		t.Fatal(err)
	}
	defer hostile.Close()
	if _, err := hostile.OpenStream(); err != nil {
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
		o, err := NewOpener(cloud)
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
			if s, err := o.Open(); err == nil {
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
