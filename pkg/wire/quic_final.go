package wire

import (
	"context"
	"errors"
	"sync"
	"time"
)

// finalWait is how long a node may take to end a stream that the cloud has closed, twice: QUIC does it on its own,
// within a round trip.
const finalWait = 30 * time.Second

// errUnended ends a link whose node keeps streams open.
var errUnended = errors.New("the node keeps a closed stream open, which takes memory in the cloud")

// finalSizer is a stream of QUIC. It calls back once it knows where the peer's direction ends, unless the connection
// ends before.
type finalSizer interface {
	SetReceiveFinalSizeCallback(func(int64))
}

// ending is the end of a stream that the cloud has opened. QUIC keeps what has arrived of the stream until the node has
// ended its direction, and has acknowledged the end of the cloud's.
type ending struct {
	link context.Context
	// heard returns when the node was heard from last.
	heard func() int64
	// freed is called once, when QUIC has given up the stream.
	freed func()
	// reset resets the cloud's direction. It is called finalWait after a stream was closed whose direction has ended
	// without a reset: what was written before may still be on its way until then. QUIC sends the reset even if the
	// node has acknowledged all.
	reset func()
	// overdue is called if the node keeps the stream in twice finalWait after it was closed, but only if it was heard
	// from in both of these times: during an outage of the network it cannot end anything.
	overdue func(error)

	mu sync.Mutex
	// isClosed: it was closed here. isFinal: it is known where the node's direction ends. isAcked: the node has
	// acknowledged the reset of the cloud's direction.
	isClosed, isFinal, isAcked bool
	// isFreed: freed was called.
	isFreed bool
	// timer and unlink are set while the node is waited for.
	timer  *time.Timer
	unlink func() bool
	last   int64
	times  int
}

// follow follows a stream; closed is to be called once.
func (e *ending) follow(q finalSizer) {
	q.SetReceiveFinalSizeCallback(func(int64) { e.update(func() { e.isFinal = true }) })
}

// acked is called with false when the reset of the cloud's direction is sent, with true when the node has acknowledged
// it.
func (e *ending) acked(is bool) { e.update(func() { e.isAcked = is }) }

// closed is called when the stream was closed here. isReset: that has reset the cloud's direction.
func (e *ending) closed(isReset bool) {
	e.update(func() {
		e.isClosed = true
		if !e.isDone() {
			e.last, e.timer = e.heard(), time.AfterFunc(finalWait, func() {
				if !isReset {
					e.reset()
				}
				e.check()
			})
			e.unlink = context.AfterFunc(e.link, e.stop) // a link that has ended is not kept in memory
		}
	})
}

func (e *ending) isDone() bool { return e.isClosed && e.isFinal && e.isAcked }

func (e *ending) update(change func()) {
	e.mu.Lock()
	before := e.isFreed
	change()
	e.isFreed = before || e.isDone()
	after := e.isFreed
	e.mu.Unlock()
	if after && !before {
		e.stop()
		e.freed()
	}
}

func (e *ending) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer != nil {
		e.timer.Stop()
		e.unlink()
		e.timer = nil
	}
}

// check is called every finalWait.
func (e *ending) check() {
	e.mu.Lock()
	waits := e.timer != nil
	if now := e.heard(); waits && now != e.last {
		e.last, e.times = now, e.times+1
	}
	late := waits && e.times >= 2
	if waits && !late {
		e.timer.Reset(finalWait)
	}
	e.mu.Unlock()
	if late {
		e.overdue(errUnended)
	}
}
