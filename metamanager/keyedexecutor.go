package metamanager

import (
	"context"
	"fmt"
	"sync"
)

// inHand is how many messages are worked on at once: enough for the store to gather them into shared
// transactions, and few enough that what waits, waits on the bus, where it can be seen.
const inHand = 64

// keyedExecutor do work: that of one key in the order in which it came, that of different keys side by side. A key has
// a goroutine as long as it has work, so that an idle device has none. Work that panics is done.
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

// put takes work on, and waits while too much is in hand.
func (l *keyedExecutor) put(key string, do func()) {
	l.room <- struct{}{}
	l.begin(key, func() {
		defer func() { <-l.room }()
		do()
	})
}

// do has work done in its turn, and returns its error. It waits for no room, since those that have it may wait for
// anyone who waits here. When ctx ends before, the work may yet be done. Work must not call do.
func (l *keyedExecutor) do(ctx context.Context, key string, do func() error) error {
	done := make(chan error, 1)
	l.begin(key, func() {
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

func (l *keyedExecutor) begin(key string, do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	w := work{l.last, do}
	l.open[w.number] = true
	if queue, busy := l.waiting[key]; busy {
		l.waiting[key] = append(queue, w)
		return
	}
	l.waiting[key] = nil
	go l.run(key, w)
}

// run does the queued work of a key.
func (l *keyedExecutor) run(key string, w work) {
	for ok := true; ok; {
		guard(context.Background(), func(context.Context) { w.do() })
		w, ok = l.next(key, w.number)
	}
}

// next ends a piece of work, and returns the one after it.
func (l *keyedExecutor) next(key string, done int64) (w work, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, done)
	l.lift()
	queue := l.waiting[key]
	if len(queue) == 0 {
		delete(l.waiting, key)
		return work{}, false
	}
	l.waiting[key] = queue[1:]
	return queue[0], true
}

// idle returns a channel that is closed when all work that was put so far is done. It does not wait for what comes
// later.
func (l *keyedExecutor) idle() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	done := make(chan struct{})
	l.barriers = append(l.barriers, barrier{l.last, done})
	l.lift()
	return done
}

// lift ends the waits for what is done; l.mu is held.
func (l *keyedExecutor) lift() {
	if len(l.barriers) == 0 {
		return
	}
	oldest := l.last + 1
	for number := range l.open {
		oldest = min(oldest, number)
	}
	left := l.barriers[:0]
	for _, b := range l.barriers {
		if oldest > b.upTo {
			close(b.done)
		} else {
			left = append(left, b)
		}
	}
	l.barriers = left
}

// wait waits until all that was put is done.
func (l *keyedExecutor) wait() { <-l.idle() }
