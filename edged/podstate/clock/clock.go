// Package clock checks whether this device's wall clock can be right, and reports when it is set. Devices without a
// battery begin in 1970, or where they were switched off; pods run all the same, and nothing in the agent measures
// durations by the wall clock. What does depend on it (certificates, and times that others read) is looked at again
// when the clock is set, at once and without a poll.
package clock

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Bound is a time that is over for certain, and why.
type Bound struct {
	Time time.Time
	// Of says what is as old as that: "this program was built".
	Of string
}

// Newest is the bound that says most; zero where there is none.
func Newest(bounds ...Bound) Bound {
	if len(bounds) == 0 {
		return Bound{}
	}
	return slices.MaxFunc(bounds, func(a, b Bound) int { return a.Time.Compare(b.Time) })
}

// Doubt says why the clock cannot be right; "" that it may be. A clock that a time server keeps is believed, whatever
// the files of this device say: they may have been written while it was wrong. It is pure.
func Doubt(now time.Time, synchronized bool, bound Bound) string {
	if synchronized || bound.Time.IsZero() || !now.Before(bound.Time) {
		return ""
	}
	return fmt.Sprintf("it says %s, which is in the past: %s at %s", stamp(now),
		cmp.Or(bound.Of, "something here was made"), stamp(bound.Time))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// tolerance is how far the clock may lag behind a file that was written before: those who write round, and clocks
// drift.
const tolerance = time.Minute

// Written is the bound of files that this device wrote: the newest of them. Files that are not there say nothing.
func Written(of string, names ...string) Bound {
	b := Bound{Of: of}
	for _, name := range names {
		if info, err := os.Stat(name); err == nil && info.ModTime().Add(-tolerance).After(b.Time) {
			b.Time = info.ModTime().Add(-tolerance)
		}
	}
	return b
}

// Synchronized reports whether the kernel considers the clock synchronized with a time server.
func Synchronized() bool {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return err == nil && state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
}

// Since is the same moment by the clock of now. A wall time from before the clock was set is wrong, but the time
// elapsed since then is known. It is for times with a monotonic reading, and returns others as they are.
func Since(t, now time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return now.Add(-now.Sub(t))
}
