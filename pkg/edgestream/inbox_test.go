package edgestream

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowReceiver: a receiver that does not read holds a bounded number of bytes, and is given up after a while.
func TestSlowReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewInbox(nil)
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

// purse is a memory of so many bytes.
type purse struct{ left int64 }

func (p *purse) Take(n int64) error {
	if n > p.left {
		return errors.New("none is left")
	}
	p.left -= n
	return nil
}

func (p *purse) Return(n int64) { p.left += n }

// TestInboxMemory: what waits in an inbox takes memory until it is taken or dropped; without memory, nothing is given.
func TestInboxMemory(t *testing.T) {
	const all = 8 * costOfByte
	p := &purse{left: all}
	b, other := NewInbox(p), NewInbox(p)
	give := func(b *Inbox, n int) bool { return b.Give(make([]byte, n), nil) }
	if !give(b, 5) || !give(other, 3) || give(other, 1) || p.left != 0 {
		t.Fatalf("%d bytes are left after 5 and 3 of 8 were given, want none, and no more given", p.left)
	}
	if data, _ := b.Take(nil); len(data) != 5 || p.left != 5*costOfByte || !give(other, 2) {
		t.Errorf("%d bytes taken, and then %d left; want 5, and room for 2 more", len(data), p.left)
	}
	if n := other.Waiting(); n != 5 {
		t.Errorf("%d bytes wait, want 5", n)
	}
	other.Drop()
	other.Drop()
	if !give(other, 1) || p.left != all {
		t.Errorf("%d are left after all was dropped, want %d, and that an inbox that is dropped takes nothing",
			p.left, all)
	}
}
