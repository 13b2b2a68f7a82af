// Package queue decides what one node is sent next, and remembers what it holds.
//
// The queue holds only keys. Which state of an object is sent is decided when its turn comes, so the newest wins and an
// object that changes often takes one place. The promises, for each key:
//
//   - While a message waits for its ack, no other is sent until the ack times out. Then the same message is sent again
//     with the same id, or a newer state if there is one.
//   - A state that the peer acked is not sent again.
//   - A message without an ack may have arrived or not: if the peer may hold any version of an object, the object is
//     deleted by its UID when it is gone, and before another object takes its name.
//   - A message that is never acked, or is refused, gives way to other keys and returns after a growing pause. Its late
//     ack still counts.
//
// Finding out what the peer must have may be slow for some keys. So several keys may have their turn at once, each
// until its Take or Fail; a change meanwhile queues the key again. Keys that only the peer has named are doubtful:
// looking them up may cost more than the peer may cause, so only NextDoubtful returns them.
//
// A Queue has no goroutine, no clock and no lock.
package queue

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Options configures how a peer is served.
type Options struct {
	// Window is the number of messages that may wait for an ack. Keys whose turn took long may exceed it.
	Window int
	// Resend is the ack timeout, Tries how often a message is sent before it gives way to others.
	Resend time.Duration
	Tries  int
	// Backoff is the first pause after a refusal or missing ack, MaxBackoff the longest.
	Backoff, MaxBackoff time.Duration
}

// flight is a message without an ack.
type flight struct {
	id     string
	seq    uint64 // order of sending
	op     Op
	state  State
	first  time.Time
	due    time.Time
	tries  int
	parked bool // it left the window
	again  bool // its object changed since
}

// retry is when a key returns.
type retry struct {
	at       time.Time
	failures int
	waiting  bool
}

// Queue is the state of one peer.
type Queue struct {
	opts    Options
	held    map[resource.Key]State
	order   []resource.Key
	queued  map[resource.Key]struct{}
	flights map[resource.Key]*flight
	ids     map[string]resource.Key
	retries map[resource.Key]*retry
	syncing map[resource.Key]struct{}
	turns   map[resource.Key]bool     // keys between Next and Take or Fail; true: changed since
	refresh map[resource.Key]struct{} // see Refresh
	// doubts are keys that only the peer has named. Queued ones are in doubtful instead of order, which may list others
	// as well; inDoubt counts them.
	doubts   map[resource.Key]struct{}
	doubtful []resource.Key
	inDoubt  int
	others   map[resource.Key]types.UID // what the peer may hold under a key instead of the object in held
	reported bool                       // what the peer holds, by Reset
	window   int                        // flights that are not parked
	seq      uint64
}

// New returns the queue of a peer that holds nothing.
func New(opts Options) *Queue { return &Queue{opts: opts} }

// Mark queues a key whose object changed.
func (q *Queue) Mark(key resource.Key) {
	q.trust(key)
	q.enqueue(key)
}

// enqueue queues a key; if a message or a pause is pending, after that.
func (q *Queue) enqueue(key resource.Key) {
	if _, ok := q.turns[key]; ok {
		q.turns[key] = true
		return
	}
	if f := q.flights[key]; f != nil {
		f.again = true
		return
	}
	if r := q.retries[key]; r != nil && r.waiting {
		return
	}
	q.push(key)
}

// Refresh queues a key whose object has a newer resource version that the peer should get, although nothing else of the
// object changed.
func (q *Queue) Refresh(key resource.Key) {
	if q.refresh == nil {
		q.refresh = map[resource.Key]struct{}{}
	}
	q.refresh[key] = struct{}{}
	q.enqueue(key)
}

// refreshed ends what Refresh asks for. It reports whether the peer, which holds held, is to get want.
func (q *Queue) refreshed(key resource.Key, held State, want *Desired) bool {
	_, asked := q.refresh[key]
	if delete(q.refresh, key); len(q.refresh) == 0 {
		q.refresh = nil
	}
	return asked && want != nil && newer(want.ResourceVersion, held.ResourceVersion)
}

// Holds records that the peer claims to hold an object. Known objects stay as they are; an unknown one becomes
// doubtful. It reports whether the object is known now; it keeps at most most of them.
func (q *Queue) Holds(key resource.Key, uid types.UID, most int) bool {
	if _, known := q.held[key]; !known {
		if len(q.held) >= most {
			return false
		}
		if q.held == nil {
			q.held = map[resource.Key]State{}
		}
		q.held[key] = State{UID: uid}
		if _, ok := q.queued[key]; !ok {
			q.doubt(key)
		}
	}
	q.enqueue(key)
	return true
}

