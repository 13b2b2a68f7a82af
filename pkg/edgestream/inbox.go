package edgestream

import (
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/pkg/notify"
)

const (
	// held is how many bytes wait for a receiver that does not read, and slowReceiver how long for room.
	held         = 1 << 20
	slowReceiver = 10 * time.Second
)

// Inbox holds what has come for one connection of a tunnel: the tunnel has no flow control. One goroutine may give
// while another one takes.
type Inbox struct {
	began, ended chan struct{}
	begin, end   func()
	// filled and drained tell of changes of data.
	filled, drained notify.Signal

	mu   sync.Mutex
	data []byte
}

// NewInbox makes an inbox.
func NewInbox() *Inbox {
	b := &Inbox{
		began: make(chan struct{}), ended: make(chan struct{}), filled: notify.NewSignal(), drained: notify.NewSignal(),
	}
	b.begin, b.end = sync.OnceFunc(func() { close(b.began) }), sync.OnceFunc(func() { close(b.ended) })
	return b
}

// Began is closed with the first bytes, Ended by End.
func (b *Inbox) Began() <-chan struct{} { return b.began }

// Ended is closed by End.
func (b *Inbox) Ended() <-chan struct{} { return b.ended }

// End says that nothing more comes, or is wanted. It may be called again, and by anyone.
func (b *Inbox) End() { b.end() }

// Give takes bytes, which it copies, and waits for room: 1 MiB. It reports whether the receiver reads; done ends the
// wait.
func (b *Inbox) Give(data []byte, done <-chan struct{}) bool {
	select {
	case <-b.ended:
		return true
	default:
	}
	var late <-chan time.Time
	for !b.offer(data) {
		if late == nil {
			timer := time.NewTimer(slowReceiver)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-b.drained:
		case <-b.ended:
			return true
		case <-done:
			return true
		case <-late:
			return false
		}
	}
	return true
}

// offer takes bytes if there is room for them, or nothing waits.
func (b *Inbox) offer(data []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.data) > 0 && len(b.data)+len(data) > held {
		return false
	}
	b.data = append(b.data, data...)
	b.begin()
	b.filled.Notify()
	return true
}

// Take returns what has come, waiting for it; more is whether there may be more. done ends the wait as End does.
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
		data, b.data = b.data, nil
		b.mu.Unlock()
		if len(data) > 0 {
			b.drained.Notify()
		}
		if ended || len(data) > 0 {
			return data, !ended
		}
		select {
		case <-b.filled:
		case <-b.ended:
		case <-done:
		}
	}
}
