package queue

import "github.com/edgecore-io/edgecore/pkg/resource"

// Reset tells what the peer holds, and what it is to have in the order in which it is to be sent. Messages without
// an ack are forgotten: of their objects nobody knows what the peer holds. The keys of both are looked at from now
// on, and those that were marked before; Synced says when that is done. What the peer holds and is not to have goes
// first. The queue keeps held.
func (q *Queue) Reset(held map[resource.Key]State, desired []resource.Key) {
	for key, f := range q.flights {
		if h, ok := held[key]; ok {
			held[key] = State{UID: h.UID}
		} else {
			held[key] = State{UID: f.state.UID}
		}
	}
	var marked []resource.Key
	for key := range q.queued {
		marked = append(marked, key)
	}
	for key := range q.retries {
		marked = append(marked, key)
	}
	for key := range q.flights {
		marked = append(marked, key)
	}
	q.held = held
	q.order, q.queued, q.flights, q.ids, q.retries, q.window = nil, nil, nil, nil, nil, 0
	wanted := make(map[resource.Key]struct{}, len(desired))
	for _, key := range desired {
		wanted[key] = struct{}{}
	}
	q.syncing = make(map[resource.Key]struct{}, len(desired))
	q.order = make([]resource.Key, 0, len(desired))
	for key := range held {
		if _, ok := wanted[key]; !ok {
			q.push(key)
			q.syncing[key] = struct{}{}
		}
	}
	for _, key := range desired {
		q.push(key)
		q.syncing[key] = struct{}{}
	}
	for _, key := range marked {
		q.push(key)
	}
}

// Synced tells whether every key of the last Reset was seen to: the peer acked what it lacked.
func (q *Queue) Synced() bool { return len(q.syncing) == 0 }

// settle notes that a key needs nothing more.
func (q *Queue) settle(key resource.Key) {
	if q.syncing == nil {
		return
	}
	if _, ok := q.queued[key]; ok {
		return
	}
	delete(q.syncing, key)
	if len(q.syncing) == 0 {
		q.syncing = nil
	}
}

// Held is what the peer is known to hold of an object.
func (q *Queue) Held(key resource.Key) (State, bool) {
	s, ok := q.held[key]
	return s, ok
}