// doubt makes a key that is not queued doubtful.
func (q *Queue) doubt(key resource.Key) {
	if q.doubts == nil {
		q.doubts = map[resource.Key]struct{}{}
	}
	q.doubts[key] = struct{}{}
}

// trust makes a doubtful key a normal one.
func (q *Queue) trust(key resource.Key) {
	if _, ok := q.doubts[key]; !ok {
		return
	}
	if _, ok := q.queued[key]; ok {
		q.inDoubt--
		q.order = append(q.order, key)
	}
	delete(q.doubts, key)
	if len(q.doubts) == 0 {
		q.doubts, q.doubtful = nil, nil
	}
}

func (q *Queue) push(key resource.Key) {
	if _, ok := q.queued[key]; ok {
		return
	}
	if _, ok := q.turns[key]; ok {
		q.turns[key] = true
		return
	}
	if q.queued == nil {
		q.queued = map[resource.Key]struct{}{}
	}
	q.queued[key] = struct{}{}
	if _, ok := q.doubts[key]; ok {
		q.doubtful = append(q.doubtful, key)
		q.inDoubt++
		return
	}
	q.order = append(q.order, key)
}

// unqueue removes a key from those that wait. It may stay in order or doubtful, which does no harm.
func (q *Queue) unqueue(key resource.Key) {
	if _, ok := q.queued[key]; !ok {
		return
	}
	if _, ok := q.doubts[key]; ok {
		q.inDoubt--
	}
	if delete(q.queued, key); len(q.queued) == 0 {
		q.queued = nil
	}
}

// beginTurn starts the turn of a key.
func (q *Queue) beginTurn(key resource.Key) {
	if q.turns == nil {
		q.turns = map[resource.Key]bool{}
	}
	q.turns[key] = false
}

// endTurn ends the turn of a key, and reports whether the key changed meanwhile.
func (q *Queue) endTurn(key resource.Key) (changed bool) {
	changed = q.turns[key]
	if delete(q.turns, key); len(q.turns) == 0 {
		q.turns = nil
	}
	return changed
}

// pop removes and returns the first waiting key of a list.
func (q *Queue) pop(list *[]resource.Key, doubtful bool) (resource.Key, bool) {
	for len(*list) > 0 {
		key := (*list)[0]
		(*list)[0] = resource.Key{}
		if *list = (*list)[1:]; len(*list) == 0 {
			*list = nil
		}
		if _, ok := q.queued[key]; !ok {
			continue
		}
		if _, ok := q.doubts[key]; ok != doubtful {
			continue // it waits in the other list
		}
		q.unqueue(key)
		if f := q.flights[key]; f != nil && !f.parked {
			f.again = true
			continue
		}
		return key, true
	}
	return resource.Key{}, false
}

// Next returns the next key that is not doubtful. The caller finds out what the peer must have, and calls Take or Fail.
// Other keys may have their turns meanwhile.
func (q *Queue) Next(now time.Time) (key resource.Key, ok bool) {
	q.endPauses(now)
	if key, ok = q.overdue(now); !ok && q.window < q.opts.Window {
		key, ok = q.pop(&q.order, false)
	}
	if ok {
		q.beginTurn(key)
	}
	return key, ok
}

// endPauses queues the keys whose pauses are over.
func (q *Queue) endPauses(now time.Time) {
	for key, r := range q.retries {
		if r.waiting && !now.Before(r.at) {
			r.waiting = false
			q.push(key)
		}
	}
}

// NextDoubtful is Next for the doubtful keys.
func (q *Queue) NextDoubtful(now time.Time) (key resource.Key, ok bool) {
	q.endPauses(now)
	if q.window < q.opts.Window {
		key, ok = q.pop(&q.doubtful, true)
	}
	if ok {
		q.beginTurn(key)
	}
	return key, ok
}

// Doubtful reports whether NextDoubtful has a key, not counting those whose pauses have expired since.
func (q *Queue) Doubtful() bool { return q.inDoubt > 0 && q.window < q.opts.Window }

