package shares

import (
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// record returns the first bytes of a client of TLS: a record of a type with so many bytes.
func record(kind byte, length int) []byte {
	return append([]byte{kind, 3, 1, byte(length >> 8), byte(length)}, make([]byte, length)...)
}

// TestReadHello: what is waited for is one record, and no more than 4 KiB of it.
func TestReadHello(t *testing.T) {
	for name, tc := range map[string]struct {
		sent []byte
		want int
		err  error
	}{
		"nothing":               {nil, 0, io.EOF},
		"5 bytes":               {record(22, 300)[:5], 0, io.EOF},
		"all but one":           {record(22, 300)[:304], 0, io.EOF},
		"a ClientHello":         {record(22, 300), 305, nil},
		"a large one":           {record(22, 9000), helloBytes, nil},
		"an alert":              {record(21, 2), 7, nil},
		"HTTP":                  {[]byte("GET / HTTP/1.1\r\n"), 5, nil},
		"the beginning of HTTP": {[]byte("GET"), 0, io.EOF},
	} {
		for _, r := range []io.Reader{
			strings.NewReader(string(tc.sent)), iotest.OneByteReader(strings.NewReader(string(tc.sent))),
		} {
			got, err := readHello(r)
			if err != tc.err || len(got) < tc.want || err == nil && !slices.Equal(got, tc.sent[:len(got)]) {
				t.Errorf("%s: %d bytes, %v; want %d, %v", name, len(got), err, tc.want, tc.err)
			}
			if len(got) > max(tc.want, len(tc.sent)) || cap(got) > 2*max(len(tc.sent), helloFirst) {
				t.Errorf("%s: %d bytes take %d, of %d that were sent", name, len(got), cap(got), len(tc.sent))
			}
		}
	}
}

// hello is what a client with a complete ClientHello sends.
func hello() []byte { return record(22, 100) }

// helloFixture is a listener that waits for a ClientHello, and the connections that it has returned.
type helloFixture struct {
	t *testing.T
	*Conns
	queue chan net.Conn
	got   chan net.Conn
}

func newHelloFixture(t *testing.T, size, share int) *helloFixture {
	f := &helloFixture{
		t: t, queue: make(chan net.Conn), got: make(chan net.Conn, 100),
		Conns: New(Options{Size: Fixed(size), Share: share, Hello: 10 * time.Second}),
	}
	l := f.Listen(&pipes{queue: f.queue, closed: make(chan struct{})})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.got <- c
		}
	}()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		<-ended
		for len(f.got) > 0 {
			_ = (<-f.got).Close()
		}
		if all, silent := f.Counts(); all != 0 || silent != 0 || len(f.sources) != 0 {
			t.Errorf("%d connections have places and %d are silent after the end, want none", all, silent)
		}
	})
	return f
}

// connect makes a connection from an address, which sends something. It reports whether the connection is closed.
func (f *helloFixture) connect(ip string, sends []byte) (closed func() bool) {
	far, near := net.Pipe()
	f.t.Cleanup(func() { _ = far.Close() })
	f.queue <- from{near, ip}
	synctest.Wait()
	_ = far.SetDeadline(time.Now().Add(time.Second)) // a pipe's never fails
	_, _ = far.Write(sends)                          // fails if the connection is refused
	synctest.Wait()
	return func() bool {
		_ = far.SetDeadline(time.Now().Add(time.Nanosecond))
		_, err := far.Read(make([]byte, 1))
		return err == io.EOF
	}
}

// TestSilent: a connection is returned when its ClientHello has arrived, with the bytes that it has sent; without one
// it is closed after 10 s, however it divides what it sends.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newHelloFixture(t, 10, 10)
		nothing, some := f.connect("192.0.2.1", nil), f.connect("192.0.2.1", hello()[:20])
		f.connect("192.0.2.2", hello())
		if all, silent := f.Counts(); all != 3 || silent != 2 || len(f.got) != 1 {
			t.Fatalf("%d connections, %d silent, %d returned; want 3, 2, 1", all, silent, len(f.got))
		}
		c := <-f.got
		got := make([]byte, len(hello()))
		if _, err := io.ReadFull(c, got); err != nil || !slices.Equal(got, hello()) {
			t.Errorf("read %v, %v, want the ClientHello", got, err)
		}
		time.Sleep(9 * time.Second)
		if nothing() || some() {
			t.Error("a silent connection is closed within 9 s, want 10")
		}
		time.Sleep(2 * time.Second)
		if !nothing() || !some() {
			t.Error("a connection without a ClientHello is open after 11 s")
		}
		Of(c).Done()
		if all, _ := f.Counts(); all != 0 {
			t.Errorf("%d connections have places after the only one left was done, want none", all)
		}
		_ = c.Close()
	})
}

// TestSilentGoFirst: where a source has its share, or all places are taken, a new connection takes the place of the
// oldest silent one, and of none that has sent its ClientHello.
func TestSilentGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newHelloFixture(t, 4, 3)
		started := f.connect("192.0.2.1", hello())
		first, second := f.connect("192.0.2.1", nil), f.connect("192.0.2.1", nil)
		good := f.connect("192.0.2.1", hello())
		if !first() || second() || started() || good() {
			t.Fatalf("closed are the first silent one %v, the second %v, those with a ClientHello %v, %v; want the "+
				"first",
				first(), second(), started(), good())
		}
		f.connect("192.0.2.2", hello())
		other := f.connect("192.0.2.3", hello())
		if !second() || started() || good() || other() {
			t.Fatalf("all places are taken: closed are the silent one %v, others %v, %v, %v; want the silent one",
				second(), started(), good(), other())
		}
		if third := f.connect("192.0.2.2", hello()); third() || !started() {
			t.Errorf("without a silent one: closed are the new one %v, the oldest of the source that has most %v; "+
				"want the oldest", third(), started())
		}
		if fourth := f.connect("192.0.2.2", hello()); !fourth() {
			t.Error("a connection of a source that has most is open, want it closed")
		}
	})
}

// TestManySilent: 8,000 silent connections of one source, and of many, keep nobody away, and take no more places than
// there are.
func TestManySilent(t *testing.T) {
	for name, ip := range map[string]func(i int) string{
		"of one source":   func(int) string { return "192.0.2.1" },
		"of many sources": func(i int) string { return net.IPv4(10, 0, byte(i>>8), byte(i)).String() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const size, share = 2000, 1000
				f := newHelloFixture(t, size, share)
				for i := range 8000 {
					far, near := net.Pipe()
					f.t.Cleanup(func() { _ = far.Close() })
					f.queue <- from{near, ip(i)}
				}
				synctest.Wait()
				if all, _ := f.Counts(); all > size {
					t.Errorf("%d connections have places, want at most %d", all, size)
				}
				for _, ip := range []string{"192.0.2.1", "192.0.2.2"} {
					if f.connect(ip, hello())() || len(f.got) != 1 {
						t.Errorf("a client at %s that says something is kept away", ip)
						continue
					}
					_ = (<-f.got).Close()
				}
			})
		})
	}
}
