// Package apitunnel is the node's end of connections to the Kubernetes API through the cloud (docs/wire.md): it opens
// streams on which HTTP/1.1 is spoken with cloudcore.
//
// It promises:
//
//   - Nothing is connected without a use. The connection is made for the first stream, while there is a link and both
//     ends have agreed on the feature api. It is kept for a minute after its last stream.
//   - There is one connection, and one attempt to connect, at a time. After a failure, Open fails at once with its
//     cause until the next attempt, 1 to 60 s later.
//   - A connection that carries nothing any more is noticed within 80 s while it has a stream: it ends when a ping is
//     not answered, or when the link has been lost for longer than a link may be silent. A shorter loss of the link
//     does not end it, and it carries new streams meanwhile; a ping when the link is back finds out within 20 s whether
//     the connection is.
//
// Run owns all goroutines, and ends with its context.
package apitunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
	"github.com/edgecore-io/edgecore/pkg/tunnel"
)

const (
	// idleTime is how long a connection without a stream is kept.
	idleTime = time.Minute
	// backoffMin and backoffMax limit the time between attempts to connect, as between those of the link.
	backoffMin = time.Second
	backoffMax = time.Minute
)

// Errors of Open.
var (
	// ErrNotConnected means that there is no link. The error is a *NotConnectedError.
	ErrNotConnected = errors.New("this device has no connection to its cloud")
	// ErrNotOffered means that there is a link, over which the API is not reached.
	ErrNotOffered = errors.New("the cloud of this device does not forward requests to the Kubernetes API: enable " +
		"modules.dynamicController of cloudcore, and connect over WebSocket")
	// ErrEnded means that Run has ended.
	ErrEnded = errors.New("the agent stops")
)

// NotConnectedError is ErrNotConnected with the time.
type NotConnectedError struct {
	// Since is when the link was lost; zero if there has been none.
	Since time.Time
}

func (e *NotConnectedError) Error() string {
	if e.Since.IsZero() {
		return ErrNotConnected.Error() + " yet"
	}
	return ErrNotConnected.Error() + " since " + e.Since.UTC().Format(time.RFC3339)
}

// Is makes it ErrNotConnected.
func (e *NotConnectedError) Is(target error) bool { return target == ErrNotConnected }

// Tunnel opens streams. Make it with New; its methods may be called from any goroutine.
type Tunnel struct {
	dial   func(ctx context.Context) (net.Conn, error)
	wanted notify.Signal // for Run: a stream needs a connection
	moved  notify.Signal // for Run: the link or the number of streams has changed

	mu   sync.Mutex
	link link
	conn *connection // nil: none
	// failure is why the last attempt failed, and retry when the next one may be made.
	failure error
	retry   time.Time
	ended   bool
	// changed is closed, and replaced, when an attempt has ended or the link has changed.
	changed chan struct{}
}

// link is the state of the node's link.
type link struct {
	up, offered bool
	// since is when it came up or was lost; zero before either. silence is how long a link may be silent.
	since   time.Time
	silence time.Duration
}

// connection is a connection to a cloudcore. Tunnel.mu guards the fields.
type connection struct {
	*tunnel.APIOpener
	streams int
	// idle is when the last stream ended, pinged when a ping was answered last.
	idle, pinged time.Time
	// suspect: the link was lost and is back, perhaps over another network.
	suspect bool
}

// New makes a tunnel that connects with dial (wire.DialAPI), which should end within a minute.
func New(dial func(ctx context.Context) (net.Conn, error)) *Tunnel {
	return &Tunnel{
		dial: dial, wanted: notify.NewSignal(), moved: notify.NewSignal(), changed: make(chan struct{}),
	}
}

// LinkUp reports a link, and whether both ends have agreed on the feature api. It does not block.
func (t *Tunnel) LinkUp(offered bool) {
	t.setLink(link{up: true, offered: offered, since: time.Now()})
}

// LinkDown reports the loss of the link, which may be silent for that long. It does not block.
func (t *Tunnel) LinkDown(silence time.Duration) {
	t.setLink(link{since: time.Now(), silence: silence})
}

func (t *Tunnel) setLink(l link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.link = l
	if l.up {
		t.failure = nil // the network may have changed
		if t.conn != nil {
			t.conn.suspect = true
		}
	}
	t.announceChange()
}

// announceChange wakes those that wait for a change. t.mu is held.
func (t *Tunnel) announceChange() {
	close(t.changed)
	t.changed = make(chan struct{})
	t.moved.Notify()
}

// Connected reports whether there is a link, and since when it has been there or lost; zero if there has been none.
func (t *Tunnel) Connected() (connected bool, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.link.up, t.link.since
}