// overdue returns the key that has waited longest for its ack, if the ack has timed out. Messages that were sent often
// enough leave the window.
func (q *Queue) overdue(now time.Time) (first resource.Key, found bool) {
	var seq uint64
	for key, f := range q.flights {
		_, turn := q.turns[key]
		switch {
		case turn || f.parked || now.Before(f.due):
		case f.tries >= q.opts.Tries:
			f.parked = true
			q.window--
			q.pause(key, now)
		case !found || f.seq < seq:
			first, seq, found = key, f.seq, true
		}
	}
	return first, found
}

// Action is what to send.
type Action struct {
	Op Op
	ID string
	// State is the object's state as sent; for a delete, that of the deleted object.
	State State
	// First is set if the peer held no version of the object, Resend if the same message is sent again.
	First, Resend bool
	// Moved is set if nothing must be sent although the resource version differs from the one held.
	Moved bool
}

// Take decides what is sent for a key at its turn, and counts it as sent.
func (q *Queue) Take(key resource.Key, want *Desired, newID func() string, now time.Time) Action {
	changed := q.endTurn(key)
	if want != nil {
		q.trust(key)
	}
	f := q.flights[key]
	held, ok := q.held[key]
	act := Action{First: !ok}
	if ok {
		act.Op = Decide(&held, want)
	} else {
		act.Op = Decide(nil, want)
	}
	if !changed && q.refreshed(key, held, want) && act.Op == None {
		act.Op = Update
	}
	switch act.Op {
	case None:
		if want != nil && (held.Version == want.Version || held.ResourceVersion == want.ResourceVersion) {
			act.Moved = held.ResourceVersion != want.ResourceVersion
			q.held[key] = want.State
		}
		act.State = held
		q.trust(key)
		delete(q.retries, key)
		if changed {
			q.enqueue(key)
		}
		q.forgetIfDone(key)
		return act
	case Delete:
		act.State = State{UID: held.UID, ResourceVersion: held.ResourceVersion}
	default:
		act.State = want.State
	}
	q.send(key, f, &act, newID, now)
	if changed || act.Op == Delete && want != nil { // another object has taken the name
		q.enqueue(key)
	}
	return act
}

// send counts a message as sent: a resent one, or a new one that replaces it.
func (q *Queue) send(key resource.Key, f *flight, act *Action, newID func() string, now time.Time) {
	if f != nil && f.matches(act) {
		act.ID, act.Op, act.State, act.Resend = f.id, f.op, f.state, true
		if f.parked {
			f.parked, f.tries = false, 0
			q.window++
		}
	} else {
		if f != nil {
			q.removeFlight(key, f)
		}
		f = &flight{id: newID(), op: act.Op, state: act.State, first: now}
		act.ID = f.id
		if q.flights == nil {
			q.flights, q.ids = map[resource.Key]*flight{}, map[string]resource.Key{}
		}
		q.flights[key], q.ids[f.id] = f, key
		q.window++
	}
	q.seq++
	f.seq = q.seq
	f.tries++
	f.due, f.again = now.Add(q.opts.Resend), false
	if q.held == nil {
		q.held = map[resource.Key]State{}
	}
	// It is unknown which version the peer holds until it answers.
	q.held[key] = State{UID: act.State.UID}
}

// matches reports whether sending the flight again does what act does.
func (f *flight) matches(act *Action) bool {
	if (f.op == Delete) != (act.Op == Delete) || f.state.UID != act.State.UID {
		return false
	}
	return f.op == Delete || f.state == act.State
}

// removeFlight removes a message that waits for an ack.
func (q *Queue) removeFlight(key resource.Key, f *flight) {
	delete(q.flights, key)
	delete(q.ids, f.id)
	if !f.parked {
		q.window--
	}
	if len(q.flights) == 0 {
		q.flights, q.ids = nil, nil
	}
}

// Drop forgets a key, as if the peer never had it.
func (q *Queue) Drop(key resource.Key) {
	if f := q.flights[key]; f != nil {
		q.removeFlight(key, f)
	}
	delete(q.held, key)
	delete(q.others, key)
	delete(q.retries, key)
	delete(q.refresh, key)
	q.unqueue(key)
	q.trust(key)
	q.forgetIfDone(key)
}

// awaitedFailures is how many failed lookups of an object others wait out that must be sent after it.
const awaitedFailures = 3

