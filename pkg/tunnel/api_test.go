package tunnel

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// apiCloud is the cloud's end of a connection for the API.
type apiCloud struct {
	*APIAcceptor
	streams chan net.Conn
	ended   chan error
}

func newAPICloud(t *testing.T, conn net.Conn, m *shares.Memory) *apiCloud {
	t.Helper()
	a, err := NewAPIAcceptor(conn, m)
	if err != nil {
		t.Fatal(err)
	}
	c := &apiCloud{a, make(chan net.Conn, 1024), make(chan error, 1)}
	go func() { c.ended <- a.Serve(func(s net.Conn) { c.streams <- s }) }()
	return c
}

// apiPair returns both ends of a connection for the API.
func apiPair(t *testing.T) (*APIOpener, *apiCloud) {
	t.Helper()
	cloud, node := tcpPair(t)
	o, err := NewAPIOpener(node)
	if err != nil {
		t.Fatal(err)
	}
	c := newAPICloud(t, cloud, shares.NewMemory())
	t.Cleanup(func() {
		_ = o.Close()
		wait.Receive(t, "the end of the cloud's end", c.ended)
	})
	return o, c
}

// TestAPI: bytes pass unchanged both ways. What the cloud wrote before it closed a stream reaches the node, and the end
// of a stream at the node ends what the cloud writes to it.
func TestAPI(t *testing.T) {
	o, c := apiPair(t)
	near, err := o.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	far := wait.Receive(t, "the stream", c.streams)
	data := make([]byte, 3<<20)
	_, _ = rand.Read(data) // never fails
	go func() {
		_, _ = near.Write(data)
	}()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(far, got); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("the cloud got other bytes, %v; want those that were sent", err)
	}
	go func() {
		_, _ = far.Write(data)
		_ = far.Close()
	}()
	if got, err := io.ReadAll(near); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("the node got %d bytes, %v; want the %d that were sent", len(got), err, len(data))
	}
	_ = near.Close()
	wait.True(t, "the stream to be gone", func() bool { return o.Streams() == 0 && c.Streams() == 0 })

	if near, err = o.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	far = wait.Receive(t, "the stream", c.streams)
	written := make(chan error, 1)
	go func() {
		_, err := io.Copy(far, zeros{})
		written <- err
	}()
	_ = near.Close()
	if err := wait.Receive(t, "the end of writing", written); err == nil {
		t.Error("the cloud writes without an error to a stream that the node has closed, want one")
	}
	_ = far.Close()
}

