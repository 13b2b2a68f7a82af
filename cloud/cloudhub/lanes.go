package cloudhub

import (
	"sync"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// What one node may have unanswered. Each costs memory here, and API calls.
const (
	laneParallel     = 8
	lanePending      = 256
	lanePendingBytes = 8 << 20
)

// lanes carry the requests of one node: those about one object one at a time and in order, those about others beside
// each other. At rest there is no goroutine.
type lanes struct {
	handle func(*model.Message)

	mu      sync.Mutex
	room    *sync.Cond
	lanes   map[string][]*model.Message // a lane exists while one of its requests is carried out or waits
	ready   []string                    // lanes that wait for a place
	workers int
	pending int
	bytes   int
	closed  bool
	idle    sync.WaitGroup
}

func newLanes(handle func(*model.Message)) *lanes {
	l := &lanes{handle: handle}
	l.room = sync.NewCond(&l.mu)
	return l
}

// put takes a request; it waits while the node has too much unanswered. It is for one goroutine. waits is called
// when it has to wait.
func (l *lanes) put(m *model.Message, waits func()) {
	size := len(m.Content) + 512
	name := laneOf(m.Route.Resource)
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && l.pending > 0 && (l.pending >= lanePending || l.bytes+size > lanePendingBytes) {
		waits()
		l.room.Wait()
	}
	if l.closed {
		return
	}
	l.pending++
	l.bytes += size
	if l.lanes == nil {
		l.lanes = map[string][]*model.Message{}
	}
	lane, ok := l.lanes[name]
	l.lanes[name] = append(lane, m)
	if ok {
		return
	}
	l.ready = append(l.ready, name)
	if l.workers < laneParallel {
		l.workers++
		l.idle.Add(1)
		go l.work()
	}
}

// work carries out requests until none waits.
func (l *lanes) work() {
	defer l.idle.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.ready) > 0 && !l.closed {
		name := l.ready[0]
		l.ready = l.ready[1:]
		m := l.lanes[name][0]
		l.mu.Unlock()
		l.handle(m)
		l.mu.Lock()
		l.pending--
		l.bytes -= len(m.Content) + 512
		l.room.Signal()
		if l.closed {
			break
		}
		if rest := l.lanes[name][1:]; len(rest) > 0 {
			l.lanes[name] = rest
			l.ready = append(l.ready, name)
		} else {
			delete(l.lanes, name)
		}
		if len(l.lanes) == 0 {
			l.lanes, l.ready = nil, nil
		}
	}
	l.workers--
}

// close drops what waits; put returns at once from now on.
func (l *lanes) close() {
	l.mu.Lock()
	l.closed = true
	l.lanes, l.ready = nil, nil
	l.room.Broadcast()
	l.mu.Unlock()
}

// wait returns when nothing is carried out any more.
func (l *lanes) wait() { l.idle.Wait() }

// unanswered is how many requests wait or are carried out.
func (l *lanes) unanswered() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending
}
