package tunnel

import (
	"math/bits"
	"sync"

	"github.com/edgecore-io/edgecore/pkg/shares"
)

// frameCost is what a frame takes in addition to its bytes: an allocation, and places in lists that grow by doubling. A
// node that sends frames of one byte attacks cloudcore's memory.
const frameCost = 64

// costOf returns the memory of a frame. yamux takes buffers whose sizes are powers of two.
func costOf(length uint32) int64 {
	if length == 0 {
		return frameCost
	}
	return frameCost + int64(1)<<bits.Len32(length-1)
}

// unread counts the unread data of the streams of a tunnel, frame by frame.
type unread struct {
	memory *shares.Memory
	holder shares.Holder

	mu      sync.Mutex
	streams map[uint32]*unreadStream
}

// unreadStream is the unread data of a stream.
type unreadStream struct {
	cost int64
	// frames are the unread bytes of each frame, the oldest first; whole is the length of the oldest one.
	frames []uint32
	whole  uint32
	// cut ends the stream.
	cut func()
}

// open begins to count the data of a stream.
func (u *unread) open(id uint32, cut func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.streams[id] = &unreadStream{cut: cut}
}

// close returns the memory of a stream. What still comes for it is not counted: yamux drops it.
func (u *unread) close(id uint32) {
	u.mu.Lock()
	s := u.streams[id]
	delete(u.streams, id)
	u.mu.Unlock()
	if s != nil {
		u.memory.Return(u.holder, s.cost)
	}
}

// closeAll does so with all streams.
func (u *unread) closeAll() {
	u.mu.Lock()
	var cost int64
	for _, s := range u.streams {
		cost += s.cost
	}
	clear(u.streams)
	u.mu.Unlock()
	u.memory.Return(u.holder, cost)
}

func (u *unread) has(id uint32) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.streams[id] != nil
}

// arrived counts a frame of a stream.
func (u *unread) arrived(id, length uint32) error {
	if !u.has(id) {
		return nil
	}
	cost := costOf(length)
	if err := u.memory.Take(u.holder, cost); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.streams[id]
	if s == nil { // it was just cut
		u.memory.Return(u.holder, cost)
		return nil
	}
	s.cost += cost
	if len(s.frames) == 0 {
		s.whole = length
	}
	s.frames = append(s.frames, length)
	return nil
}

// read counts that a caller has read bytes of a stream.
func (u *unread) read(id uint32, n int) {
	u.mu.Lock()
	var freed int64
	if s := u.streams[id]; s != nil {
		freed = s.read(n)
	}
	u.mu.Unlock()
	if freed > 0 {
		u.memory.Return(u.holder, freed)
	}
}

// read removes bytes, and returns the cost of the frames that have none left.
func (s *unreadStream) read(n int) (freed int64) {
	for n > 0 && len(s.frames) > 0 {
		part := min(uint32(n), s.frames[0])
		n -= int(part)
		if s.frames[0] -= part; s.frames[0] > 0 {
			break
		}
		freed += costOf(s.whole)
		if s.frames = s.frames[1:]; len(s.frames) > 0 {
			s.whole = s.frames[0]
		} else {
			s.frames = nil
		}
	}
	s.cost -= freed
	return freed
}

// cutLargest ends the stream that has most.
func (u *unread) cutLargest() bool {
	u.mu.Lock()
	var id uint32
	var most *unreadStream
	for i, s := range u.streams {
		if s.cost > 0 && (most == nil || s.cost > most.cost) {
			id, most = i, s
		}
	}
	delete(u.streams, id)
	u.mu.Unlock()
	if most == nil {
		return false
	}
	u.memory.Return(u.holder, most.cost)
	most.cut()
	return true
}