// TestAPIStreams: a node has no more than its streams. Its own end says so, and the cloud resets the first one over the
// limit alone.
func TestAPIStreams(t *testing.T) {
	t.Run("own end", func(t *testing.T) {
		o, c := apiPair(t)
		for range APIStreams {
			if _, err := o.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
			wait.Receive(t, "the stream", c.streams)
		}
		if _, err := o.Open(t.Context()); !errors.Is(err, ErrAPIStreams) {
			t.Errorf("Open = %v, want %v", err, ErrAPIStreams)
		}
	})
	t.Run("another end", func(t *testing.T) {
		cloud, node := tcpPair(t)
		c := newAPICloud(t, cloud, shares.NewMemory())
		hostile, err := yamux.Client(node, config(nodeWindow, 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		var first *yamux.Stream
		for range APIStreams {
			s, err := hostile.OpenStream(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = s
			}
		}
		var kept []net.Conn
		for range APIStreams {
			kept = append(kept, wait.Receive(t, "a stream", c.streams))
		}
		over, err := hostile.OpenStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := over.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("Read of a stream over the limit = %v, want an error that is not EOF", err)
		}
		if _, err := kept[0].Write([]byte("x")); err != nil {
			t.Errorf("write to a stream within the limit: %v", err)
		}
		if _, err := io.ReadFull(first, make([]byte, 1)); err != nil {
			t.Errorf("read of a stream within the limit: %v", err)
		}
		_ = hostile.Close()
		wait.Receive(t, "the end of the cloud's end", c.ended)
	})
}

// TestAPIUnclosed: a node that opens and resets streams faster than the cloud closes them loses the connection.
func TestAPIUnclosed(t *testing.T) {
	cloud, node := tcpPair(t)
	c := newAPICloud(t, cloud, shares.NewMemory())
	go func() { _, _ = io.Copy(io.Discard, node) }()
	for id := uint32(1); id < 4*apiUnclosed; id += 2 {
		for _, flag := range []byte{flagSYN, flagRST} {
			b := dataFrame(id, 0)
			b[headerType], b[headerFlags+1] = typeWindow, flag
			if _, err := node.Write(b); err != nil {
				break // it has ended
			}
		}
		if id <= 2*apiUnclosed-1 {
			wait.Receive(t, "a stream", c.streams) // which is not closed
		}
	}
	if err := wait.Receive(t, "the end of the cloud's end", c.ended); !errors.Is(err, errUnclosed) {
		t.Errorf("Serve = %v, want %v", err, errUnclosed)
	}
}

// TestAPIUnread: a node that fills all its streams, which nobody reads, takes no more memory than its share, whatever
// the size of its frames. The connection goes on.
func TestAPIUnread(t *testing.T) {
	for name, size := range map[string]int{"of 22 bytes": 22, "just above a power of two": 16<<10 + 1} {
		t.Run(name, func(t *testing.T) {
			m := shares.NewMemory()
			cloud, node := tcpPair(t)
			go func() { _, _ = io.Copy(io.Discard, node) }()
			c := newAPICloud(t, cloud, m)
			before, most := liveHeap(), int64(0)
			for id := uint32(1); id < 2*APIStreams; id += 2 {
				b := bytes.Buffer{}
				syn := dataFrame(id, 0)
				syn[headerType], syn[headerFlags+1] = typeWindow, flagSYN
				b.Write(syn)
				one := dataFrame(id, size)
				// Three times the share of a node, or all that the windows allow.
				for range min(apiWindow/size, 3*int(m.Share()/costOf(uint32(size)))/APIStreams) {
					b.Write(one)
				}
				if _, err := node.Write(b.Bytes()); err != nil {
					t.Fatal(err)
				}
				wait.Receive(t, "the stream", c.streams)
				if id%16 == 1 || id == 2*APIStreams-1 {
					b = bytes.Buffer{}
					most = max(most, liveHeap()-before)
				}
			}
			if most > m.Share()+m.Share()/4 {
				t.Errorf("unread frames take %d KiB, want at most about the share of a node, %d", most>>10,
					m.Share()>>10)
			}
			t.Logf("%d KiB, counted %d KiB", most>>10, m.Taken()>>10)
			select {
			case err := <-c.ended:
				t.Errorf("the connection has ended: %v; want it to go on", err)
			default:
			}
			_ = c.Close()
			wait.Receive(t, "the end of the cloud's end", c.ended)
			if m.Taken() != 0 {
				t.Errorf("%d bytes are counted after the end, want none", m.Taken())
			}
		})
	}
}

// TestAPIUnreadCounted: memory of data is returned when it is read, and when the stream is closed by either end.
func TestAPIUnreadCounted(t *testing.T) {
	cloud, node := tcpPair(t)
	m := shares.NewMemory()
	c := newAPICloud(t, cloud, m)
	o, err := NewAPIOpener(node)
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(near, far net.Conn) error{
		"read":  func(_, far net.Conn) error { _, err := io.ReadFull(far, make([]byte, 1000)); return err },
		"close": func(_, far net.Conn) error { return far.Close() },
		"reset": func(near, far net.Conn) error { return errors.Join(near.Close(), far.Close()) },
	} {
		near, err := o.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		far := wait.Receive(t, "the stream", c.streams)
		if _, err := near.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		wait.True(t, "the data to be counted", func() bool { return m.Taken() > 1000 })
		if err := end(near, far); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wait.True(t, "the memory to be returned after "+name, func() bool { return m.Taken() == 0 })
	}
	_ = o.Close()
	wait.Receive(t, "the end of the cloud's end", c.ended)
}

// TestAPISilence: the connection of a node that sends nothing ends; one with a ping every minute does not.
func TestAPISilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud, node := net.Pipe()
		c := newAPICloud(t, cloud, shares.NewMemory())
		o, err := NewAPIOpener(node)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			time.Sleep(APIPing)
			if err := o.Ping(); err != nil {
				t.Fatalf("Ping = %v, want an answer", err)
			}
		}
		began := time.Now()
		if err := <-c.ended; err == nil {
			t.Error("Serve = nil, want why the connection has ended")
		}
		if after := time.Since(began); after != apiSilence {
			t.Errorf("the connection has ended %v after the last ping, want %v", after, apiSilence)
		}
		<-o.Closed()
	})
}

// TestAPIEvict: a connection that another node's data drives out ends at once.
func TestAPIEvict(t *testing.T) {
	o, c := apiPair(t)
	c.Evict()
	wait.Closed(t, "the end at the node", o.Closed())
}

// FuzzAPIAcceptor: whatever a node sends, the cloud's end ends, or waits for more, and returns all memory.
func FuzzAPIAcceptor(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 7})
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0})
	f.Add(binary.BigEndian.AppendUint32([]byte{0, 0, 0, 9, 0, 0, 0, 1}, 1<<31))
	f.Fuzz(func(t *testing.T, data []byte) {
		cloud, node := net.Pipe()
		m := shares.NewMemory()
		a, err := NewAPIAcceptor(cloud, m)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = a.Serve(func(net.Conn) {})
		}()
		go func() { _, _ = io.Copy(io.Discard, node) }()
		_, _ = node.Write(data)
		_ = node.Close()
		<-ended
		if m.Taken() != 0 {
			t.Errorf("%d bytes are counted after the end, want none", m.Taken())
		}
	})
}
