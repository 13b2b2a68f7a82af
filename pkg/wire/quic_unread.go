package wire

import (
	"context"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"

	"github.com/edgecore-io/edgecore/pkg/shares"
)

const (
	// smallFrame is the length from which QUIC keeps a frame's data in a buffer of bufferSize bytes, whatever its
	// length; the data of smaller frames is copied. frameCost is what a frame takes in addition: its place in a map,
	// and an allocation.
	smallFrame = 128
	bufferSize = 1452
	frameCost  = 200
	// partSize is how many bytes of a stream are counted together: what they take is returned when all of them, or all
	// that have come, were read.
	partSize = 4 << 10
	// strangerMax is how much a connection may hold before its header message was accepted: the message, and what a
	// node sends right after it.
	strangerMax = 512 << 10
	// partsMax is how many parts a window has; one more is begun.
	partsMax = windowHigh/partSize + 1
	// returnedMax is how many streams are remembered whose unread data was returned: those of the last round trips
	// matter.
	returnedMax = 1024
)

// The streams that a node opens: of the link's control and of its messages.
const (
	controlStream  quic.StreamID = 0
	messagesStream quic.StreamID = 4
)

// costOfFrame returns the memory that a frame takes until it is read.
func costOfFrame(length int64) int64 {
	switch {
	case length <= 0:
		return 0
	case length < smallFrame:
		return frameCost + length
	}
	return frameCost + bufferSize
}

// unread counts the memory of what a node has sent over a QUIC link and nobody has read. A node may send frames of one
// byte, or leave out the first byte, so that nothing can be read: QUIC keeps all frames in a stream's window. So
// frames are counted, not bytes. QUIC reports them to a tracer, after each packet.
//
// Of a link that takes three quarters of its share, the connection with most is ended. Its memory counts until the node
// has ended the stream, too, and has acknowledged the cloud's reset: QUIC keeps it until then. A link that takes all of
// its share ends.
type unread struct {
	memory *shares.Memory
	// ctx ends when the link has to end.
	ctx context.Context
	end context.CancelFunc
	// leave gives up the place among the connections in their TLS handshake, expiry does so much later.
	leave  func()
	expiry *time.Timer

	mu      sync.Mutex
	streams map[quic.StreamID]*unreadStream
	// held is the memory of all streams, cutting that of the streams that were cut.
	held, cutting int64
	closed        bool
	// welcome: the header message was accepted.
	welcome bool
	// resets are the streams whose reset the node has not acknowledged, with the packet that carried it last.
	resets map[quic.StreamID]qlog.PacketNumber
	// returned are streams whose unread data was returned when the node had acknowledged the reset.
	returned map[quic.StreamID]bool
}

var _ shares.Holder = (*unread)(nil)

// unreadStream is a stream with what its unread data takes.
type unreadStream struct {
	// cut ends the stream; nil: only the link can be ended. acked is called with false when a reset of the cloud's
	// direction has left, with true when the node has acknowledged it. Both must not block, and are called without
	// unread.mu.
	cut   func()
	acked func(bool)
	isCut bool
	// position is how far the stream was read, highest how far it has come.
	position, highest int64
	// cost is the sum of parts. The first part begins at first*partSize.
	cost  int64
	first int64
	parts []int64
}

func newUnread(memory *shares.Memory) *unread {
	u := &unread{
		memory:  memory,
		leave:   func() {},
		streams: map[quic.StreamID]*unreadStream{controlStream: {}, messagesStream: {}},
		resets:  map[quic.StreamID]qlog.PacketNumber{},

		returned: map[quic.StreamID]bool{},
	}
	u.ctx, u.end = context.WithCancel(context.Background())
	return u
}

// open begins to count a stream of the cloud's. free ends that: QUIC has given up the stream. A nil unread counts
// nothing.
func (u *unread) open(id quic.StreamID, acked func(bool), cut func()) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.closed {
		u.streams[id] = &unreadStream{acked: acked, cut: cut}
	}
}

