package broker

import (
	"bytes"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// errSlow closes the connection of a client that does not read what it must not miss.
var errSlow = errors.New("the client does not read its messages fast enough")

// budget is a number of bytes that several queues share.
type budget struct {
	used  atomic.Int64
	limit int64
}

func (b *budget) reserve(n int) bool {
	if b.used.Add(int64(n)) > b.limit {
		b.used.Add(-int64(n))
		return false
	}
	return true
}

func (b *budget) release(n int) { b.used.Add(-int64(n)) }

// conn is a client's connection whose Write never blocks: it puts the packet in a queue that is bounded in bytes, and
// run writes the queue to the socket. Without it, a client that stops reading would hold the locks that MQTT's server
// takes around its writes, and block everyone who publishes to that client, or takes its session over.
type conn struct {
	net.Conn
	budget  *budget
	limit   int
	timeout time.Duration
	count   *counters
	// done is closed when the connection is.
	done chan struct{}

	mu     sync.Mutex
	queue  [][]byte
	queued int
	wake   chan struct{}
	closed bool
	cause  error
}

func newConn(c net.Conn, shared *budget, l Limits, count *counters) *conn {
	out := &conn{
		Conn:    c,
		budget:  shared,
		limit:   l.QueueBytes,
		timeout: l.WriteTimeout,
		count:   count,
		done:    make(chan struct{}),
		wake:    make(chan struct{}, 1),
	}
	_ = c.SetDeadline(time.Now().Add(l.ConnectTimeout)) // for a TLS handshake, too
	return out
}

// Write queues one whole packet, which is how the server calls it. When the queue is full, a message of QoS 0 is
// dropped; any other packet closes the connection, and the client finds its messages in its session when it returns.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	if c.queued+len(p) > c.limit || !c.budget.reserve(len(p)) {
		const publish, qos = 3, 0x06
		if len(p) > 0 && p[0]>>4 == publish && p[0]&qos == 0 {
			c.count.drop(dropQueue)
			return len(p), nil
		}
		c.count.drop(dropSlow)
		c.close(errSlow)
		return 0, errSlow
	}
	c.queue = append(c.queue, bytes.Clone(p))
	c.queued += len(p)
	c.notify()
	return len(p), nil
}

// SetDeadline sets only the deadline for reading. run has its own for each write.
func (c *conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return c.SetReadDeadline(t)
}

// Close ends reading at once. run writes what is queued, which may be why the client is disconnected.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.close(nil)
	return nil
}

// close is Close, for a caller that holds mu.
func (c *conn) close(cause error) {
	if c.closed {
		return
	}
	c.closed, c.cause = true, cause
	_ = c.SetReadDeadline(time.Unix(1, 0))
	close(c.done)
	c.notify()
}

// why returns what closed the connection, nil if it was the server or the client.
func (c *conn) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

func (c *conn) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run writes what is queued until the connection is closed, and closes the socket.
func (c *conn) run() {
	defer c.Conn.Close()
	for range c.wake {
		for {
			c.mu.Lock()
			if len(c.queue) == 0 {
				closed := c.closed
				c.mu.Unlock()
				if closed {
					return
				}
				break
			}
			p := c.queue[0]
			c.queue[0], c.queue = nil, c.queue[1:]
			timeout := c.timeout
			if c.closed {
				timeout = min(timeout, time.Second) // enough to say why
			}
			c.mu.Unlock()
			_ = c.SetWriteDeadline(time.Now().Add(timeout))
			_, err := c.Conn.Write(p)
			c.mu.Lock()
			c.queued -= len(p)
			c.budget.release(len(p))
			if err != nil || c.cause != nil {
				c.close(err)
				c.budget.release(c.queued)
				c.queue, c.queued = nil, 0
				c.mu.Unlock()
				return
			}
			c.mu.Unlock()
		}
	}
}
