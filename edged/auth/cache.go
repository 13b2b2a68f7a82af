package auth

import (
	"container/list"
	"crypto/sha256"
	"sync"
	"time"
)

// key is a digest of what was asked: no token lies in memory longer than its request.
type key [sha256.Size]byte

// cache keeps the newest answers, as many as its size. What is used least recently goes first.
type cache[V any] struct {
	mu    sync.Mutex
	size  int
	order *list.List // of *entry[V], newest use first
	index map[key]*list.Element
}

type entry[V any] struct {
	key   key
	value V
	at    time.Time
}

func newCache[V any](size int) *cache[V] {
	return &cache[V]{size: size, order: list.New(), index: map[key]*list.Element{}}
}

// get returns an answer and its age.
func (c *cache[V]) get(k key) (value V, age time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.index[k]
	if !ok {
		return value, 0, false
	}
	c.order.MoveToFront(e)
	got := e.Value.(*entry[V])
	return got.value, time.Since(got.at), true
}

// put keeps an answer of now.
func (c *cache[V]) put(k key, value V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.index[k]; ok {
		*e.Value.(*entry[V]) = entry[V]{k, value, time.Now()}
		c.order.MoveToFront(e)
		return
	}
	c.index[k] = c.order.PushFront(&entry[V]{k, value, time.Now()})
	if c.order.Len() > c.size {
		oldest := c.order.Back()
		delete(c.index, oldest.Value.(*entry[V]).key)
		c.order.Remove(oldest)
	}
}

// len is how many there are.
func (c *cache[V]) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.order.Len()
}

// drop forgets an answer.
func (c *cache[V]) drop(k key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.index[k]; ok {
		delete(c.index, k)
		c.order.Remove(e)
	}
}
