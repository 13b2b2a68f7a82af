package auth

import (
	"crypto/sha256"
	"time"

	"k8s.io/utils/lru"
)

// key is a digest of what was asked: no token lies in memory longer than its request.
type key [sha256.Size]byte

// cache keeps the newest answers, as many as its size. The least recently used one goes first. Its methods may be
// called from any goroutine.
type cache[V any] struct{ entries *lru.Cache }

type entry[V any] struct {
	value V
	at    time.Time
}

func newCache[V any](size int) *cache[V] { return &cache[V]{lru.New(size)} }

// get returns an answer and its age.
func (c *cache[V]) get(k key) (value V, age time.Duration, ok bool) {
	got, ok := c.entries.Get(k)
	if !ok {
		return value, 0, false
	}
	e := got.(entry[V])
	return e.value, time.Since(e.at), true
}

// put keeps an answer of now.
func (c *cache[V]) put(k key, value V) { c.entries.Add(k, entry[V]{value, time.Now()}) }

// len is how many there are.
func (c *cache[V]) len() int { return c.entries.Len() }

// drop forgets an answer.
func (c *cache[V]) drop(k key) { c.entries.Remove(k) }
