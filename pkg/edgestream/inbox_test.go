package edgestream

import (
	"errors"
	"runtime"
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
		for b.hasRoom(len(big)) && b.Give(big, done) {
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

// TestInboxMemory: what waits in an inbox takes memory, and so does what was taken last; without memory, nothing is
// given.
func TestInboxMemory(t *testing.T) {
	const all = 2*(chunkLeast+chunkCost) + chunkCost
	p := &purse{left: all}
	b, other, third := NewInbox(p), NewInbox(p), NewInbox(p)
	give := func(b *Inbox, n int) bool { return b.Give(make([]byte, n), nil) }
	if !give(b, 5) || !give(other, 3) || give(third, 1) || p.left != chunkCost {
		t.Fatalf("%d bytes are left after 5 and 3 were given, want %d, and no more given", p.left, chunkCost)
	}
	if data, _ := b.Take(nil); len(data) != 5 || b.Cost() != chunkLeast+chunkCost || p.left != chunkCost {
		t.Errorf("%d bytes taken, which cost %d, and %d are left; want 5, %d and %d: they are still held", len(data),
			b.Cost(), p.left, chunkLeast+chunkCost, chunkCost)
	}
	done := make(chan struct{})
	close(done)
	if data, _ := b.Take(done); len(data) != 0 || b.Cost() != 0 || !give(third, 1) {
		t.Errorf("%d bytes taken again, which cost %d; want none, and room for another inbox", len(data), b.Cost())
	}
	if !give(other, 2) || other.Cost() != chunkLeast+chunkCost {
		t.Errorf("5 bytes given in two parts cost %d, want %d: they share a chunk", other.Cost(), chunkLeast+chunkCost)
	}
	for _, dropped := range []*Inbox{other, other, third, b} {
		dropped.Drop()
	}
	if !give(other, 1) || p.left != all {
		t.Errorf("%d are left after all was dropped, want %d, and that an inbox that is dropped takes nothing",
			p.left, all)
	}
}

// TestDropReturnsWhatWasTaken: the memory of what was taken last is returned once, with the rest or by the next Take.
func TestDropReturnsWhatWasTaken(t *testing.T) {
	const all = 10 << 20
	p := &purse{left: all}
	b := NewInbox(p)
	for range 3 {
		b.Give(make([]byte, piece), nil)
	}
	b.Take(nil)
	b.Drop()
	if data, more := b.Take(nil); len(data) > 0 || more || p.left != all || b.Cost() != 0 {
		t.Errorf("after Drop %d bytes and %v were taken, %d of %d are left, and the cost is %d; want nothing, all, 0",
			len(data), more, p.left, all, b.Cost())
	}
}

// inUse is the memory of the heap after a collection.
func inUse() int64 {
	runtime.GC()
	runtime.GC() // what the first one has only begun to free
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestInboxHeap: what inboxes keep on the heap is counted, whatever part of it was taken.
func TestInboxHeap(t *testing.T) {
	const inboxes, slack = 32, 1 << 20
	for name, tc := range map[string]struct {
		frame, frames int
		// left is how many bytes are not taken.
		left int
	}{
		"nothing is taken":              {32 << 10, 32, 32 << 10 * 32},
		"the last piece is held":        {32 << 10, 32, 0},
		"a byte is left":                {held - 1, 1, 1},
		"a frame is left":               {33 << 10, 31, 33 << 10},
		"a byte is left after a frame":  {piece, 15, 1},
		"one frame of the largest size": {MaxData, 1, MaxData - piece},
		"small frames, half is taken":   {100, 10_000, 500_000},
	} {
		t.Run(name, func(t *testing.T) {
			const all = 1 << 40
			before := inUse()
			p := &purse{left: all}
			var kept [inboxes]*Inbox
			var pieces [inboxes][]byte
			for i := range kept {
				b := NewInbox(p)
				for range tc.frames {
					if !b.Give(make([]byte, tc.frame), nil) {
						t.Fatal("a frame was not taken")
					}
				}
				if tc.left == 1 {
					b.Give(make([]byte, 1), nil)
				}
				for taken := 0; taken < tc.frame*tc.frames-tc.left; taken += len(pieces[i]) {
					pieces[i], _ = b.Take(nil)
				}
				kept[i] = b
			}
			used, counted := inUse()-before, all-p.left
			if used > counted+slack {
				t.Errorf("%d KiB on the heap are counted as %d KiB", used>>10, counted>>10)
			}
			if most := used + used/4 + slack; counted > most {
				t.Errorf("%d KiB are counted, but %d KiB are on the heap", counted>>10, used>>10)
			}
			runtime.KeepAlive(kept)
			runtime.KeepAlive(pieces)
		})
	}
}

// TestTinyFrames: frames of a byte cost little more than their bytes, so a node cannot fill its share with few of them.
func TestTinyFrames(t *testing.T) {
	b := NewInbox(&purse{left: 1 << 40})
	for n := int64(1); n <= 200_000; n++ {
		if !b.Give([]byte{1}, nil) {
			t.Fatal("a byte was not taken")
		}
		if most := 3*n + chunkLeast + chunkCost; b.Cost() > most && b.Cost() > 2*chunkGrown {
			t.Fatalf("%d frames of a byte cost %d, want at most %d", n, b.Cost(), most)
		}
	}
	if most := int64(200_000 + 2*chunkGrown); b.Cost() > most {
		t.Errorf("200,000 frames of a byte cost %d, want at most %d", b.Cost(), most)
	}
	n := 0
	done := make(chan struct{})
	close(done)
	for more := true; more; {
		var data []byte
		data, more = b.Take(done)
		n += len(data)
	}
	if n != 200_000 {
		t.Errorf("%d bytes were taken, want all", n)
	}
}
