// Package shares limits what clients may take of something, and divides it by source, so that no client can use it up
// for the others. All ports of edgecore and cloudcore count with it, before anything is opened for a client.
//
//   - Budget is an amount of anything: places in a queue, streams, bytes of memory. Each key may have a share of it.
//   - Conns are the connections of a port, or of several ports, from when they are accepted until their client has
//     shown what it may do.
package shares

import "sync"

// Budget is an amount, of which each key may have a share. Its methods may be called from any goroutine. Its memory is
// bounded by the amount: keys that have nothing are forgotten.
type Budget[K comparable] struct {
	total, share int64

	mu    sync.Mutex
	taken int64
	keys  map[K]int64
}

// NewBudget returns a budget. share is the most that a key may have; at least 1.
func NewBudget[K comparable](total, share int64) *Budget[K] {
	return &Budget[K]{total: total, share: max(share, 1), keys: map[K]int64{}}
}

// Take takes an amount for a key, and reports whether there was as much. If there was not, it takes nothing.
func (b *Budget[K]) Take(key K, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.total-b.taken || n > b.share-b.keys[key] {
		return false
	}
	b.taken += n
	b.keys[key] += n
	return true
}

// Return gives back what Take has taken.
func (b *Budget[K]) Return(key K, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken -= n
	if b.keys[key] -= n; b.keys[key] == 0 {
		delete(b.keys, key)
	}
}

// Largest returns the key that has most, and how much; 0 is that no key has anything.
func (b *Budget[K]) Largest() (key K, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, has := range b.keys {
		if has > n {
			key, n = k, has
		}
	}
	return key, n
}

// Taken returns how much all keys have.
func (b *Budget[K]) Taken() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken
}

// Share returns the most that a key may have.
func (b *Budget[K]) Share() int64 { return b.share }

// Of returns how much a key has.
func (b *Budget[K]) Of(key K) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.keys[key]
}
