package runtimelimit

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// patience is after how long a call is overtaken by no other.
	patience = 10 * time.Second
	// continues is for how long after a call of a pod its next one does not wait.
	continues = 250 * time.Millisecond
)

// queue decides which calls wait and which run. It is a state machine: its methods are called one at a time, with times
// that do not go back. Callers take the calls that they granted from the field granted.
type queue struct {
	// levels are the limits, one for each phase.
	levels  [phases]level
	number  uint64
	waiting []*call
	running []*call
	// counted and critical are how many of the running calls count, and how many of these are of critical pods.
	counted, critical [phases]int
	// last is when the last call of a pod ended well, for as long as its next one does not wait.
	last map[types.UID]time.Time
	// load is the integral of counted over time, until at.
	load float64
	at   time.Time
	// granted are the calls that were granted and not taken yet.
	granted []*call
}

func newQueue(cpus int) *queue {
	l := newLevel(cpus)
	return &queue{levels: [phases]level{l, l}, last: map[types.UID]time.Time{}}
}

// level returns the level of the limit for calls of a kind.
func (q *queue) level(k Kind) *level { return &q.levels[k.phase()] }

// waits reports whether calls of a phase wait.
func (q *queue) waits(p phase) bool {
	return slices.ContainsFunc(q.waiting, func(c *call) bool { return c.kind.phase() == p })
}

// arrive adds a call. It may be granted at once.
func (q *queue) arrive(now time.Time, k Kind, o Owner) *call {
	q.expire(now)
	if o == (Owner{}) {
		o = nobody
	}
	q.number++
	c := &call{kind: k, owner: o, number: q.number, arrived: now, ready: make(chan struct{})}
	if _, begun := q.last[o.UID]; begun || o.class == urgent {
		q.grant(now, c)
		return c
	}
	q.waiting = append(q.waiting, c)
	q.grantWaiting(now)
	return c
}

// leave ends a call, whether it waited or ran. ok: the runtime did what it was asked for.
func (q *queue) leave(now time.Time, c *call, ok bool) {
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
	if ok {
		took := now.Sub(c.granted)
		if c.counted && took > 0 {
			atOnce := (q.load - c.load) / took.Seconds()
			q.level(c.kind).measured(now, c.kind, took, atOnce, q.waits(c.kind.phase()))
		}
		if c.counted || c.kind != StopContainer {
			q.level(c.kind).returned(c.kind, took)
		}
		if c.owner.UID != "" {
			q.last[c.owner.UID] = now
		}
	}
	q.uncount(c)
	q.grantWaiting(now)
}

// expire lets calls that take longer than usual no longer count.
func (q *queue) expire(now time.Time) {
	q.load += float64(q.counted[starts]+q.counted[ends]) * now.Sub(q.at).Seconds()
	q.at = now
	for _, c := range q.running {
		if c.counted && !now.Before(c.until) {
			q.uncount(c)
		}
	}
	for uid, at := range q.last {
		if now.Sub(at) > continues {
			delete(q.last, uid)
		}
	}
	q.grantWaiting(now)
}

// next returns when expire has something to do for calls that wait; zero if never.
func (q *queue) next() time.Time {
	var first time.Time
	if len(q.waiting) == 0 {
		return first
	}
	for _, c := range q.running {
		if c.counted && (first.IsZero() || c.until.Before(first)) {
			first = c.until
		}
	}
	return first
}

// grantWaiting grants waiting calls while the limit allows.
func (q *queue) grantWaiting(now time.Time) {
	for {
		best := -1
		for i, c := range q.waiting {
			if !q.allowed(c) || best >= 0 && !q.first(c, q.waiting[best], now) {
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

// allowed reports whether the limit allows another call like c.
func (q *queue) allowed(c *call) bool {
	limit, phase := q.level(c.kind).current(), c.kind.phase()
	if c.owner.class == critical {
		return q.critical[phase] < limit
	}
	return q.counted[phase] < limit
}

// first reports whether a is granted before b.
func (q *queue) first(a, b *call, now time.Time) bool {
	if a.owner.class != b.owner.class {
		return a.owner.class > b.owner.class
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
