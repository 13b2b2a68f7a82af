package metamanager

import (
	"context"
	"fmt"
	"sync"
)

// inHand is how many messages are worked on at once: enough for the store to gather them into shared
// transactions, and few enough that what waits, waits on the bus, where it can be seen.
const inHand = 64

// keyedExecutor runs work that has keys: work of one key in the order in which it arrives, work of different keys
// concurrently. A key has a goroutine only while it has work, so an idle device has none. Work that panics counts as
// done.
type keyedExecutor struct {
	// room has a token for each message in hand.
	room chan struct{}

	mu sync.Mutex
	// waiting is what comes after the work that is done now, for each key that has some.
	waiting map[string][]work
	// last is the number of the newest work, open are the numbers of what is in hand.
	last int64
	open map[int64]bool
	// barriers wait for all work up to a number.
	barriers []barrier
}

type work struct {
	number int64
	do     func()
}

type barrier struct {
	upTo int64
	done chan struct{}
}

func newKeyedExecutor() *keyedExecutor {
	return &keyedExecutor{room: make(chan struct{}, inHand), waiting: map[string][]work{}, open: map[int64]bool{}}
}

// enqueue takes work on, and waits while too much is in hand.
func (e *keyedExecutor) enqueue(key string, do func()) {
	e.room <- struct{}{}
	e.enqueueNow(key, func() {
		defer func() { <-e.room }()
		do()
	})
}

// runInTurn has work done in its turn, and returns its error. It waits for no room, since those that have it may wait
// for anyone who waits here. When ctx ends before, the work may yet be done. Work must not call runInTurn.
func (e *keyedExecutor) runInTurn(ctx context.Context, key string, do func() error) error {
	done := make(chan error, 1)
	e.enqueueNow(key, func() {
		err := fmt.Errorf("%s: internal error", key)
		defer func() { done <- err }() // also after a panic
		err = do()
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *keyedExecutor) enqueueNow(key string, do func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last++
	w := work{e.last, do}
	e.open[w.number] = true
	if queue, busy := e.waiting[key]; busy {
		e.waiting[key] = append(queue, w)
		return
	}
	e.waiting[key] = nil
	go e.run(key, w)
}

// run does the queued work of a key.
func (e *keyedExecutor) run(key string, w work) {
	for ok := true; ok; {
		guard(context.Background(), func(context.Context) { w.do() })
		w, ok = e.next(key, w.number)
	}
}

// next ends a piece of work, and returns the one after it.
func (e *keyedExecutor) next(key string, done int64) (w work, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.open, done)
	e.wakeWaiters()
	queue := e.waiting[key]
	if len(queue) == 0 {
		delete(e.waiting, key)
		return work{}, false
	}
	e.waiting[key] = queue[1:]
	return queue[0], true
}

// idle returns a channel that is closed when all work that was put so far is done. It does not wait for what comes
// later.
func (e *keyedExecutor) idle() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	done := make(chan struct{})
	e.barriers = append(e.barriers, barrier{e.last, done})
	e.wakeWaiters()
	return done
}

// wakeWaiters ends the waits for what is done; e.mu is held.
func (e *keyedExecutor) wakeWaiters() {
	if len(e.barriers) == 0 {
		return
	}
	oldest := e.last + 1
	for number := range e.open {
		oldest = min(oldest, number)
	}
	left := e.barriers[:0]
	for _, b := range e.barriers {
		if oldest > b.upTo {
			close(b.done)
		} else {
			left = append(left, b)
		}
	}
	e.barriers = left
}

// wait waits until all that was put is done.
func (e *keyedExecutor) wait() { <-e.idle() }
