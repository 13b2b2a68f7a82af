package edgestream

import (
	"slices"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/pkg/notify"
)

const (
	// held is how many bytes wait for a receiver, and slowReceiver how long for it to take any.
	held         = 1 << 20
	slowReceiver = 10 * time.Second
	// piece is the most that is taken at a time: the bytes of a chunk.
	piece = 64 << 10
	// chunkLeast is the size of the smallest chunk. While bytes wait, each new chunk is twice as large as the one
	// before, up to chunkGrown, so that small frames share chunks.
	chunkLeast = 512
	chunkGrown = 16 << 10
	// chunkCost is what a chunk takes in addition to its bytes: a place in a list that grows by doubling.
	chunkCost = 64
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
//
// What waits is kept in chunks, and a chunk is taken whole: memory that is returned is garbage, not part of a larger
// buffer that what is left keeps alive.
type Inbox struct {
	memory       Memory
	began, ended chan struct{}
	begin, end   func()
	// filled and drained tell of changes of chunks.
	filled, drained notify.Signal

	mu sync.Mutex
	// chunks are the bytes that wait, the oldest first, and waiting is how many. The last chunk may have room for more.
	chunks  [][]byte
	waiting int
	// cost is the memory that chunks take, and taken that of the chunk that Take has returned last.
	cost, taken int64
	dropped     bool
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

// Drop drops what waits, returns its memory, and says that nothing more is wanted. The memory of what Take has returned
// last is returned, too: the caller of Drop ends the connection to which that is being written. It may be called again.
func (b *Inbox) Drop() {
	b.end()
	b.mu.Lock()
	freed := b.cost + b.taken
	b.chunks, b.waiting, b.cost, b.taken, b.dropped = nil, 0, 0, 0, true
	b.mu.Unlock()
	b.memory.Return(freed)
}

// Cost returns the memory that the inbox takes: what waits, and what Take has returned last.
func (b *Inbox) Cost() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cost + b.taken
}

// Give takes bytes, which it copies, and waits for room: 1 MiB. It returns false if the receiver takes nothing for
// 10 s, or if there is no memory for them; the connection has to end then, as part of them may be missing. done ends
// the wait.
func (b *Inbox) Give(data []byte, done <-chan struct{}) bool {
	select {
	case <-b.ended:
		return true
	default:
	}
	for !b.hasRoom(len(data)) {
		if reads, wanted := b.awaitRoom(done); !wanted || !reads {
			return reads
		}
	}
	for part := range slices.Chunk(data, piece) {
		if !b.add(part) {
			return false
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

// hasRoom reports whether there is room for bytes. If nothing waits, there is room for any.
func (b *Inbox) hasRoom(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting == 0 || b.waiting+n <= held
}

// add adds at most 64 KiB, or nothing to an inbox that is dropped. It returns false if there is no memory for them.
func (b *Inbox) add(data []byte) bool {
	rest, size := b.fill(data)
	if len(rest) == 0 {
		return true
	}
	chunk := append(slices.Grow([]byte(nil), size), rest...)
	cost := costOf(chunk)
	if b.memory.Take(cost) != nil { // it may drop this inbox, so b.mu is not held
		return false
	}
	b.mu.Lock()
	if b.dropped {
		b.mu.Unlock()
		b.memory.Return(cost)
		return true
	}
	defer b.mu.Unlock()
	b.chunks = append(b.chunks, chunk)
	b.waiting += len(rest)
	b.cost += cost
	b.arrived()
	return true
}

// fill fills the last chunk. It returns the bytes that need another one, and that one's size.
func (b *Inbox) fill(data []byte) (rest []byte, size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dropped {
		return nil, 0
	}
	if len(b.chunks) == 0 {
		return data, max(len(data), chunkLeast)
	}
	last := &b.chunks[len(b.chunks)-1]
	n := min(len(data), cap(*last)-len(*last), piece-len(*last))
	if n > 0 {
		*last = append(*last, data[:n]...)
		b.waiting += n
		b.arrived()
	}
	return data[n:], max(len(data)-n, min(2*cap(*last), chunkGrown))
}

// arrived notes that bytes have come. b.mu is held.
func (b *Inbox) arrived() {
	b.begin()
	b.filled.Notify()
}

// costOf returns the memory of a chunk.
func costOf(chunk []byte) int64 { return int64(cap(chunk)) + chunkCost }

// Take returns up to 64 KiB of what has come, waiting for it; more is whether there may be more. They are valid, and
// their memory is counted, until the next Take. done ends the wait as End does.
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
		data, rest, freed := b.next()
		if freed > 0 {
			b.memory.Return(freed)
		}
		if len(data) > 0 {
			b.drained.Notify()
		}
		if ended || len(data) > 0 {
			return data, !ended || rest
		}
		select {
		case <-b.filled:
		case <-b.ended:
		case <-done:
		}
	}
}

// next takes the oldest chunk, if there is one; rest is whether there are more. freed is the memory of the chunk that
// was taken before.
func (b *Inbox) next() (chunk []byte, rest bool, freed int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	freed, b.taken = b.taken, 0
	if len(b.chunks) == 0 {
		return nil, false, freed
	}
	chunk, b.chunks[0] = b.chunks[0], nil // the list keeps the place, and must not keep the chunk
	b.chunks = b.chunks[1:]
	b.waiting -= len(chunk)
	b.taken = costOf(chunk)
	b.cost -= b.taken
	if rest = len(b.chunks) > 0; !rest {
		b.chunks = nil
	}
	return chunk, rest, freed
}
