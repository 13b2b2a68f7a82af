package shares

import (
	"container/heap"
	"container/list"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/pkg/sourceaddr"
)

// Options are the limits of Conns. Size and Share are required.
type Options struct {
	// Size returns how many connections may have a place. It is asked for each new connection, so it may change.
	Size func() int
	// Share is how many places a source (package source) may have, also while others are free. With the share as large
	// as Size, a source may have all places until another one wants some.
	Share int
	// FreeLoopback makes one source without a share of all that is on this machine: the loopback and Unix sockets.
	FreeLoopback bool
	// Hello is how long a client of TLS may take for its ClientHello; 0 does not wait for it. Until it has arrived, the
	// connection costs little, is not returned by Accept, and is the first to lose its place.
	Hello time.Duration
	// Refused, which may be nil, is called for each connection that is closed for want of a place.
	Refused func()
}

// Fixed is a Size that does not change.
func Fixed(size int) func() int { return func() int { return size } }

// Conns are connections that have places, shared so that no source can use them up for the others:
//
//   - A source has at most its share of the places. Where it has all of it, a new connection from there takes the place
//     of its oldest silent one: one whose ClientHello has not arrived. Without a silent one, the new connection is
//     closed at once.
//   - When all places are taken, a new connection takes that of the oldest silent connection, or else of the oldest
//     one, of the source that has most of them, unless its own source has as many and none that is silent.
//   - A connection that is admitted (Admit) keeps its place and no longer counts for its source. When admitted
//     connections have all places, others wait in the kernel's queue.
//   - A connection that is done (Done) gives its place back, and stays open: what it is now is limited elsewhere.
//
// Make it with New. Its methods may be called from any goroutine.
type Conns struct {
	opts Options

	mu sync.Mutex
	// room is closed, and replaced, when an admitted connection is closed.
	room chan struct{}
	// sources have the connections that are not admitted. order is the same: the one with most of them is first.
	sources map[netip.Prefix]*sourceConns
	order   byCount
	// count is how many these are; admitted counts the others.
	count, admitted int
	// last is the number of the newest connection.
	last uint64
}

// New makes Conns without connections.
func New(o Options) *Conns {
	if o.Refused == nil {
		o.Refused = func() {}
	}
	return &Conns{opts: o, room: make(chan struct{}), sources: map[netip.Prefix]*sourceConns{}}
}

// Counts returns how many connections have a place and are not admitted, and how many of them are silent.
func (b *Conns) Counts() (all, silent int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.order {
		silent += s.silent.Len()
	}
	return b.count, silent
}

// sourceConns are the connections of a source that are not admitted, oldest first.
type sourceConns struct {
	source          netip.Prefix
	silent, started list.List // of *Conn
	index           int       // in order
}

func (s *sourceConns) len() int { return s.silent.Len() + s.started.Len() }

// victim returns the connection that loses its place first.
func (s *sourceConns) victim() *Conn {
	if first := s.silent.Front(); first != nil {
		return first.Value.(*Conn)
	}
	return s.started.Front().Value.(*Conn)
}

// byCount is a heap of sources: the one with most connections is first; of equal ones, that of the older victim.
type byCount []*sourceConns

func (h byCount) Len() int { return len(h) }
func (h byCount) Less(i, j int) bool {
	if a, b := h[i].len(), h[j].len(); a != b {
		return a > b
	}
	return h[i].victim().number < h[j].victim().number
}
func (h byCount) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *byCount) Push(x any) {
	s := x.(*sourceConns)
	s.index = len(*h)
	*h = append(*h, s)
}
func (h *byCount) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}

// await waits until not all places belong to admitted connections. It returns false when closed is closed.
func (b *Conns) await(closed <-chan struct{}) bool {
	for {
		b.mu.Lock()
		full, room := b.admitted >= b.opts.Size(), b.room
		b.mu.Unlock()
		select {
		case <-closed:
			return false
		default:
		}
		if !full {
			return true
		}
		select {
		case <-room:
		case <-closed:
			return false
		}
	}
}

