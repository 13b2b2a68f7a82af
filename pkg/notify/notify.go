// Package notify tells a goroutine that something has changed, without waiting for it.
package notify

// Signal wakes the one goroutine that receives from it. Notifications that come before it receives are one: it has to
// look at everything that may have changed. Make it with NewSignal.
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
