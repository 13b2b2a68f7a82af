package wan

import (
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// TestPass: packets leave one after the other as the bandwidth allows, and are there after the delay.
func TestPass(t *testing.T) {
	start := time.Unix(1000, 0)
	ms := func(n int) time.Time { return start.Add(time.Duration(n) * time.Millisecond) }
	q := Quality{Delay: 25 * time.Millisecond, BytesPerSecond: 1e6, Queue: 3 * time.Millisecond, Loss: 0.01}
	var l line
	for i, c := range []struct {
		now, due time.Time
		chance   float64
		passes   bool
	}{
		{now: start, chance: 0.5, due: ms(26), passes: true},
		{now: start, chance: 0.5, due: ms(27), passes: true},
		{now: start, chance: 0.009},
		{now: start, chance: 0.5, due: ms(28), passes: true},
		{now: start, chance: 0.5, due: ms(29), passes: true}, // waits for 3 ms
		{now: start, chance: 0.5},                            // would wait for 4 ms
		{now: ms(2), chance: 0.5, due: ms(30), passes: true},
		{now: ms(100), chance: 0.01, due: ms(126), passes: true}, // the line was free
	} {
		if due, passes := l.pass(q, 1000, c.now, c.chance); passes != c.passes || !due.Equal(c.due) {
			t.Errorf("packet %d: pass = %v, %v, want %v, %v", i, due, passes, c.due, c.passes)
		}
	}
	if due, passes := new(line).pass(Quality{Delay: time.Second}, 1500, start, 0); !passes ||
		!due.Equal(start.Add(time.Second)) {
		t.Errorf("without bandwidth and loss: pass = %v, %v, want one second later", due, passes)
	}
}
