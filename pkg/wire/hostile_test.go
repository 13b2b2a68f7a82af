package wire

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestTooLarge: a message above the limit is not sent; one that comes ends the link with a reason that arrives.
func TestTooLarge(t *testing.T) {
	for _, f := range []Features{{}, {Deflate: true}} {
		cloud := newCloud(t, AcceptOptions{Limits: Limits{MaxMessage: 64 << 10}, Features: f})
		edge, far := cloud.pair(t, cloud.addr, DialOptions{Features: f})
		_, end := reading(far)
		_, edgeEnd := reading(edge)
		var large *TooLarge
		if err := edge.Write(message(2 << 20)); !errors.As(err, &large) || large.Limit != patient.MaxMessage {
			t.Errorf("err = %v, want *TooLarge of this end", err)
		}
		if err := edge.Write(message(60 << 10)); err != nil {
			t.Errorf("after one that was too large: %v", err)
		}
		wrote := make(chan error, 1)
		go func() { wrote <- edge.Write(message(512 << 10)) }() // a bomb of 2 KB when compressed
		err := <-end
		if !errors.As(err, &large) || large.Limit != 64<<10 {
			t.Fatalf("%v: err = %v, want *TooLarge", f, err)
		}
		_ = far.Close(CloseCode(err))
		var closed *Closed
		if err := <-edgeEnd; !errors.As(err, &closed) || closed.Code != CloseTooLarge {
			t.Errorf("%v: the sender learns %v, want code %d", f, err, CloseTooLarge)
		}
		<-wrote // it may have been done before
	}
}

// TestTooLargeReachesSender: a sender that is not done hears the reason: what it still sends is read, so that nothing
// is reset.
func TestTooLargeReachesSender(t *testing.T) {
	cloud := newCloud(t, AcceptOptions{Limits: patient})
	dialer := websocket.Dialer{TLSClientConfig: cloud.ca.ClientTLS(t, "x")}
	ws, resp, err := dialer.Dial("wss://"+cloud.addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	defer ws.Close()
	ws.SetCloseHandler(func(int, string) error { return nil }) // no answer, which would be reset
	far := <-cloud.conns
	_, end := reading(far)
	if _, err := ws.NetConn().Write([]byte{0x81, 0xff, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0}); err != nil { // of 1 GB
		t.Fatal(err)
	}
	err = <-end
	if _, err := ws.NetConn().Write(make([]byte, 16<<10)); err != nil {
		t.Fatal(err)
	}
	_ = far.Close(CloseCode(err))
	_ = ws.SetReadDeadline(time.Now().Add(wait.Max()))
	var closed *websocket.CloseError
	if _, _, err := ws.ReadMessage(); !errors.As(err, &closed) || closed.Code != CloseTooLarge {
		t.Errorf("the sender learns %v, want code %d", err, CloseTooLarge)
	}
	if _, err := ws.NetConn().Read(make([]byte, 1)); !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		t.Errorf("and then %v, want the end", err)
	}
}

// TestHostileFrames: what is no message ends the link with a reason.
func TestHostileFrames(t *testing.T) {
	raw := func(frame ...byte) func(*websocket.Conn) error {
		return func(ws *websocket.Conn) error {
			_, err := ws.NetConn().Write(frame)
			return err
		}
	}
	text := func(s string) func(*websocket.Conn) error {
		return func(ws *websocket.Conn) error { return ws.WriteMessage(websocket.TextMessage, []byte(s)) }
	}
	for name, send := range map[string]func(*websocket.Conn) error{
		"no JSON":           text("hello"),
		"empty":             text(""),
		"deep":              text(strings.Repeat("[", 100000)),
		"no id":             text("{}"),
		"bad opcode":        raw(0x83, 0x80, 0, 0, 0, 0),
		"not masked":        raw(0x81, 0x02, '{', '}'),
		"reserved bits":     raw(0xb1, 0x80, 0, 0, 0, 0),
		"long control":      raw(0x89, 0xfe, 0xff, 0xff, 0, 0, 0, 0),
		"stray fragment":    raw(0x80, 0x80, 0, 0, 0, 0),
		"not compressed":    raw(0xc1, 0x84, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff),
		"huge, 8 bytes":     raw(0x81, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0),
		"negative length":   raw(0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0),
		"close, 1 byte":     raw(0x88, 0x81, 0, 0, 0, 0, 1),
		"close, wrong code": raw(0x88, 0x82, 0, 0, 0, 0, 0, 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // Close waits for the peer's answer, which does not come
			cloud := newCloud(t, AcceptOptions{Limits: patient, Features: AllFeatures()})
			dialer := websocket.Dialer{TLSClientConfig: cloud.ca.ClientTLS(t, "x"), EnableCompression: true}
			ws, resp, err := dialer.Dial("wss://"+cloud.addr, http.Header{HeaderFeatures: {"deflate"}})
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			defer ws.Close()
			ws.EnableWriteCompression(false)
			far := <-cloud.conns
			defer far.Close(CloseNormal, "")
			if err := send(ws); err != nil {
				t.Fatal(err)
			}
			_, end := reading(far)
			err = wait.Receive(t, "the link to end", end)
			var large *TooLarge
			var bad *Malformed
			var closed *Closed
			if !errors.As(err, &large) && !errors.As(err, &bad) && !errors.As(err, &closed) {
				t.Errorf("link ended with %v (%T), want *TooLarge, *Malformed or *Closed", err, err)
			}
			code, reason := CloseCode(err)
			_ = far.Close(code, reason)
			_ = ws.SetReadDeadline(time.Now().Add(wait.Max()))
			_, _, err = ws.ReadMessage()
			var got *websocket.CloseError
			if !errors.As(err, &got) || got.Code == websocket.CloseAbnormalClosure {
				t.Errorf("the peer learns %v, want a close frame", err)
			}
		})
	}
}
