package slots

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestPlaces: never more than there are, each in its turn, and nobody waits whose session ends.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := make(Semaphore, 3)
		var now, most, done atomic.Int64
		for range 30 {
			go func() {
				leave, err := p.Acquire(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				defer leave()
				if n := now.Add(1); n > most.Load() {
					most.Store(n)
				}
				time.Sleep(time.Second)
				now.Add(-1)
				done.Add(1)
			}()
		}
		synctest.Wait()
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := p.Acquire(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("take for an ended session = %v, want %v", err, context.Canceled)
		}
		time.Sleep(10*time.Second + 1)
		synctest.Wait()
		if most.Load() != 3 || done.Load() != 30 {
			t.Errorf("%d at the same time, %d done, want 3 and 30", most.Load(), done.Load())
		}
	})
}

// TestPausedRequest: a request that waits for the API server to learn of a pod leaves its room to others.
func TestPausedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := make(Semaphore, 1)
		mine := &Slot{Of: all}
		if err := mine.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		ended := make(chan bool)
		go func() { ended <- Pause(WithSlot(t.Context(), mine), time.Second) }()
		synctest.Wait()
		leave, err := all.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute / 2)
		synctest.Wait()
		select {
		case ok := <-ended:
			t.Fatalf("pause = %v while another request has the room", ok)
		default:
		}
		leave()
		if !<-ended {
			t.Error("pause = false, want true once there is room again")
		}
		mine.Release()
		mine.Release()
		if len(all) != 0 {
			t.Errorf("%d requests have room after all ended", len(all))
		}
	})
}