func (u *unread) free(id quic.StreamID) {
	if u == nil {
		return
	}
	u.mu.Lock()
	s := u.streams[id]
	var cost int64
	if s != nil {
		cost = s.cost
		u.lower(s, cost)
		delete(u.streams, id)
	}
	delete(u.resets, id)
	if cost > 0 {
		if len(u.returned) == returnedMax {
			clear(u.returned)
		}
		u.returned[id] = true
	}
	u.mu.Unlock()
	if cost > 0 {
		u.memory.Return(u, cost)
	}
}

// lower subtracts what a stream has returned. u.mu is held.
func (u *unread) lower(s *unreadStream, cost int64) {
	u.held -= cost
	if s.isCut {
		u.cutting -= cost
	}
}

// read counts that bytes of a stream were read.
func (u *unread) read(id quic.StreamID, n int) {
	if u == nil || n <= 0 {
		return
	}
	u.mu.Lock()
	var freed int64
	if s := u.streams[id]; s != nil {
		freed = s.read(int64(n))
		u.lower(s, freed)
	}
	u.mu.Unlock()
	if freed > 0 {
		u.memory.Return(u, freed)
	}
}

// arrived counts a frame. It is called in the order in which QUIC handles them, perhaps after their data was read.
func (u *unread) arrived(id quic.StreamID, offset, length int64) {
	u.mu.Lock()
	s := u.streams[id]
	counts := s != nil && s.counts(offset, length)
	u.mu.Unlock()
	if !counts {
		return
	}
	cost := costOfFrame(length)
	if u.memory.Take(u, cost) != nil {
		u.Evict()
		return
	}
	u.mu.Lock()
	if u.streams[id] != s || !s.counts(offset, length) { // it was freed or read meanwhile
		u.mu.Unlock()
		u.memory.Return(u, cost)
		return
	}
	s.add(offset+length, cost)
	u.held += cost
	if !u.welcome && u.held > strangerMax {
		u.mu.Unlock()
		u.Evict()
		return
	}
	var cut func()
	if u.held-u.cutting > u.memory.Share()*3/4 {
		cut = u.cutLargest()
	}
	u.mu.Unlock()
	if cut != nil {
		cut()
	}
}

// cutLargest marks the stream that has most, and returns what ends it; nil: none can be. u.mu is held.
func (u *unread) cutLargest() func() {
	var most *unreadStream
	for _, s := range u.streams {
		if s.cut != nil && !s.isCut && s.cost > 0 && (most == nil || s.cost > most.cost) {
			most = s
		}
	}
	if most == nil {
		return nil
	}
	most.isCut = true
	u.cutting += most.cost
	return most.cut
}

// CutLargest implements shares.Holder. Ending a stream returns its memory only once the node has ended it, too, so a
// link without any left ends.
func (u *unread) CutLargest() bool { return false }

// Evict implements shares.Holder.
func (u *unread) Evict() {
	u.end()
	u.close()
}

// close returns all memory.
func (u *unread) close() {
	u.mu.Lock()
	held := u.held
	u.held, u.cutting, u.closed = 0, 0, true
	clear(u.streams)
	clear(u.resets)
	clear(u.returned)
	u.mu.Unlock()
	if held > 0 {
		u.memory.Return(u, held)
	}
}

// counts reports whether a frame takes memory: QUIC drops what was read already, and all for a stream that was cut. A
// frame far beyond the window ends the link anyway.
func (s *unreadStream) counts(offset, length int64) bool {
	last := offset + length
	return !s.isCut && length > 0 && last > s.position && (last-1)/partSize-s.first < partsMax
}

// add counts a frame that ends at an offset.
func (s *unreadStream) add(end, cost int64) {
	i := int((end-1)/partSize - s.first)
	for len(s.parts) <= i {
		s.parts = append(s.parts, 0)
	}
	s.parts[i] += cost
	s.cost += cost
	s.highest = max(s.highest, end)
}

// read moves the position, and returns what the parts took that have no unread data.
func (s *unreadStream) read(n int64) (freed int64) {
	s.position += n
	done := int(s.position/partSize - s.first)
	if s.position >= s.highest {
		freed = s.cost
		s.parts = s.parts[:0]
	} else {
		for _, cost := range s.parts[:min(done, len(s.parts))] {
			freed += cost
		}
		s.parts = s.parts[min(done, len(s.parts)):]
	}
	s.first += int64(done)
	s.cost -= freed
	return freed
}

