package wire

import (
	"hash/fnv"
	"slices"
	"sync"
)

// recentKept is how many ids are remembered: more than a node has in flight.
const recentKept = 64

// Recent remembers recently handled messages. A network or proxy that repeats a message, perhaps late, must not undo
// later changes. Its zero value remembers nothing; when idle it takes half a KB at most.
type Recent struct {
	mu   sync.Mutex
	ids  []uint64
	next int
}

// Has reports whether a message is among the last added.
func (r *Recent) Has(id string) bool {
	sum := hashed(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.ids, sum)
}

// Add remembers a message in place of the oldest.
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
