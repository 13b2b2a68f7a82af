package outbox

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
	// RetryFirst and RetryMax are the first and the longest pause before something that failed is tried again.
	RetryFirst = time.Second
	RetryMax   = time.Minute
	// refusedMax is the longest pause before a report is sent again that the cloud has refused. It is longer than
	// RetryMax because most refusals last until somebody changes the cluster's admission or rights.
	refusedMax = 5 * time.Minute
	// sendersMax bounds the queues on their way at a time. Events have places of their own: eventSendersMax; over a
	// link with batches wire.BatchMax, which edgehub sends together; or unansweredMax with a cloud that answers none,
	// where each takes its place until it has arrived.
	sendersMax      = 16
	eventSendersMax = 4
	unansweredMax   = 64
	// eventTurn is how many other reports may be sent while events wait, before one event is sent.
	eventTurn = 64
)

// class orders queues, the most urgent first: a link that lives for a second carries the ends of pods and their
// statuses.
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
	// key is that of the row in the outbox.
	key   string
	class class
	// refusals is nil unless the cloud has refused the report, which is not sent again before due. The rest of its
	// queue does not wait for it: a status that no API server takes must not keep the pod's end back.
	refusals *retry.Backoff
	due      time.Time
}

// waits reports whether a report was refused and is not to be sent again yet.
func (r waitingReport) waits(now time.Time) bool { return now.Before(r.due) }

// ready returns the class of the most urgent report of a queue that may be sent now. If there is none, ok is false, and
// due is when the first one may be.
func (l *queue) ready(now time.Time) (best class, due time.Time, ok bool) {
	best = classEvent
	for _, r := range l.waiting {
		at := r.due
		if at.Before(l.due) {
			at = l.due
		}
		if !now.Before(at) {
			best, ok = min(best, r.class), true
		} else if due.IsZero() || at.Before(due) {
			due = at
		}
	}
	return best, due, ok
}

// index returns where a report waits, or -1.
func (l *queue) index(key string) int {
	return slices.IndexFunc(l.waiting, func(r waitingReport) bool { return r.key == key })
}

// classOf returns the class of a report, from its key.
func classOf(text string) class {
	operation, _, key, err := parseKey(text)
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

// pop takes the next report out of a queue that may be sent now: the oldest, but a pod's end after its status.
func (l *queue) pop(now time.Time) (r waitingReport, ok bool) {
	at := slices.IndexFunc(l.waiting, func(r waitingReport) bool { return r.class != classEnd && !r.waits(now) })
	if at < 0 {
		at = slices.IndexFunc(l.waiting, func(r waitingReport) bool { return !r.waits(now) })
	}
	if at < 0 {
		return waitingReport{}, false
	}
	r = l.waiting[at]
	l.waiting = slices.Delete(l.waiting, at, at+1)
	return r, true
}

// choose returns the queue that goes next, or nil, and when the first of those that wait after a failure or a refusal
// is due, if one is. Reports go before events: as long as one waits for a place, no event begins.
func choose(queues map[string]*queue, now time.Time, room, eventRoom int) (next *queue, due time.Time) {
	best := classEvent + 1
	for _, l := range queues {
		if l.busy || len(l.waiting) == 0 {
			continue
		}
		c, at, ok := l.ready(now)
		if !ok {
			if due.IsZero() || at.Before(due) {
				due = at
			}
			continue
		}
		if next == nil || c < best || c == best && l.since < next.since {
			next, best = l, c
		}
	}
	if next != nil && (best == classEvent && eventRoom <= 0 || best != classEvent && room <= 0) {
		next = nil
	}
	return next, due
}

// queues keep track of the reports that wait while there is a link; newQueues makes them. Their methods may be called
// from any goroutine.
type queues struct {
	// woken is notified when there may be something to send.
	woken notify.Signal

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

// newQueues returns queues without a link.
func newQueues() *queues {
	return &queues{woken: notify.NewSignal(), queues: map[string]*queue{}}
}

// wake tells that there may be something to send.
func (q *queues) wake() {
	q.woken.Notify()
}

// restart starts again over a new link.
func (q *queues) restart(eventRoom int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.clear()
	q.open, q.unread, q.eventRoom = true, true, eventRoom
	q.round++
	q.wake()
}

// down forgets what waits: it is read again over the next link.
func (q *queues) down() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.clear()
	q.open = false
}

// clear keeps no more than the queues on their way; q.mu is held.
func (q *queues) clear() {
	for name, l := range q.queues {
		l.waiting, l.backoff, l.due = nil, nil, time.Time{}
		if !l.busy {
			delete(q.queues, name)
		}
	}
}

// add notes a report that was stored. Without a link it does nothing. A report in place of one that was refused is sent
// at once: it says something else.
func (q *queues) add(name, key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open {
		return
	}
	l := q.queues[name]
	if l == nil {
		q.last++
		l = &queue{name: name, since: q.last, event: classOf(key) == classEvent}
		q.queues[name] = l
	}
	if at := l.index(key); at < 0 {
		l.waiting = append(l.waiting, waitingReport{key: key, class: classOf(key)})
	} else {
		l.waiting[at].due = time.Time{}
	}
	q.wake()
}

// drop forgets reports that were taken out of the outbox unsent.
func (q *queues) drop(keys []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, l := range q.queues {
		l.waiting = slices.DeleteFunc(l.waiting, func(r waitingReport) bool { return slices.Contains(keys, r.key) })
		if len(l.waiting) == 0 && !l.busy {
			delete(q.queues, name)
		}
	}
}

// count returns how many queues wait or are on their way.
func (q *queues) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queues)
}

