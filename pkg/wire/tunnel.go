package wire

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
)

const (
	// tunnelBuffer is the size of the buffers of a tunnel's WebSocket, and of its largest messages.
	tunnelBuffer = 16 << 10
	// tunnelMessage is the largest message of a tunnel that is read.
	tunnelMessage = 64 << 10
	// tunnelWrite is how long each tunnelBuffer of bytes may take to leave.
	tunnelWrite = 15 * time.Second
)

// DialTunnel connects to the cloud for a stream of bytes instead of messages: a tunnel that the cloud has asked for
// with a token. A refused handshake is *Refused. Of the options, Limits, Features and Instance are not used.
func DialTunnel(ctx context.Context, o DialOptions, token string) (net.Conn, error) {
	header := o.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	header.Set(HeaderUse, UseTunnel)
	header.Set(HeaderTunnel, token)
	return dialBytes(ctx, &o, header)
}

// DialAPI connects to any cloudcore for a stream of bytes that carries requests to the Kubernetes API. Errors and
// options are those of DialTunnel.
func DialAPI(ctx context.Context, o DialOptions) (net.Conn, error) {
	header := o.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	header.Set(HeaderUse, UseAPI)
	return dialBytes(ctx, &o, header)
}

func dialBytes(ctx context.Context, o *DialOptions, header http.Header) (net.Conn, error) {
	ws, _, err := upgrade(ctx, o, header, websocket.Dialer{
		ReadBufferSize: tunnelBuffer, WriteBufferSize: tunnelBuffer,
	})
	if err != nil {
		return nil, err
	}
	return newTunnel(ws), nil
}

// AcceptTunnel upgrades a request of DialTunnel or DialAPI. On an error the request has been answered. The caller
// checks before who may connect.
func AcceptTunnel(w http.ResponseWriter, r *http.Request) (net.Conn, error) {
	upgrader := websocket.Upgrader{
		HandshakeTimeout: defaultHandshake, ReadBufferSize: tunnelBuffer, WriteBufferSize: tunnelBuffer,
	}
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return nil, fmt.Errorf("accept a tunnel from %s: %w", r.RemoteAddr, err)
	}
	return newTunnel(ws), nil
}

// tunnel is a WebSocket as a stream of bytes, in binary messages. One goroutine may read while another one writes.
type tunnel struct {
	*websocket.Conn
	message io.Reader // what is left of the last message
}

func newTunnel(ws *websocket.Conn) *tunnel {
	ws.SetReadLimit(tunnelMessage)
	return &tunnel{Conn: ws}
}

// Read implements net.Conn. A message that is not binary is an error.
func (t *tunnel) Read(p []byte) (int, error) {
	for {
		if t.message == nil {
			kind, r, err := t.NextReader()
			if err != nil {
				return 0, err
			}
			if kind != websocket.BinaryMessage {
				return 0, &Malformed{Err: fmt.Errorf("a tunnel got a WebSocket message of type %d", kind)}
			}
			t.message = r
		}
		n, err := t.message.Read(p)
		if err == io.EOF {
			t.message = nil
			err = nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// Write implements net.Conn.
func (t *tunnel) Write(p []byte) (n int, err error) {
	for first := true; first || n < len(p); first = false {
		if err := t.SetWriteDeadline(time.Now().Add(tunnelWrite)); err != nil {
			return n, err
		}
		part := p[n:min(len(p), n+tunnelBuffer)]
		if err := t.WriteMessage(websocket.BinaryMessage, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// SetDeadline implements net.Conn.
func (t *tunnel) SetDeadline(at time.Time) error {
	if err := t.SetReadDeadline(at); err != nil {
		return err
	}
	return t.SetWriteDeadline(at)
}

// Close implements net.Conn. It does not wait for the peer.
func (t *tunnel) Close() error { return rawConn(t.NetConn()).Close() }
