package wire

import (
	"hash/fnv"
	"slices"
	"sync"
)

// recentKept is how many ids are remembered: more than a node has under way at a time.
const recentKept = 64

// Recent remembers which messages were carried out lately. A network or a proxy that repeats a message, late perhaps,
// must not bring back what has changed since. Its zero value remembers nothing; at rest it takes half a KB at most.
type Recent struct {
	mu   sync.Mutex
	ids  []uint64
	next int
}

// Has reports whether a message is among the last that were added.
func (r *Recent) Has(id string) bool {
	sum := hashed(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.ids, sum)
}

// Add remembers a message, in the place of the oldest.
func (r *Recent) Add(id string) {
	sum := hashed(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ids) < recentKept {
		r.ids = append(r.ids, sum)
		return
	}
	r.ids[r.next] = sum
	r.next = (r.next + 1) % recentKept
}

func hashed(id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // never fails
	return h.Sum64()
}