// toRead reports whether the outbox is to be read, and takes that for done.
func (q *queues) toRead() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	unread := q.open && q.unread
	q.unread = false
	return unread
}

// readAgain takes it back.
func (q *queues) readAgain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.unread = true
}

// next returns a queue that is to be sent, which finish ends; or how long there is none: 0 is until woken is notified.
func (q *queues) next(now time.Time) (l *queue, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open {
		return nil, 0
	}
	l, due := choose(q.queues, now, sendersMax-q.reports, q.eventRoom-q.events)
	if q.passed >= eventTurn {
		if event := q.nextEvent(now); event != nil {
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
	*q.limitOf(l)++
	if q.passed++; l.event {
		q.passed = 0
	}
	return l, 0
}

// nextEvent returns the queue of the next event, regardless of other reports; q.mu is held.
func (q *queues) nextEvent(now time.Time) *queue {
	events := map[string]*queue{}
	for name, l := range q.queues {
		if l.event {
			events[name] = l
		}
	}
	event, _ := choose(events, now, 0, q.eventRoom-q.events)
	return event
}

// limitOf counts the queues of a kind that are on their way; q.mu is held.
func (q *queues) limitOf(l *queue) *int {
	if l.event {
		return &q.events
	}
	return &q.reports
}

// dequeue takes the next report out of a queue that is on its way, to be sent over the link of now.
func (q *queues) dequeue(l *queue, now time.Time) (r waitingReport, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l.round = q.round
	return l.pop(now)
}

// refused puts back a report that the cloud has refused. It is not sent again for a time that grows with each refusal,
// which refused returns, unless a newer report takes its place or a new link comes up.
func (q *queues) refused(l *queue, r waitingReport, now time.Time) (wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open || l.round != q.round || l.index(r.key) >= 0 {
		return 0
	}
	if r.refusals == nil {
		r.refusals = retry.NewBackoff(RetryFirst, refusedMax)
	}
	wait = r.refusals.Next()
	r.due = now.Add(wait)
	l.waiting = append(l.waiting, r)
	q.last++
	l.since = q.last // as in finish
	return wait
}

// finish ends what next began. A report that failed, if it has a key, waits again, and its queue is not tried for a
// time that grows: finish returns it. Over a new link it is tried at once.
func (q *queues) finish(l *queue, failed waitingReport, now time.Time) (wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l.busy = false
	*q.limitOf(l)--
	if failed.key != "" && q.open && l.round == q.round {
		if l.backoff == nil {
			l.backoff = retry.NewBackoff(RetryFirst, RetryMax)
		}
		wait = l.backoff.Next()
		l.due = now.Add(wait)
		q.last++
		l.since = q.last // or those that fail again and again would take every place
		if l.index(failed.key) < 0 {
			l.waiting = slices.Insert(l.waiting, 0, failed)
		}
	} else {
		l.backoff = nil
	}
	if len(l.waiting) == 0 {
		delete(q.queues, l.name)
	}
	q.wake()
	return wait
}
