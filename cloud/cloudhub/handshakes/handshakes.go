// Package handshakes limits how many connections of nodes are set up at once, before they become sessions. It serves a
// reconnect storm in order: a connection that has been started is finished before the next one is started.
//
// A connection needs the processor when bytes have arrived: it then waits for a slot, and has it until it next writes,
// reads or is closed. No slot is held while the network is waited for, so a client that is slow or silent holds none.
//
// Connections that have been started come before new ones. Each group is served first come, first served. Only the
// first reads of a connection are in the first group: a client that sends single bytes soon waits with the new
// connections.
package handshakes

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/pkg/shares"
)

// Options say how much a Limiter lets through.
type Options struct {
	// Slots is how many connections are worked on at once.
	Slots int
	// Waiting is how many new connections may wait; others are closed. One source may have half of them.
	Waiting int
	// Timeout is how long a client waits for its connection. One that has waited for longer is closed instead of
	// started, and one that is started has as long again.
	Timeout time.Duration
	// Refused, which may be nil, is called for each connection that is closed because of these limits.
	Refused func()
}

// The errors of reading from a connection that is not served. Its owner closes it.
var (
	errBusy   = errors.New("too many connections wait for their handshake")
	errWaited = errors.New("the client has waited too long for its handshake: it has given up")
)

// promptReads is how many reads of a connection come before new connections. A TLS handshake and a request need 3 to 5.
const promptReads = 8

// Limiter has the slots. Make it with New; its methods may be called from any goroutine.
type Limiter struct {
	opts Options

	mu      sync.Mutex
	working int
	started list.List // of *turn, as is fresh; oldest first
	fresh   list.List
	// places are those in fresh.
	places *shares.Budget[netip.Prefix]
}

// turn is one connection's part in the Limiter, which guards it.
type turn struct {
	source   netip.Prefix
	accepted time.Time
	reads    int
	working  bool
	ended    bool
	// While it waits, it is element of queue; ready is closed when that ends.
	queue   *list.List
	element *list.Element
	ready   chan struct{}
}

// New makes a Limiter.
func New(opts Options) *Limiter {
	return &Limiter{
		opts: opts, places: shares.NewBudget[netip.Prefix](int64(opts.Waiting), int64(opts.Waiting/2)),
	}
}

// Counts returns how many connections wait for a slot, and how many have one.
func (l *Limiter) Counts() (waiting, working int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.started.Len() + l.fresh.Len(), l.working
}

// acquireSlot waits for a slot. first reports the first slot of the connection.
func (l *Limiter) acquireSlot(t *turn) (first bool, err error) {
	first, ready, err := l.request(t)
	if ready != nil {
		<-ready
		err = l.granted(t)
	}
	if err == nil && first && time.Since(t.accepted) > l.opts.Timeout {
		l.releaseSlot(t)
		err = errWaited
	}
	if err != nil && !errors.Is(err, net.ErrClosed) && l.opts.Refused != nil {
		l.opts.Refused()
	}
	return first, err
}

// request takes a free slot, or queues for one: then ready is not nil.
func (l *Limiter) request(t *turn) (first bool, ready <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.ended {
		return false, nil, net.ErrClosed
	}
	t.reads++
	first = t.reads == 1
	if l.working < l.opts.Slots {
		l.working++
		t.working = true
		return first, nil, nil
	}
	t.queue = &l.started
	if first || t.reads > promptReads {
		if !l.places.Take(t.source, 1) {
			t.queue = nil
			return first, nil, errBusy
		}
		t.queue = &l.fresh
	}
	t.element, t.ready = t.queue.PushBack(t), make(chan struct{})
	return first, t.ready, nil
}

// granted returns an error if waiting ended because the connection was closed.
func (l *Limiter) granted(t *turn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.ended {
		return net.ErrClosed
	}
	return nil
}

// releaseSlot returns the slot of a connection, if it has one.
func (l *Limiter) releaseSlot(t *turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release(t)
}

// closeTurn returns what a connection has, and lets it wait no longer. It gets no slot after that.
func (l *Limiter) closeTurn(t *turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.ended = true
	if t.queue != nil {
		l.dequeue(t)
	}
	l.release(t)
}

// release gives a slot on to the next connection.
func (l *Limiter) release(t *turn) {
	if !t.working {
		return
	}
	t.working = false
	next := l.started.Front()
	if next == nil {
		next = l.fresh.Front()
	}
	if next == nil {
		l.working--
		return
	}
	to := next.Value.(*turn)
	to.working = true
	l.dequeue(to)
}

// dequeue ends the waiting of a connection.
func (l *Limiter) dequeue(t *turn) {
	if t.queue == &l.fresh {
		l.places.Return(t.source, 1)
	}
	t.queue.Remove(t.element)
	t.queue, t.element = nil, nil
	close(t.ready)
}
