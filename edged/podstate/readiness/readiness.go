// Package readiness tracks which sources of pods were read since the start of a run. Two decisions depend on it:
//
//   - Pods start once both sources were asked, so that pods that are in memory run even if the store fails.
//   - Pods, images and folders that seem unused are removed only once all pods are known: a source that was not read
//     may need them.
package readiness

import "sync"

// Tracker is the state of one run. Its methods may be called from any goroutine.
type Tracker struct {
	mu sync.Mutex
	// staticRead says that the manifest folder was read; storeAsked, that the store was asked; storeRead, that it
	// answered.
	staticRead, storeAsked, storeRead bool
	// damaged says that rows of the store may have been lost, and that the API server has not sent them again.
	damaged bool
	started bool
}

// New returns a tracker without any source read. damaged says that rows of the store may have been lost.
func New(damaged bool) *Tracker { return &Tracker{damaged: damaged} }

// StaticRead records that the manifest folder was read, and reports whether this was the first time.
func (t *Tracker) StaticRead() (first bool) { return t.set(&t.staticRead) }

// StoreAsked records that the store was asked for its pods, whether or not it answered.
func (t *Tracker) StoreAsked() { t.set(&t.storeAsked) }

// StoreRead records that all pods of the store were read.
func (t *Tracker) StoreRead() { t.set(&t.storeRead) }

// StoreRepaired records that the API server has sent all that should be in the store.
func (t *Tracker) StoreRepaired() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.damaged = false
}

// Start records that the pods were handed to their workers, and reports whether this was the first time.
func (t *Tracker) Start() (first bool) { return t.set(&t.started) }

// MayStart reports whether both sources were asked.
func (t *Tracker) MayStart() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.staticRead && t.storeAsked
}

// SourcesRead reports whether both sources answered. Rows that the store has lost are not waited for.
func (t *Tracker) SourcesRead() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.staticRead && t.storeRead
}

// Started reports whether the pods were handed to their workers.
func (t *Tracker) Started() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.started
}

// AllPodsKnown reports whether no pod can be missing from the desired ones, so that the rest may be removed.
func (t *Tracker) AllPodsKnown() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.started && t.staticRead && t.storeRead && !t.damaged
}

// set sets one of the tracker's fields, and reports whether it was false.
func (t *Tracker) set(field *bool) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first, *field = !*field, true
	return first
}
