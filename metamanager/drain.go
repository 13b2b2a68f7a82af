package metamanager

import (
	"slices"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	retryFirst = time.Second
	retryMax   = time.Minute
	// sendersMax bounds the queues on their way at a time. Events have places of their own: eventSendersMax; over a
	// link with batches wire.BatchMax, which edgehub sends together; or unansweredMax with a cloud that answers none,
	// where each takes its place for eventGrace.
	sendersMax      = 16
	eventSendersMax = 4
	unansweredMax   = 64
	// eventTurn is how many other reports may be sent while events wait, before one event is sent.
	eventTurn = 64
)

// class orders queues: a link that lives for a second carries the ends of pods and their statuses.
type class int

const (
	classEnd class = iota
	classStatus
	classOther
	classEvent
)

// queue is the reports that keep their order. It exists while a report of it waits or is on its way.
type queue struct {
	name string
	// since orders queues of one class: the lowest has waited longest, since it began or since it failed.
	since int64
	// waiting are the reports that wait.
	waiting []waitingReport
	// event: its reports are events.
	event bool
	// busy: it is on its way. round is the count of the link over which its last report was taken.
	busy  bool
	round int
	// backoff is nil unless the last report failed. The queue is not tried again before due.
	backoff *retry.Backoff
	due     time.Time
}

// waitingReport is a report by its key in the outbox; what it says is read when it is sent.
type waitingReport struct {
	key   string
	class class
}

// class is that of the most urgent report in a queue.
func (l *queue) class() class {
	best := classEvent
	for _, r := range l.waiting {
		best = min(best, r.class)
	}
	return best
}

// has reports whether a report waits.
func (l *queue) has(key string) bool {
	return slices.ContainsFunc(l.waiting, func(r waitingReport) bool { return r.key == key })
}

func classOf(text string) class {
	operation, _, key, err := parseReportKey(text)
	switch {
	case err != nil:
		return classOther
	case key.Type == resource.TypePod && operation == model.OpDelete:
		return classEnd
	case key.Type == resource.TypePod, key.Type == resource.TypePodPatch:
		return classStatus
	case key.Type == resource.TypeEvent:
		return classEvent
	}
	return classOther
}

// pop takes the next report out of a queue: the oldest, but a pod's end after its status.
func (l *queue) pop() (key string, ok bool) {
	if len(l.waiting) == 0 {
		return "", false
	}
	at := max(0, slices.IndexFunc(l.waiting, func(r waitingReport) bool { return r.class != classEnd }))
	key = l.waiting[at].key
	l.waiting = slices.Delete(l.waiting, at, at+1)
	return key, true
}

// choose returns the queue that goes next, or nil, and when the first of those that wait after a failure is due, if one
// is. Reports go before events: as long as one waits for a place, no event begins.
func choose(queues map[string]*queue, now time.Time, room, eventRoom int) (next *queue, due time.Time) {
	best := classEvent + 1
	for _, l := range queues {
		if l.busy || len(l.waiting) == 0 {
			continue
		}
		if now.Before(l.due) {
			if due.IsZero() || l.due.Before(due) {
				due = l.due
			}
			continue
		}
		if c := l.class(); next == nil || c < best || c == best && l.since < next.since {
			next, best = l, c
		}
	}
	if next != nil && (best == classEvent && eventRoom <= 0 || best != classEvent && room <= 0) {
		next = nil
	}
	return next, due
}

// drain keeps track of the reports that wait while there is a link. Its zero value is not ready; see newDrain.
type drain struct {
	woken notify.Signal
	// grace is how long the link must stay up after an event that is sent without an answer.
	grace time.Duration

	mu sync.Mutex
	// open: there is a link. unread: the outbox has not been read since it came up.
	open, unread bool
	round        int // links so far
	// eventRoom is how many events may be on their way.
	eventRoom int
	queues    map[string]*queue
	last      int64 // since of the newest queue
	// reports and events are the queues on their way. passed counts the reports sent since the last event.
	reports, events, passed int
}

