package wire

import (
	"bufio"
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// pipeWriter is the answer to an upgrade request, over a pipe.
type pipeWriter struct {
	conn   net.Conn
	header http.Header
}

func (w *pipeWriter) Header() http.Header         { return w.header }
func (w *pipeWriter) Write(p []byte) (int, error) { return w.conn.Write(p) }
func (w *pipeWriter) WriteHeader(int)             {}
func (w *pipeWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return w.conn, bufio.NewReadWriter(bufio.NewReaderSize(w.conn, buffer), bufio.NewWriterSize(w.conn, buffer)), nil
}

// FuzzFrames: whatever an edge sends after its handshake, reading it ends, within the limit and without a panic.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0x81, 0x85, 0, 0, 0, 0, 'h', 'e', 'l', 'l', 'o'}, false)
	f.Add([]byte{0x89, 0x80, 0, 0, 0, 0, 0x88, 0x82, 0, 0, 0, 0, 3, 0xe8}, false)
	f.Add([]byte{0xc1, 0x87, 0, 0, 0, 0, 0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00}, true)
	f.Add([]byte{0x81, 0xff, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0}, false)
	f.Add(append([]byte{0x81, 0xa1, 0, 0, 0, 0}, `{"header":{"msg_id":"a"},"route":{}}`[:33]...), false)
	bomb := deflated(f, []byte(`{"header":{"msg_id":"a"},"content":"`+strings.Repeat("x", 4000)+`"}`))
	f.Add(bytes.Repeat(clientFrame(0xc1, bomb), 200), true)
	f.Add(bytes.Repeat(clientFrame(0x89, nil), 2_000), false)
	f.Fuzz(func(t *testing.T, data []byte, deflate bool) {
		near, far := net.Pipe()
		r, err :=
			http.ReadRequest(
				bufio.NewReader(
					strings.NewReader("GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
						"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " +
						"AAAAAAAAAAAAAAAAAAAAAA==\r\nEdgecore-Features: " +
						"deflate\r\nSec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover; " +
						"server_no_context_takeover\r\n\r\n")))
		if err != nil {
			t.Fatal(err)
		}
		drained := make(chan struct{})
		go func() {
			defer close(drained)
			_, _ = io.Copy(io.Discard, near)
		}()
		c, err := AcceptWebSocket(&pipeWriter{far, http.Header{}}, r,
			AcceptOptions{
				Limits: Limits{MaxMessage: 4096, ReadTimeout: 5 * time.Second}, Features: Features{Deflate: deflate},
			})
		if err != nil {
			t.Fatal(err)
		}
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			_, _ = near.Write(data)
			_ = near.Close()
		}()
		// No message is larger than 4096 bytes, and the smallest takes 7 bytes of a link: while it is compressed it
		// makes a buffer of its own, and what came behind it is copied.
		membound.Check(t, membound.Linear(len(data), 1024), func() {
			for range len(data) + 1 {
				m, e := c.Read()
				if err = e; err != nil {
					break
				}
				if m.Header.ID == "" || len(m.Content) > 4096 {
					t.Errorf("read %+v, want an ID and at most 4096 bytes", m)
				}
			}
		})
		if err == nil {
			t.Errorf("%d messages without an error, want fewer than bytes", len(data)+1)
		}
		_ = c.Close(CloseNormal, "")
		_ = near.Close()
		<-wrote
		<-drained
	})
}

// deflated compresses a message as WebSocket's extension does.
func deflated(t testing.TB, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte(tail[:4]))
}

// FuzzInflate: what a compressed message takes follows from the limit of a message, not from what it would become.
func FuzzInflate(f *testing.F) {
	const limit = 64 << 10
	f.Add(deflated(f, []byte(`{"header":{"msg_id":"a"}}`)))
	f.Add(deflated(f, make([]byte, limit)))
	f.Add(deflated(f, make([]byte, 16<<20)))
	f.Add(deflated(f, deflated(f, make([]byte, 16<<20))))
	f.Add(bytes.Repeat([]byte{0, 0, 0, 0xff, 0xff}, 2_000)) // blocks of nothing
	f.Fuzz(func(t *testing.T, data []byte) {
		a := &arrivals{conn: &wsConn{limits: Limits{MaxMessage: limit}}, buffers: &ReadBuffers{}}
		// The buffer doubles until it holds a message of the limit, and has room for more.
		membound.Check(t, membound.Base+6*limit, func() {
			out, err := a.inflate(data)
			if len(out) > limit || err != nil && out != nil {
				t.Errorf("inflated to %d bytes, %v; want at most %d, or an error", len(out), err, limit)
			}
		})
	})
}

func FuzzHeaderMessage(f *testing.F) {
	f.Add([]byte(`{"Node_id":["edge1"],"Project_id":["p"],"Edgecore-Features":["lease,inventory"]}`))
	f.Add([]byte(`{"a":null,"":[""]}`))
	f.Add([]byte(membound.Repeat(`{`, `"a":[]`, `,`, `}`, maxHeader)))
	f.Add([]byte(membound.Repeat(`{`, `"a":[""]`, `,`, `}`, maxHeader)))
	f.Add([]byte(membound.Repeat(`{"Edgecore-Features":["`, `lease`, `,`, `"]}`, maxHeader)))
	for _, text := range membound.JSON(`{"a":`, `}`, maxHeader) {
		f.Add([]byte(text))
	}
	var names strings.Builder
	names.WriteString(`{"":[""]`)
	for i := range 4000 {
		fmt.Fprintf(&names, `,"%d":[""]`, i)
	}
	f.Add([]byte(names.String() + `}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		m := message(1)
		m.Route.Operation, m.Route.Resource, m.Content = headerName, headerName, content
		var header http.Header
		var err error
		// An empty name or value is 3 bytes long and becomes a string, in lists and maps that double; read once and
		// then copied into a header.
		membound.Check(t, membound.Linear(len(content), 128), func() { header, err = readHeader(m) })
		if err != nil {
			return
		}
		if got := ParseFeatures(header); got.And(AllFeatures()) != got {
			t.Errorf("features = %v, want none that are unknown", got)
		}
	})
}
