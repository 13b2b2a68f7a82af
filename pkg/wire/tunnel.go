package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
)

const (
	// tunnelBuffer is the size of a tunnel's WebSocket's buffers, and of its messages without their header: what fits
	// into a TLS record.
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
	ws, _, err := upgrade(ctx, &o, header, websocket.Dialer{
		ReadBufferSize: tunnelBuffer, WriteBufferSize: tunnelBuffer,
	})
	if err != nil {
		return nil, err
	}
	return newTunnel(ws), nil
}

// AcceptTunnel upgrades a request of DialTunnel. On an error the request has been answered. The caller checks before
// who may connect.
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
	held    []byte    // the header of a frame whose body comes with the next Write
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

// Sizes and offsets of a frame's header of yamux, which writes header and body one after the other.
const (
	muxHeader     = 12
	muxTypeOffset = 1
	muxLength     = 8
)

// Write implements net.Conn. The header of a data frame leaves with its body.
func (t *tunnel) Write(p []byte) (int, error) {
	if t.held == nil && len(p) == muxHeader && p[muxTypeOffset] == 0 && binary.BigEndian.Uint32(p[muxLength:]) > 0 {
		t.held = append(t.held, p...)
		return len(p), nil
	}
	held, rest := t.held, p
	t.held = nil
	for first := true; first || len(rest) > 0; first = false {
		if err := t.SetWriteDeadline(time.Now().Add(tunnelWrite)); err != nil {
			return 0, err
		}
		w, err := t.NextWriter(websocket.BinaryMessage)
		if err != nil {
			return 0, err
		}
		if len(held) > 0 {
			if _, err := w.Write(held); err != nil {
				return 0, err
			}
		}
		part := rest[:min(len(rest), tunnelBuffer-len(held))]
		if _, err := w.Write(part); err != nil {
			return 0, err
		}
		if err := w.Close(); err != nil {
			return 0, err
		}
		rest, held = rest[len(part):], nil
	}
	return len(p), nil
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
