package apierror

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// pipeListener accepts one connection.
type pipeListener struct{ conns chan net.Conn }

func (l pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l pipeListener) Close() error   { return nil }
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// TestLimit: a client of HTTP/2 that takes nothing of its answer has it for a time, and the request ends then.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		l := pipeListener{make(chan net.Conn, 1)}
		l.conns <- server
		srv := &http.Server{
			Protocols: &http.Protocols{},
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				Write(w, r, Unauthorized())
			}),
		}
		srv.Protocols.SetUnencryptedHTTP2(true)
		served := make(chan error, 1)
		go func() { served <- srv.Serve(l) }()
		toServer := make(chan []byte, 100)
		go func() {
			for data := range toServer {
				_, _ = client.Write(data)
			}
		}()
		send := func(write func(*http2.Framer) error) {
			var b bytes.Buffer
			if err := write(http2.NewFramer(&b, nil)); err != nil {
				t.Error(err)
			}
			toServer <- b.Bytes()
		}
		toServer <- []byte(http2.ClientPreface)
		send(func(f *http2.Framer) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		})
		var header bytes.Buffer
		enc := hpack.NewEncoder(&header)
		for _, h := range [][2]string{
			{":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {":authority", "a"},
		} {
			if err := enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
				t.Fatal(err)
			}
		}
		send(func(f *http2.Framer) error {
			return f.WriteHeaders(http2.HeadersFrameParam{
				StreamID:      1,
				BlockFragment: header.Bytes(),
				EndStream:     true,
				EndHeaders:    true,
			})
		})
		began, frames := time.Now(), http2.NewFramer(io.Discard, client)
		for {
			frame, err := frames.ReadFrame()
			if err != nil {
				t.Fatalf("the connection ends: %v, want the stream to be reset", err)
			}
			if _, ok := frame.(*http2.RSTStreamFrame); ok {
				break
			}
			if time.Since(began) > 2*answerTime {
				t.Fatal("the stream is not reset")
			}
		}
		if after := time.Since(began); after != answerTime {
			t.Errorf("the stream is reset after %v, want %v", after, answerTime)
		}
		_ = client.Close()
		close(toServer)
		close(l.conns)
		<-served
		_ = srv.Close()
	})
}
