package footprint

import (
	"context"
	"fmt"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func TestWorth(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		name                string
		idle, objects, live uint64
		want                bool
	}{
		{"after a storm", 50 * mb, 100 * mb, 100 * mb, true},
		{"garbage", 0, 130 * mb, 100 * mb, true},
		{"at rest", 5 * mb, 105 * mb, 100 * mb, false},
		{"small", 5 * mb, 20 * mb, 18 * mb, false},
		{"less than before", 0, 90 * mb, 100 * mb, false},
	} {
		if got := isWorthwhile(c.idle, c.objects, c.live, 64*mb); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestTrim: what was needed for a while is given back to the machine.
func TestTrim(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // Go itself gives nothing back
	fill(64 << 20)
	before := released()
	wg.Go(func() { Trim(ctx, TrimOptions{Every: 10 * time.Millisecond, Heap: 8 << 20}) })
	wait.Until(t, "60 MB of the heap to be given back", func() error {
		if now := released(); now < before+60<<20 {
			return fmt.Errorf("%d bytes were given back before, and %d now", before, now)
		}
		return nil
	})
}

// fill makes garbage of so many bytes.
func fill(n int) {
	for lot := make([]byte, n); len(lot) > 0; lot = lot[1<<12:] {
		lot[0] = 1
	}
}

// released is how much of the heap the machine has back, in bytes.
func released() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
