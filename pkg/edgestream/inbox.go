package edgestream

import (
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/pkg/notify"
)

const (
	// held is how many bytes wait for a receiver, and slowReceiver how long for it to take any.
	held         = 1 << 20
	slowReceiver = 10 * time.Second
	// piece is how much is taken at a time.
	piece = 64 << 10
	// costOfByte is what a waiting byte takes: the buffer grows by doubling.
	costOfByte = 2
)

// Memory limits what bytes take that wait in several inboxes.
type Memory interface {
	// Take takes memory, or returns an error if there is none.
	Take(n int64) error
	// Return gives it back.
	Return(n int64)
}

// noLimit is the memory of an inbox whose size is its only limit.
type noLimit struct{}

func (noLimit) Take(int64) error { return nil }
func (noLimit) Return(int64)     {}

// Inbox holds what has come for one connection of a tunnel: the tunnel has no flow control. One goroutine may give
// while another one takes.
type Inbox struct {
	memory       Memory
	began, ended chan struct{}
	begin, end   func()
	// filled and drained tell of changes of data.
	filled, drained notify.Signal

	mu      sync.Mutex
	data    []byte
	dropped bool
}

// NewInbox makes an inbox. What waits in it is counted in a memory, which may be nil.
func NewInbox(m Memory) *Inbox {
	if m == nil {
		m = noLimit{}
	}
	b := &Inbox{
		memory: m,
		began:  make(chan struct{}), ended: make(chan struct{}),
		filled: notify.NewSignal(), drained: notify.NewSignal(),
	}
	b.begin, b.end = sync.OnceFunc(func() { close(b.began) }), sync.OnceFunc(func() { close(b.ended) })
	return b
}

// Began is closed when the first bytes have come.
func (b *Inbox) Began() <-chan struct{} { return b.began }

// Ended is closed by End.
func (b *Inbox) Ended() <-chan struct{} { return b.ended }

// End says that nothing more comes, or is wanted. It may be called again, and by anyone.
func (b *Inbox) End() { b.end() }

// Drop drops what waits, returns its memory, and says that nothing more is wanted. It may be called again.
func (b *Inbox) Drop() {
	b.end()
	b.mu.Lock()
	n := len(b.data)
	b.data, b.dropped = nil, true
	b.mu.Unlock()
	b.memory.Return(int64(n) * costOfByte)
}

// Waiting returns how many bytes wait.
func (b *Inbox) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.data)
}

// Give takes bytes, which it copies, and waits for room: 1 MiB. It returns false if the receiver takes nothing for
// 10 s, or if there is no memory for them. done ends the wait.
func (b *Inbox) Give(data []byte, done <-chan struct{}) bool {
	select {
	case <-b.ended:
		return true
	default:
	}
	cost := int64(len(data)) * costOfByte
	if b.memory.Take(cost) != nil {
		return false
	}
	for !b.offer(data) {
		if reads, wanted := b.awaitRoom(done); !wanted || !reads {
			b.memory.Return(cost)
			return reads
		}
	}
	return true
}

// awaitRoom waits until the receiver has taken something; reads is false if it takes nothing, wanted if nothing more is
// wanted.
func (b *Inbox) awaitRoom(done <-chan struct{}) (reads, wanted bool) {
	late := time.NewTimer(slowReceiver)
	defer late.Stop()
	select {
	case <-b.drained:
		return true, true
	case <-b.ended:
		return true, false
	case <-done:
		return true, false
	case <-late.C:
		return false, true
	}
}

// offer takes bytes if there is room for them, or nothing waits.
func (b *Inbox) offer(data []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dropped || len(b.data) > 0 && len(b.data)+len(data) > held {
		return false
	}
	b.data = append(b.data, data...)
	b.begin()
	b.filled.Notify()
	return true
}

// Take returns up to 64 KiB of what has come, waiting for it; more is whether there may be more. done ends the wait as
// End does.
func (b *Inbox) Take(done <-chan struct{}) (data []byte, more bool) {
	for {
		ended := false
		select {
		case <-b.ended:
			ended = true
		case <-done:
			ended = true
		default:
		}
		b.mu.Lock()
		n := min(len(b.data), piece)
		data, b.data = b.data[:n:n], b.data[n:]
		rest := len(b.data) > 0
		if !rest {
			b.data = nil
		}
		b.mu.Unlock()
		if n > 0 {
			b.memory.Return(int64(n) * costOfByte)
			b.drained.Notify()
		}
		if ended || n > 0 {
			return data, !ended || rest
		}
		select {
		case <-b.filled:
		case <-b.ended:
		case <-done:
		}
	}
}