// AddProducer implements qlogwriter.Trace.
func (u *unread) AddProducer() qlogwriter.Recorder { return u }

// SupportsSchemas implements qlogwriter.Trace.
func (u *unread) SupportsSchemas(string) bool { return false }

// RecordEvent implements qlogwriter.Recorder.
func (u *unread) RecordEvent(event qlogwriter.Event) {
	switch e := event.(type) {
	case qlog.PacketReceived:
		u.packetReceived(e)
	case qlog.PacketSent:
		for i := range e.Frames {
			if f, ok := e.Frames[i].Frame.(*qlog.ResetStreamFrame); ok {
				u.resetSent(f.StreamID, e.Header.PacketNumber)
			}
		}
	case qlog.PacketLost:
		if e.Header.PacketType == qlog.PacketType1RTT {
			u.packetLost(e.Header.PacketNumber)
		}
	}
}

func (u *unread) packetReceived(packet qlog.PacketReceived) {
	for i := range packet.Frames {
		switch f := packet.Frames[i].Frame.(type) {
		case *qlog.StreamFrame:
			u.arrived(f.StreamID, f.Offset, f.Length)
		case *qlog.AckFrame:
			if packet.Header.PacketType == qlog.PacketType1RTT {
				u.ackReceived(f)
			}
		case *qlog.CryptoFrame:
			// In TLS 1.3 a client sends none after its handshake, and QUIC would keep them.
			if packet.Header.PacketType == qlog.PacketType1RTT {
				u.Evict()
			}
		}
	}
}

// lostReset is the packet of a reset that has to be sent again.
const lostReset qlog.PacketNumber = -1

// resetSent is called when a packet has left with the reset of a stream. QUIC waits for the acknowledgement of the last
// packet with it, and ignores those of earlier ones.
func (u *unread) resetSent(id quic.StreamID, packet qlog.PacketNumber) {
	u.mu.Lock()
	s := u.streams[id]
	if s != nil {
		u.resets[id] = packet
	}
	early := u.returned[id]
	u.mu.Unlock()
	if s != nil && s.acked != nil {
		s.acked(false)
	}
	if early {
		// The memory was returned, but QUIC keeps the stream. For that, a node acknowledges a packet while its frames
		// wait to be sent again.
		u.Evict()
	}
}

// packetLost is called when QUIC gives up waiting for the acknowledgement of a packet.
func (u *unread) packetLost(packet qlog.PacketNumber) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, last := range u.resets {
		if last == packet {
			u.resets[id] = lostReset
		}
	}
}

// ackReceived is called when the node acknowledges packets.
func (u *unread) ackReceived(ack *qlog.AckFrame) {
	u.mu.Lock()
	var acked []func(bool)
	for id, packet := range u.resets {
		if packet != lostReset && ack.AcksPacket(packet) {
			delete(u.resets, id)
			if s := u.streams[id]; s != nil && s.acked != nil {
				acked = append(acked, s.acked)
			}
		}
	}
	u.mu.Unlock()
	for _, f := range acked {
		f(true)
	}
}

// welcomed is called when the header message was accepted.
func (u *unread) welcomed() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.welcome = true
}

// established is called when the TLS handshake has ended.
func (u *unread) established() {
	u.leave()
	if u.expiry != nil {
		u.expiry.Stop()
	}
}

// Close implements qlogwriter.Recorder: the connection has ended.
func (u *unread) Close() error {
	u.established()
	u.close()
	return nil
}

// unreadKey is the key of a connection's unread in its context.
type unreadKey struct{}

// unreadOf returns what counts the unread data of a connection; nil: nothing does.
func unreadOf(conn *quic.Conn) *unread {
	u, _ := conn.Context().Value(unreadKey{}).(*unread)
	return u
}

// countedStream is a stream of QUIC that counts what is read of it. Without unread it counts nothing.
type countedStream struct {
	*quic.Stream
	unread *unread
}

// Read implements io.Reader.
func (s countedStream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	s.unread.read(s.StreamID(), n)
	return n, err
}
