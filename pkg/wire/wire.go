// Package wire is the link between edge and cloud as both ends see it: connections that carry messages, their
// encodings, and what two ends of ours may agree on beyond KubeEdge's protocol (docs/wire.md).
//
// It promises:
//
//   - A peer can use up neither memory nor time: messages have a size, a depth and a deadline, also after
//     decompression. What breaks a rule ends the link with a reason, and never the process.
//   - A link on which nothing arrives ends with ErrSilent after the read limit, also one whose other end is gone
//     without a word. A slow link that makes progress does not.
//   - Nothing beyond the plain protocol is used unless both ends said so in the handshake (Features).
//
// It knows nothing of nodes, queues or answers: who may connect, what is sent and what it means is for
// edgehub and cloudhub.
package wire

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// Conn is one link. Read is for one goroutine; Write, Ping, Stats and Close are for any, at any time.
type Conn interface {
	// Read waits for the next message. Any error ends the link: *TooLarge, *Malformed, *Closed (the peer said
	// good-bye), ErrSilent, ErrClosed (this end closed it), or one of the network. Control traffic is
	// handled inside, so that a Conn that nobody reads answers no pings.
	Read() (*model.Message, error)
	// Write sends a message. *TooLarge and *Unsendable send nothing and leave the link as it is; any other error
	// ends it. Each 16 KB have the write limit to get into the network's buffers.
	Write(m *model.Message) error
	// Ping asks the peer for a sign of life; any sign counts as one.
	Ping() error
	// Close tells the peer why, as well as it can within a second, and ends the link. The first call counts.
	Close(code int, reason string) error
	// Features are what both ends agreed on.
	Features() Features
	// Streams are the streams in addition to the link's own; nil if none were agreed on.
	Streams() *Streams
	// Protocol is "websocket" or "quic".
	Protocol() string
	RemoteAddr() net.Addr
	Stats() Stats
}

// Protocols.
const (
	ProtocolWebSocket = "websocket"
	ProtocolQUIC      = "quic"
)

// Stats is what went over a link so far.
type Stats struct {
	// Bytes are counted where they enter and leave this process's sockets, with TLS and framing. On the accepting side
	// that takes a listener made by CountBytes; without one, only payloads count.
	BytesSent, BytesReceived       int64
	MessagesSent, MessagesReceived int64
	// Pings are those that came from the peer.
	Pings int64
	// LastReceived is when the peer last gave a sign of life: a message, or part of one, a ping or a pong.
	LastReceived time.Time
}

// Limits bound a link. Zero values take the defaults below.
type Limits struct {
	// MaxMessage is the largest message in bytes, both ways, decompressed.
	MaxMessage int64
	// ReadTimeout is how long the peer may be silent.
	ReadTimeout time.Duration
	// WriteTimeout is how long 16 KB may take to leave.
	WriteTimeout time.Duration
}

// Default limits. The largest object of Kubernetes, a configmap of 1 MiB whose every character is escaped, takes 6 MiB.
const (
	DefaultMaxMessage   = 8 << 20
	DefaultReadTimeout  = 30 * time.Second
	DefaultWriteTimeout = 15 * time.Second
)

func (l Limits) withDefaults() Limits {
	if l.MaxMessage <= 0 {
		l.MaxMessage = DefaultMaxMessage
	}
	if l.ReadTimeout <= 0 {
		l.ReadTimeout = DefaultReadTimeout
	}
	if l.WriteTimeout <= 0 {
		l.WriteTimeout = DefaultWriteTimeout
	}
	return l
}

// Headers of the handshake (docs/wire.md, WebSocket).
const (
	HeaderNodeID    = "node_id"
	HeaderProjectID = "project_id"
	HeaderUse       = "ConnectionUse"
	// UseMessages is the value of HeaderUse without which the upstream cloud reads nothing.
	UseMessages = "msg"
	// UseTunnel is its value for a tunnel (DialTunnel), and HeaderTunnel the token of the request for that tunnel.
	UseTunnel    = "tunnel"
	HeaderTunnel = "Edgecore-Tunnel"
	// UseAPI is the value of HeaderUse for a connection that carries requests to the Kubernetes API (DialAPI).
	UseAPI = "api"
)

// Codes for Close: those of WebSocket (RFC 6455 section 7.4), and two of ours.
const (
	CloseNormal       = 1000
	CloseGoingAway    = 1001
	CloseMalformed    = 1007
	ClosePolicy       = 1008
	CloseTooLarge     = 1009
	CloseInternal     = 1011
	CloseTryLater     = 1013
	CloseReplaced     = 4001 // another connection of the same node took over
	CloseSilent       = 4002 // nothing came for too long
	maxReason         = 123
	closeNoStatusCode = 1005
	closeAbnormalCode = 1006
)

// Errors of Read.
var (
	ErrSilent = errors.New("nothing came from the other end for too long")
	ErrClosed = errors.New("the link is closed")
)

// TooLarge is a message above the limit.
type TooLarge struct{ Size, Limit int64 } // Size 0: not known

func (e *TooLarge) Error() string {
	if e.Size == 0 {
		return fmt.Sprintf("a message is larger than %d bytes", e.Limit)
	}
	return fmt.Sprintf("a message of %d bytes is larger than %d", e.Size, e.Limit)
}

// Malformed is what is no message.
type Malformed struct{ Err error }

func (e *Malformed) Error() string { return "malformed message: " + e.Err.Error() }
func (e *Malformed) Unwrap() error { return e.Err }

func malformed(format string, args ...any) *Malformed {
	return &Malformed{Err: fmt.Errorf(format, args...)}
}

// Unsendable is a message that no encoding takes: its content is no JSON.
type Unsendable struct{ Err error }

func (e *Unsendable) Error() string { return e.Err.Error() }
func (e *Unsendable) Unwrap() error { return e.Err }

// Closed is the peer's good-bye.
type Closed struct {
	Code   int
	Reason string
}

func (e *Closed) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("the other end closed the link (code %d)", e.Code)
	}
	return fmt.Sprintf("the other end closed the link: %s (code %d)", e.Reason, e.Code)
}

// Refused is a handshake that the other end, or a proxy on the way, turned down.
type Refused struct {
	// Status is the HTTP status; 0 where the protocol has none.
	Status int
	// Text is what the other end said, cut to a line.
	Text string
}

func (e *Refused) Error() string {
	switch {
	case e.Status == 0:
		return "refused: " + e.Text
	case e.Text == "":
		return fmt.Sprintf("refused with HTTP status %d", e.Status)
	}
	return fmt.Sprintf("refused with HTTP status %d: %s", e.Status, e.Text)
}

// CloseCode is the code and the reason with which to end a link after an error of Read.
func CloseCode(err error) (code int, reason string) {
	var large *TooLarge
	var bad *Malformed
	switch {
	case err == nil || errors.Is(err, ErrClosed):
		return CloseNormal, ""
	case errors.As(err, &large):
		return CloseTooLarge, large.Error()
	case errors.As(err, &bad):
		return CloseMalformed, bad.Error()
	case errors.Is(err, ErrSilent):
		return CloseSilent, ErrSilent.Error()
	}
	return CloseGoingAway, ""
}

// cutReason makes a reason fit into a close frame, at a character's boundary.
func cutReason(reason string) string {
	if len(reason) <= maxReason {
		return reason
	}
	cut := 0
	for i := range reason {
		if i > maxReason {
			break
		}
		cut = i
	}
	return reason[:cut]
}
