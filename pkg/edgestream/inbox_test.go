package edgestream

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowReceiver: a receiver that does not read holds a bounded number of bytes, and is given up after a while.
func TestSlowReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewInbox()
		done := make(chan struct{})
		big := make([]byte, 300<<10)
		given := 0
		for b.offer(big) {
			given += len(big)
		}
		if given > held || given < held-len(big) {
			t.Errorf("%d bytes wait, want at most %d", given, held)
		}
		start := time.Now()
		if b.Give(big, done) || time.Since(start) != slowReceiver {
			t.Errorf("given up after %v, want %v", time.Since(start), slowReceiver)
		}
		go func() {
			time.Sleep(time.Second)
			b.Take(done)
		}()
		if !b.Give(big, done) {
			t.Error("a receiver that reads again is given up")
		}
		b.End()
		if data, more := b.Take(done); len(data) != len(big) || more {
			t.Errorf("take = %d bytes, %v; want the last ones and the end", len(data), more)
		}
	})
}