// Awaited reports whether a key that the peer does not hold is about to be sent. Once its lookup has failed a few
// times, it is not: what needs it goes without it then.
func (q *Queue) Awaited(key resource.Key) bool {
	if _, held := q.held[key]; held || q.flights[key] != nil {
		return false
	}
	_, queued := q.queued[key]
	_, inTurn := q.turns[key]
	r := q.retries[key]
	return (queued || inTurn || r != nil && r.waiting) && (r == nil || r.failures <= awaitedFailures)
}

// Leave ends a key's turn if nobody decides what the peer must have: it keeps what it holds, and the key counts as
// done.
func (q *Queue) Leave(key resource.Key) {
	changed := q.endTurn(key)
	if f := q.flights[key]; f != nil {
		q.removeFlight(key, f)
	}
	if delete(q.retries, key); len(q.retries) == 0 {
		q.retries = nil
	}
	q.trust(key)
	if changed {
		q.enqueue(key)
	}
	q.forgetIfDone(key)
}

// Fail ends a key's turn if the lookup failed: the key returns later. It returns how often the key had failed before.
func (q *Queue) Fail(key resource.Key, now time.Time) (failures int) {
	changed := q.endTurn(key)
	if r := q.retries[key]; r != nil {
		failures = r.failures
	}
	if f := q.flights[key]; f != nil && !f.parked {
		f.due, f.again = now.Add(q.opts.Resend), f.again || changed
		return failures
	}
	q.pause(key, now)
	return failures
}

func (q *Queue) pause(key resource.Key, now time.Time) {
	if q.retries == nil {
		q.retries = map[resource.Key]*retry{}
	}
	r := q.retries[key]
	if r == nil {
		r = &retry{}
		q.retries[key] = r
	}
	pause := q.opts.MaxBackoff
	if r.failures < 20 {
		pause = min(pause, q.opts.Backoff<<r.failures)
	}
	r.failures++
	r.at, r.waiting = now.Add(pause), true
	q.unqueue(key)
}

// Acked is an answered message.
type Acked struct {
	Key   resource.Key
	Op    Op
	State State
	// Took is the time since the first send.
	Took time.Duration
	// Failures is how often the message had failed before.
	Failures int
}

// Ack records that the peer stored the message with this id. It ignores unknown ids: answers to replaced messages, and
// duplicates.
func (q *Queue) Ack(id string, now time.Time) (Acked, bool) {
	key, ok := q.ids[id]
	if !ok {
		return Acked{}, false
	}
	f := q.flights[key]
	q.removeFlight(key, f)
	a := Acked{Key: key, Op: f.op, State: f.state, Took: now.Sub(f.first)}
	if r := q.retries[key]; r != nil {
		a.Failures = r.failures
		delete(q.retries, key)
	}
	switch other, ok := q.others[key]; {
	case f.op != Delete:
		q.held[key] = f.state
	case ok:
		q.held[key] = State{UID: other}
	default:
		delete(q.held, key)
	}
	delete(q.others, key)
	q.trust(key)
	if _, more := q.held[key]; f.again || f.op == Delete && more {
		q.push(key)
	}
	q.forgetIfDone(key)
	return a, true
}

// Nack records that the peer refused the message with this id. It returns after a pause. Acked.Failures counts the
// earlier failures.
func (q *Queue) Nack(id string, now time.Time) (Acked, bool) {
	key, ok := q.ids[id]
	if !ok {
		return Acked{}, false
	}
	f := q.flights[key]
	q.removeFlight(key, f)
	q.pause(key, now)
	return Acked{
		Key:      key,
		Op:       f.op,
		State:    f.state,
		Took:     now.Sub(f.first),
		Failures: q.retries[key].failures - 1,
	}, true
}

// Wake returns when to call Next if nothing else happens; zero is never. It does not cover NextDoubtful.
func (q *Queue) Wake(now time.Time) time.Time {
	if len(q.queued) > q.inDoubt && q.window < q.opts.Window {
		return now
	}
	var at time.Time
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for key, f := range q.flights {
		if _, turn := q.turns[key]; !turn && !f.parked {
			sooner(f.due)
		}
	}
	for _, r := range q.retries {
		if r.waiting {
			sooner(r.at)
		}
	}
	return at
}

// Len counts the keys that wait, paused or not, and the messages that wait for an ack.
func (q *Queue) Len() (waiting, unacked int) {
	waiting = len(q.queued)
	for key, r := range q.retries {
		if f := q.flights[key]; r.waiting && f == nil {
			waiting++
		}
	}
	return waiting, len(q.flights)
}
