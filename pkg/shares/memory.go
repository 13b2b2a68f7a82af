package shares

import "errors"

const (
	// memoryAll and memoryNode are how much memory unread data may take, of all nodes and of one: 16 streams of its
	// tunnel may have a full window, or about 70 of a QUIC link if the node sends full packets; fewer if it sends
	// lines.
	memoryAll  = 128 << 20
	memoryNode = 16 << 20
)

// ErrUnread is why a connection or a tunnel ends that has most of the data that callers do not read.
var ErrUnread = errors.New("callers do not read what the node sends, and it takes too much of cloudcore's memory")

// Memory limits what unread data takes in a process: data that has come from nodes and that callers have not read. Each
// tunnel and each QUIC link has a share. Its methods may be called from any goroutine.
type Memory struct{ budget *Budget[Holder] }

// Holder is a tunnel or a link whose unread data takes memory. It is the key of its share.
type Holder interface {
	// CutLargest ends the connection that has most unread data of the holder's, and returns its memory. It reports
	// whether there was one.
	CutLargest() bool
	// Evict ends the holder, and returns the memory of its connections. It does not wait for the peer.
	Evict()
}

// NewMemory returns the memory for the tunnels and links of a process.
func NewMemory() *Memory { return NewMemoryOf(memoryAll, memoryNode) }

// NewMemoryOf returns memory of a size, and of a share of each tunnel.
func NewMemoryOf(all, node int64) *Memory { return &Memory{NewBudget[Holder](all, node)} }

// Take takes memory for bytes that have come. A holder that has its share loses the connection with most unread data.
// If there is no memory left, the holder that has most ends. The error is ErrUnread: the holder that asks has to end.
func (m *Memory) Take(h Holder, n int64) error {
	for !m.budget.Take(h, n) {
		victim := h
		if m.budget.Of(h)+n <= m.budget.Share() {
			victim, _ = m.budget.Largest()
		}
		switch victim {
		case nil:
			return ErrUnread
		case h:
			if !h.CutLargest() {
				return ErrUnread
			}
		default:
			victim.Evict()
		}
	}
	return nil
}

// Return gives back what Take has taken.
func (m *Memory) Return(h Holder, n int64) { m.budget.Return(h, n) }

// Share returns how much one holder may take.
func (m *Memory) Share() int64 { return m.budget.Share() }

// Taken returns how much all holders have.
func (m *Memory) Taken() int64 { return m.budget.Taken() }