// admit gives a new connection a place, or not; victim is the connection that loses its place to it, if any.
func (b *Conns) admit(c *Conn) (victim *Conn, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	have, silent := 0, 0
	if s := b.sources[c.source]; s != nil {
		have, silent = s.len(), s.silent.Len()
	}
	switch {
	case c.source.IsValid() && have >= b.opts.Share:
		if silent == 0 {
			return nil, false
		}
		victim = b.sources[c.source].victim()
	case b.count+b.admitted >= b.opts.Size():
		if len(b.order) == 0 {
			return nil, false
		}
		most := b.order[0]
		if most.len() <= have {
			if silent == 0 {
				return nil, false
			}
			most = b.sources[c.source]
		}
		victim = most.victim()
	}
	if victim != nil {
		b.release(victim)
	}
	b.last++
	c.number, c.silent = b.last, b.opts.Hello > 0
	b.add(c)
	return victim, true
}

// add adds a connection to those that are not admitted. b.mu is held.
func (b *Conns) add(c *Conn) {
	s := b.sources[c.source]
	fresh := s == nil
	if fresh {
		s = &sourceConns{source: c.source}
		b.sources[c.source] = s
	}
	if c.silent {
		c.element = s.silent.PushBack(c)
	} else {
		c.element = s.started.PushBack(c)
	}
	if fresh {
		heap.Push(&b.order, s)
	} else {
		heap.Fix(&b.order, s.index)
	}
	b.count++
}

// remove removes it from them. b.mu is held.
func (b *Conns) remove(c *Conn) {
	s := b.sources[c.source]
	if s.len() == 1 {
		heap.Remove(&b.order, s.index)
		delete(b.sources, c.source)
	}
	if c.silent {
		s.silent.Remove(c.element)
	} else {
		s.started.Remove(c.element)
	}
	if s.len() > 0 {
		heap.Fix(&b.order, s.index)
	}
	b.count--
}

// release takes a connection off the count, once. b.mu is held.
func (b *Conns) release(c *Conn) {
	if c.gone {
		return
	}
	c.gone = true
	if c.admitted {
		b.admitted--
		close(b.room)
		b.room = make(chan struct{})
		return
	}
	b.remove(c)
}

// started notes that the ClientHello of a connection has arrived. It reports whether the connection still has a place.
func (b *Conns) started(c *Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.gone {
		return false
	}
	b.remove(c)
	c.silent = false
	b.add(c)
	return true
}

// Conn is a connection that has a place. of.mu guards all but the first four fields.
type Conn struct {
	net.Conn
	of     *Conns
	source netip.Prefix
	// hello is what was read of the connection and not returned by Read.
	hello []byte
	// number orders connections by age.
	number  uint64
	element *list.Element
	// silent: the ClientHello has not arrived.
	silent, admitted, gone bool
}

// NetConn returns the connection below.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(c.hello) > 0 {
		n := copy(p, c.hello)
		if c.hello = c.hello[n:]; len(c.hello) == 0 {
			c.hello = nil
		}
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite ends the writing side, if the connection can be half-closed.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.Done()
	return err
}

// Done gives the connection's place back. It changes nothing else, and nothing if the place is gone.
func (c *Conn) Done() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.release(c)
}

// Admit notes that the client of the connection is authenticated and authorized.
func (c *Conn) Admit() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if !c.admitted && !c.gone {
		c.of.remove(c)
		c.admitted = true
		c.of.admitted++
	}
}

// Admitted reports whether Admit was called.
func (c *Conn) Admitted() bool {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	return c.admitted
}

// Of returns the connection that has a place below others, or nil if there is none.
func Of(c net.Conn) *Conn {
	for {
		if own, ok := c.(*Conn); ok {
			return own
		}
		above, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		c = above.NetConn()
	}
}

// sourceOf is the source by which a connection is counted. The zero Prefix has no share.
func (b *Conns) sourceOf(address net.Addr) netip.Prefix {
	from := sourceaddr.Of(address)
	if b.opts.FreeLoopback && from.Addr().IsLoopback() {
		return netip.Prefix{}
	}
	return from
}
