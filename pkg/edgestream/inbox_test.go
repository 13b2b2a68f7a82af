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
		taken := make(chan int)
		go func() {
			n := 0
			for more := true; more; {
				var data []byte
				time.Sleep(slowReceiver * 2 / 3)
				data, more = b.Take(done)
				n += len(data)
			}
			taken <- n
		}()
		for range 3 {
			if !b.Give(big, done) {
				t.Error("a receiver that reads slowly is given up")
			}
			given += len(big)
		}
		b.End()
		if n := <-taken; n != given {
			t.Errorf("%d bytes were taken, want all %d, also those that waited at the end", n, given)
		}
	})
}
