package runtimelimit

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// patience is how long a call may wait before no other may overtake it.
	patience = 10 * time.Second
	// continues is how soon after a call of a pod its next call must arrive in order not to wait.
	continues = 250 * time.Millisecond
)

// queue decides which calls wait and which run. It is a state machine: its methods are called one at a time, with times
// that never go back. After each method, the caller takes the newly granted calls from the field granted.
type queue struct {
	// levels are the limits, one for each phase.
	levels  [phases]level
	number  uint64
	waiting []*call
	running []*call
	// counted is how many running calls count towards each limit, critical how many of these belong to critical pods.
	counted, critical [phases]int
	// first is set from the arrival of a call that starts a pod while the runtime works on none, until a container has
	// started, or a call fails or hangs. Until then half of the limit applies: somebody may be waiting for the first
	// pod of a burst, and it starts sooner beside fewer others.
	first bool
	// last is when a call of a pod last succeeded; it is kept for continues.
	last map[types.UID]time.Time
	// load is the integral of counted over time, until at.
	load float64
	at   time.Time
	// granted are the granted calls that the caller has not taken yet.
	granted []*call
}

func newQueue(cpus int) *queue {
	l := newLevel(cpus)
	return &queue{levels: [phases]level{l, l}, last: map[types.UID]time.Time{}}
}

// level returns the level of the limit for calls of a kind.
func (q *queue) level(k Kind) *level { return &q.levels[k.phase()] }

// waits reports whether calls of a phase wait for the limit. Those in the background wait for others.
func (q *queue) waits(p phase) bool {
	return slices.ContainsFunc(q.waiting, func(c *call) bool {
		return c.kind.phase() == p && c.owner.class != background
	})
}

// idle reports whether no call of a phase waits or counts.
func (q *queue) idle(p phase) bool { return q.counted[p] == 0 && !q.waits(p) }

// busy reports whether calls wait, or count towards a limit, other than background calls.
func (q *queue) busy() bool {
	isOther := func(c *call) bool { return c.owner.class != background }
	return slices.ContainsFunc(q.waiting, isOther) ||
		slices.ContainsFunc(q.running, func(c *call) bool { return c.counted && isOther(c) })
}

// arrive adds a call. It may be granted at once.
func (q *queue) arrive(now time.Time, k Kind, o Owner) *call {
	q.expire(now)
	if o == (Owner{}) {
		o = nobody
	}
	if k.phase() == starts && q.idle(starts) {
		q.first = true
	}
	q.number++
	c := &call{kind: k, owner: o, number: q.number, arrived: now, ready: make(chan struct{})}
	if _, begun := q.last[o.UID]; begun && !k.sandbox() && o.class != background || o.class == urgent {
		q.grant(now, c)
		return c
	}
	q.waiting = append(q.waiting, c)
	q.grantWaiting(now)
	return c
}

// removeCall removes a call that waited or ran. ok is set if the call succeeded.
func (q *queue) removeCall(now time.Time, c *call, ok bool) {
	q.expire(now)
	if i := slices.Index(q.waiting, c); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		return
	}
	i := slices.Index(q.running, c)
	if i < 0 {
		return
	}
	q.running = slices.Delete(q.running, i, i+1)
	if c.kind == StartContainer || c.kind.phase() == starts && !ok {
		q.first = false
	}
	if ok {
		took := now.Sub(c.granted)
		if c.counted && took > 0 {
			atOnce := (q.load - c.load) / took.Seconds()
			q.level(c.kind).measured(now, c.kind, took, atOnce, q.waits(c.kind.phase()))
		}
		q.level(c.kind).returned(c.kind, took)
		if c.owner.UID != "" {
			q.last[c.owner.UID] = now
		}
	}
	q.uncount(c)
	q.grantWaiting(now)
}

// expire stops counting calls that have taken much longer than usual, and grants waiting calls in their place.
func (q *queue) expire(now time.Time) {
	q.load += float64(q.counted[starts]+q.counted[ends]) * now.Sub(q.at).Seconds()
	q.at = now
	for _, c := range q.running {
		if c.counted && !now.Before(c.until) {
			q.uncount(c)
			q.first = q.first && c.kind.phase() != starts
		}
	}
	for uid, at := range q.last {
		if now.Sub(at) > continues {
			delete(q.last, uid)
		}
	}
	q.grantWaiting(now)
}

// next returns when expire is to be called for the sake of waiting calls; zero if there is no need.
func (q *queue) next() time.Time {
	var first time.Time
	if len(q.waiting) == 0 {
		return first
	}
	earlier := func(at time.Time) {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	for _, c := range q.running {
		if c.counted {
			earlier(c.until)
		}
	}
	for _, c := range q.waiting {
		if c.owner.class == background && !c.impatient(q.at) {
			earlier(c.arrived.Add(patience))
		}
	}
	return first
}

// grantWaiting grants waiting calls while the limit allows.
func (q *queue) grantWaiting(now time.Time) {
	for {
		best, busy := -1, q.busy()
		for i, c := range q.waiting {
			if !q.allowed(c, busy, now) || best >= 0 && !q.precedes(c, q.waiting[best], now) {
				continue
			}
			best = i
		}
		if best < 0 {
			return
		}
		c := q.waiting[best]
		q.waiting = slices.Delete(q.waiting, best, best+1)
		q.grant(now, c)
	}
}

// limit returns how many calls of a phase may run at once.
func (q *queue) limit(p phase) int {
	if p == starts && q.first {
		return q.levels[p].current() / 2
	}
	return q.levels[p].current()
}

// allowed reports whether c may run now.
func (q *queue) allowed(c *call, busy bool, now time.Time) bool {
	phase := c.kind.phase()
	limit := q.limit(phase)
	switch c.classAt(now) {
	case critical:
		return q.critical[phase] < limit
	case background:
		return !busy && q.counted[phase] < limit
	}
	return q.counted[phase] < limit
}

// precedes reports whether a is granted before b.
func (q *queue) precedes(a, b *call, now time.Time) bool {
	if of, other := a.classAt(now), b.classAt(now); of != other {
		return of > other
	}
	return a.before(b, now)
}

func (q *queue) grant(now time.Time, c *call) {
	c.granted, c.until, c.counted, c.load = now, now.Add(q.level(c.kind).counts(c.kind)), true, q.load
	q.counted[c.kind.phase()]++
	if c.owner.class == critical {
		q.critical[c.kind.phase()]++
	}
	q.running = append(q.running, c)
	q.granted = append(q.granted, c)
}

func (q *queue) uncount(c *call) {
	if !c.counted {
		return
	}
	c.counted = false
	q.counted[c.kind.phase()]--
	if c.owner.class == critical {
		q.critical[c.kind.phase()]--
	}
}
