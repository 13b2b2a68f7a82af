package wire

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// finalWait is how long a node may take to end its direction of a stream that the cloud has closed, twice: QUIC does it
// on its own, within a round trip.
const finalWait = 30 * time.Second

// errUnended ends a link whose node keeps streams open.
var errUnended = errors.New("the node keeps its direction of a closed stream open, which takes memory in the cloud")

// finalSizer is a stream of QUIC. It calls back once it knows where the peer's direction ends, unless the connection
// ends before.
type finalSizer interface {
	SetReceiveFinalSizeCallback(func(int64))
}

// ending is the end of a stream that the cloud has opened.
type ending struct {
	link context.Context
	// heard returns when the node was heard from last.
	heard func() int64
	// freed is called once the stream was closed and the node has ended its direction, too.
	freed func()
	// overdue is called if the node has not done so in twice finalWait, but only if it was heard from in both of these
	// times: during an outage of the network it cannot end anything.
	overdue func(error)

	ended atomic.Int32 // how many directions
	mu    sync.Mutex
	// timer and unlink are set while the node is waited for.
	timer  *time.Timer
	unlink func() bool
	last   int64
	times  int
}

// of follows a stream; closed is to be called once.
func (e *ending) of(q finalSizer) { q.SetReceiveFinalSizeCallback(func(int64) { e.end() }) }

func (e *ending) closed() {
	if e.ended.Load() == 0 {
		e.mu.Lock()
		e.last, e.timer = e.heard(), time.AfterFunc(finalWait, e.check)
		e.unlink = context.AfterFunc(e.link, e.stop) // a link that has ended is not kept in memory
		e.mu.Unlock()
	}
	e.end()
}

func (e *ending) end() {
	if e.ended.Add(1) == 2 {
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
