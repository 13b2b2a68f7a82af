package guestapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"time"
)

// Client is the host's end of a connection. One call at a time.
type Client struct {
	conn    net.Conn
	decoder *json.Decoder
	next    uint64
}

// NewClient speaks on a connection that it then owns.
func NewClient(conn net.Conn) *Client {
	// Requests that an earlier connection left in the port may be answered on this one.
	return &Client{conn: conn, decoder: json.NewDecoder(conn), next: rand.Uint64() >> 1}
}

// Close ends the connection, and in the guest what runs on it.
func (c *Client) Close() error { return c.conn.Close() }

// Do sends a request and copies its output to out until it is done. An error ends the connection's use;
// what the guest could not do is a GuestError, after which the connection goes on.
func (c *Client) Do(ctx context.Context, r Request, out io.Writer) (code int, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Now()) })
	defer stop()
	c.next++
	r.ID = c.next
	if err := json.NewEncoder(c.conn).Encode(r); err != nil {
		return 0, c.because(ctx, err)
	}
	for {
		var reply Reply
		if err := c.decoder.Decode(&reply); err != nil {
			return 0, c.because(ctx, err)
		}
		if reply.ID != r.ID {
			continue // to a host that has given up
		}
		if _, err := out.Write(reply.Output); err != nil {
			return 0, err
		}
		if !reply.Done {
			continue
		}
		if reply.Error != "" {
			return 0, GuestError(reply.Error)
		}
		return reply.Code, nil
	}
}

func (c *Client) because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) {
		return ErrEnded
	}
	return err
}

// ErrEnded says that the machine's end of the connection is gone.
var ErrEnded = errors.New("the machine ended the connection: it stopped, or it starts again")

// GuestError is why the guest could not do what it was asked for.
type GuestError string

func (e GuestError) Error() string { return "in the machine: " + string(e) }
