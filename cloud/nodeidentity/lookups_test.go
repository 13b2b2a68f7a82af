package nodeidentity

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// flood tries lookups from a source as often as they come, in as many goroutines as connections, until ctx ends.
func flood(ctx context.Context, all *sync.WaitGroup, l lookups, from netip.Prefix, name func(i int) string) {
	for i := range 100 {
		all.Go(func() {
			for n := i; ctx.Err() == nil; n += 100 {
				once, cancel := context.WithTimeout(ctx, lookupTimeout)
				if l.wait(once, name(n), from) != nil {
					select { // the connection is refused and comes again
					case <-time.After(time.Second):
					case <-ctx.Done():
					}
				}
				cancel()
			}
		})
	}
}

// TestLookupsAreShared: while one source tries as many names as it can, or one name as often as it can, devices at
// other addresses are looked up without waiting, also the one that has the name.
func TestLookupsAreShared(t *testing.T) {
	attacker := netip.MustParsePrefix("192.0.2.1/32")
	for what, name := range map[string]func(int) string{
		"many names": func(i int) string { return fmt.Sprintf("worker-%d", i) },
		"one name":   func(int) string { return "worker-7" },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLookups(DefaultLookupsPerSource)
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				defer all.Wait()
				defer cancel()
				flood(ctx, &all, l, attacker, name)
				time.Sleep(time.Minute)
				began := time.Now()
				for i := range 20 {
					from := netip.MustParsePrefix(fmt.Sprintf("198.51.100.%d/32", i))
					if err := l.wait(t.Context(), "worker-7", from); err != nil {
						t.Errorf("the device at %s: %v, want no error", from, err)
					}
				}
				if got := time.Since(began); got != 0 {
					t.Errorf("20 devices waited for %v, want 0", got)
				}
			})
		})
	}
}

// TestLookupsOfOneName: many sources that try one name leave lookups of other names.
func TestLookupsOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLookups(DefaultLookupsPerSource)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		for i := range 20 {
			from := netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/32", i))
			flood(ctx, &all, l, from, func(int) string { return "worker-7" })
		}
		time.Sleep(time.Minute)
		began := time.Now()
		if err := l.wait(t.Context(), "worker-8", netip.MustParsePrefix("198.51.100.1/32")); err != nil ||
			time.Since(began) != 0 {
			t.Errorf("another name: %v after %v, want no error at once", err, time.Since(began))
		}
	})
}

// TestLookupsOfOneSource: a source that is over its limit is refused within the time of a lookup, and has its share
// again later.
func TestLookupsOfOneSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 7
		l, from := newLookups(rate), netip.MustParsePrefix("192.0.2.1/32")
		try := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			return l.wait(ctx, "worker-7", from)
		}
		n := 0
		for try() == nil {
			n++
		}
		if n != rate*lookupBurst {
			t.Errorf("%d lookups at once, want %d", n, rate*lookupBurst)
		}
		time.Sleep(time.Second)
		for n = 0; try() == nil; n++ {
		}
		if n != rate {
			t.Errorf("%d lookups after a second, want %d", n, rate)
		}
	})
}