// Open opens a stream to a cloudcore, and connects to one first if there is no connection. It serves one HTTP request
// at a time, and may be reused. Its errors are ErrNotConnected, ErrNotOffered, tunnel.ErrAPIStreams, ErrEnded, the
// context's, or why the last attempt to connect has failed.
func (t *Tunnel) Open(ctx context.Context) (net.Conn, error) {
	for {
		c, wait, err := t.takeStream()
		if err != nil {
			return nil, err
		}
		if c == nil {
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		s, err := c.Open(ctx)
		if err == nil {
			return &stream{Conn: s, release: sync.OnceFunc(func() { t.releaseStream(c) })}, nil
		}
		t.releaseStream(c)
		if ctx.Err() != nil || errors.Is(err, tunnel.ErrAPIStreams) {
			return nil, err
		}
		t.forgetConnection(c) // it has ended
	}
}

// takeStream counts a stream of the connection. Without one, it asks Run for it; wait is closed when there is news.
func (t *Tunnel) takeStream() (c *connection, wait <-chan struct{}, _ error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended:
		return nil, nil, ErrEnded
	case t.conn != nil:
		t.conn.streams++
		t.moved.Notify()
		return t.conn, nil, nil
	case !t.link.up:
		return nil, nil, &NotConnectedError{t.link.since}
	case !t.link.offered:
		return nil, nil, ErrNotOffered
	case t.failure != nil && time.Now().Before(t.retry):
		return nil, nil, t.failure
	}
	t.wanted.Notify()
	return nil, t.changed, nil
}

// releaseStream counts the end of a stream.
func (t *Tunnel) releaseStream(c *connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.streams--; c.streams == 0 {
		c.idle = time.Now()
	}
	t.moved.Notify()
}

// forgetConnection forgets a connection. It does nothing if another one has replaced it.
func (t *Tunnel) forgetConnection(c *connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn == c {
		t.conn = nil
	}
}

// Run makes and keeps connections until ctx ends.
func (t *Tunnel) Run(ctx context.Context) {
	defer t.refuseStreams()
	b := retry.NewSpread(backoffMin, backoffMax)
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wanted:
		}
		if !t.needed() { // the stream has asked before the last attempt
			continue
		}
		c, err := t.connect(ctx)
		if err != nil {
			t.attempted(nil, err, b.Next())
			if ctx.Err() == nil {
				klog.V(2).InfoS("No connection to the Kubernetes API through the cloud", "err", err)
			}
			continue
		}
		t.attempted(c, nil, 0)
		began := time.Now()
		klog.V(2).InfoS("Connected to the Kubernetes API through the cloud")
		t.keepConnection(ctx, c)
		_ = c.Close()
		klog.V(2).InfoS("Connection to the Kubernetes API through the cloud closed",
			"after", time.Since(began).Round(time.Second))
		if time.Since(began) < backoffMin { // the cloud accepts connections only to close them
			t.attempted(nil, errShort, b.Next())
			continue
		}
		b.Reset()
		t.forgetConnection(c)
	}
}

// needed reports whether to connect now.
func (t *Tunnel) needed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.link.up && t.link.offered && (t.failure == nil || !time.Now().Before(t.retry))
}

// connect makes a connection.
func (t *Tunnel) connect(ctx context.Context) (*connection, error) {
	conn, err := t.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API through the cloud: %w", err)
	}
	o, err := tunnel.NewAPIOpener(conn)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	now := time.Now()
	return &connection{APIOpener: o, idle: now, pinged: now}, nil
}

// errShort is why there is no new connection right after one that has ended at once.
var errShort = errors.New("the cloud closed the last connection to the Kubernetes API at once")

// attempted records the result of an attempt: a connection, or why there is none until pause has passed.
func (t *Tunnel) attempted(c *connection, err error, pause time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conn, t.failure, t.retry = c, err, time.Now().Add(pause)
	t.announceChange()
}

// refuseStreams makes Open fail, also for those that wait.
func (t *Tunnel) refuseStreams() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.announceChange()
}

// keepConnection returns when a connection has ended, or should: then it carries no new stream.
func (t *Tunnel) keepConnection(ctx context.Context, c *connection) {
	defer context.AfterFunc(ctx, func() { _ = c.Close() })() // it also ends a ping
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		what, at := t.nextAction(c)
		switch what {
		case end:
			return
		case ping:
			if err := c.Ping(); err != nil {
				klog.V(2).InfoS("The cloud does not answer on the connection to the Kubernetes API", "err", err)
				return
			}
			t.pinged(c)
			continue
		case wait:
			timer.Reset(time.Until(at))
		}
		select {
		case <-c.Closed():
			return
		case <-t.moved:
		case <-timer.C:
		}
	}
}

func (t *Tunnel) pinged(c *connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.pinged, c.suspect = time.Now(), false
}

// nextAction decides what to do with a connection. It is dropped at the same moment if it should end.
func (t *Tunnel) nextAction(c *connection) (action, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	what, at := decide(t.link, *c, time.Now())
	if what == end && t.conn == c {
		t.conn = nil
	}
	return what, at
}

// action is what to do with a connection.
type action int

const (
	wait action = iota
	ping
	end
)

// decide returns what to do with a connection now, or until when to wait.
func decide(l link, c connection, now time.Time) (action, time.Time) {
	var at time.Time
	if c.streams == 0 {
		at = c.idle.Add(idleTime)
		if !now.Before(at) {
			return end, at
		}
	} else {
		at = c.pinged.Add(tunnel.APIPing)
	}
	if lost := l.since.Add(l.silence); !l.up {
		if !now.Before(lost) {
			return end, lost
		}
		if lost.Before(at) {
			return wait, lost
		}
	}
	if c.suspect || c.streams > 0 && !now.Before(at) {
		return ping, at
	}
	return wait, at
}

// stream is a stream that is counted until it is closed.
type stream struct {
	net.Conn
	release func()
}

// CloseWrite ends the sending direction.
func (s *stream) CloseWrite() error { return tunnel.CloseWrite(s.Conn) }

// Close implements net.Conn.
func (s *stream) Close() error {
	err := s.Conn.Close()
	s.release()
	return err
}
