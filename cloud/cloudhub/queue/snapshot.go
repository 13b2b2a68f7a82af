package queue

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Reset sets what the peer holds, and what it must have in the order to send it. It queues the keys of both and those
// marked before; Synced reports when they are done. Objects that the peer must not have go first; those that only the
// peer has named are doubtful. The queue keeps held.
//
// The peer may send another inventory while messages and acks travel. That inventory may be older than acks that
// arrived before it. So it shows only that the peer may hold an object, unless both agree. Messages without an ack are
// forgotten: which version the peer holds is unknown.
func (q *Queue) Reset(held map[resource.Key]State, desired []resource.Key) {
	q.merge(held)
	marked := map[resource.Key]struct{}{}
	mark := func(key resource.Key) {
		if _, ok := q.doubts[key]; !ok {
			marked[key] = struct{}{}
		}
	}
	for key := range q.queued {
		mark(key)
	}
	for key := range q.retries {
		mark(key)
	}
	for key := range q.flights {
		mark(key)
	}
	q.order, q.queued, q.flights, q.ids, q.retries, q.window = nil, nil, nil, nil, nil, 0
	q.doubts, q.doubtful, q.inDoubt = nil, nil, 0
	wanted := make(map[resource.Key]struct{}, len(desired))
	for _, key := range desired {
		wanted[key] = struct{}{}
	}
	q.syncing = make(map[resource.Key]struct{}, len(desired))
	q.order = make([]resource.Key, 0, len(desired))
	for key := range q.held {
		if _, ok := wanted[key]; !ok {
			if _, ok := marked[key]; !ok {
				q.doubt(key)
			}
			q.push(key)
			q.syncing[key] = struct{}{}
		}
	}
	for _, key := range desired {
		q.push(key)
		q.syncing[key] = struct{}{}
	}
	for key := range marked {
		q.push(key)
	}
}

// merge combines the peer's inventory with what is known into what it may hold.
func (q *Queue) merge(told map[resource.Key]State) {
	if q.reported {
		for key, t := range told {
			if _, ok := q.held[key]; !ok {
				told[key] = State{UID: t.UID} // a delete may have been acked meanwhile
			}
		}
	}
	q.reported, q.others = true, nil
	for key, h := range q.held {
		t, ok := told[key]
		switch {
		case ok && t.UID == h.UID && t.Version == h.Version && h.Version != "":
			told[key] = h
			continue
		case ok && t.UID != h.UID:
			if q.others == nil {
				q.others = map[resource.Key]types.UID{}
			}
			q.others[key] = t.UID
		}
		told[key] = State{UID: h.UID}
	}
	q.held = told
}

// Synced reports whether every key of the last Reset is done: the peer acked what it lacked.
func (q *Queue) Synced() bool { return len(q.syncing) == 0 }

// forgetIfDone records that a key needs nothing more.
func (q *Queue) forgetIfDone(key resource.Key) {
	if q.syncing == nil {
		return
	}
	if _, ok := q.queued[key]; ok {
		return
	}
	if _, ok := q.turns[key]; ok {
		return
	}
	delete(q.syncing, key)
	if len(q.syncing) == 0 {
		q.syncing = nil
	}
}

// Held returns what the peer is known to hold of an object.
func (q *Queue) Held(key resource.Key) (State, bool) {
	s, ok := q.held[key]
	return s, ok
}
