// Package notify signals a goroutine that something has changed, without blocking.
package notify

// Signal wakes the one goroutine that receives from it. Several notifications before it receives become one: it must
// check everything that may have changed. Make it with NewSignal.
type Signal chan struct{}

// NewSignal returns a signal without a notification.
func NewSignal() Signal { return make(Signal, 1) }

// Notify leaves a notification, if there is none yet. It never blocks.
func (s Signal) Notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}