func newDrain() *drain {
	return &drain{woken: notify.NewSignal(), grace: eventGrace, queues: map[string]*queue{}}
}

// wake has runDrain look for what is to be sent.
func (d *drain) wake() {
	d.woken.Notify()
}

// up starts again over a new link.
func (d *drain) up(eventRoom int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear()
	d.open, d.unread, d.eventRoom = true, true, eventRoom
	d.round++
	d.wake()
}

// down forgets what waits: it is read again over the next link.
func (d *drain) down() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear()
	d.open = false
}

// clear keeps no more than the queues on their way; d.mu is held.
func (d *drain) clear() {
	for name, l := range d.queues {
		l.waiting, l.backoff, l.due = nil, nil, time.Time{}
		if !l.busy {
			delete(d.queues, name)
		}
	}
}

// add notes a report that was stored. Without a link it does nothing.
func (d *drain) add(name, key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.open {
		return
	}
	l := d.queues[name]
	if l == nil {
		d.last++
		l = &queue{name: name, since: d.last, event: classOf(key) == classEvent}
		d.queues[name] = l
	}
	if !l.has(key) {
		l.waiting = append(l.waiting, waitingReport{key, classOf(key)})
	}
	d.wake()
}

// drop forgets reports that were taken out of the outbox unsent.
func (d *drain) drop(keys []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, l := range d.queues {
		l.waiting = slices.DeleteFunc(l.waiting, func(r waitingReport) bool { return slices.Contains(keys, r.key) })
		if len(l.waiting) == 0 && !l.busy {
			delete(d.queues, name)
		}
	}
}

// toRead reports whether the outbox is to be read, and takes that for done.
func (d *drain) toRead() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	unread := d.open && d.unread
	d.unread = false
	return unread
}

// readAgain takes it back.
func (d *drain) readAgain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unread = true
}

// next returns a queue that is to be sent, which done ends; or how long there is none: 0 is until wake is called.
func (d *drain) next(now time.Time) (l *queue, wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.open {
		return nil, 0
	}
	l, due := choose(d.queues, now, sendersMax-d.reports, d.eventRoom-d.events)
	if d.passed >= eventTurn {
		if event := d.nextEvent(now); event != nil {
			l = event
		}
	}
	if l == nil {
		if !due.IsZero() {
			wait = due.Sub(now)
		}
		return nil, wait
	}
	l.busy = true
	*d.limitOf(l)++
	if d.passed++; l.event {
		d.passed = 0
	}
	return l, 0
}

// nextEvent returns the queue of the next event, regardless of other reports; d.mu is held.
func (d *drain) nextEvent(now time.Time) *queue {
	events := map[string]*queue{}
	for name, l := range d.queues {
		if l.event {
			events[name] = l
		}
	}
	event, _ := choose(events, now, 0, d.eventRoom-d.events)
	return event
}

// limitOf counts the queues of a kind that are on their way; d.mu is held.
func (d *drain) limitOf(l *queue) *int {
	if l.event {
		return &d.events
	}
	return &d.reports
}

// take takes the next report out of a queue that is on its way, to be sent over the link of now.
func (d *drain) take(l *queue) (key string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.round = d.round
	return l.pop()
}

// done ends what next began. A report that failed waits again, and its queue is not tried for a time that grows: done
// returns it. Over a new link it is tried at once.
func (d *drain) done(l *queue, failed string, now time.Time) (wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.busy = false
	*d.limitOf(l)--
	if failed != "" && d.open && l.round == d.round {
		if l.backoff == nil {
			l.backoff = retry.NewBackoff(retryFirst, retryMax)
		}
		wait = l.backoff.Next()
		l.due = now.Add(wait)
		d.last++
		l.since = d.last // or those that fail again and again would take every place
		if !l.has(failed) {
			l.waiting = slices.Insert(l.waiting, 0, waitingReport{failed, classOf(failed)})
		}
	} else {
		l.backoff = nil
	}
	if len(l.waiting) == 0 {
		delete(d.queues, l.name)
	}
	d.wake()
	return wait
}
