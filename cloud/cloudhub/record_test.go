package cloudhub

import (
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/wire"
)

// TestRecord: what String returns is read again, and nothing else is.
func TestRecord(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 10, 11, 12, 345678910, time.FixedZone("", 3600))
	r := Record{}.next(wire.Instance{'A'}, at)
	const want = "41000000000000000000000000000000 2026-11-22T09:11:12.345Z"
	if got := r.String(); got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
	if got := ParseRecord(want); got != r {
		t.Errorf("ParseRecord(%q) = %+v, want %+v", want, got, r)
	}
	for _, bad := range []string{
		"", " ", "x", strings.Repeat("0", 32) + want[32:], strings.ToUpper("a") + want[1:], want + " ", " " + want,
		want[1:],
		want[:32], strings.Replace(want, "Z", "+01:00", 1), strings.Replace(want, "2026", "9999", 1),
		strings.Replace(want, "-11-", "-13-", 1), strings.Repeat("4", 1<<20), "Á" + want[2:],
	} {
		if got := ParseRecord(bad); got != (Record{}) {
			t.Errorf("ParseRecord(%.80q) = %+v, want nothing", bad, got)
		}
	}
	if got := (Record{}).String(); got != "" {
		t.Errorf("String of no record = %q, want none", got)
	}
}

// TestRecordOrder: each record is later than the one that it replaces, also by a cloudcore whose clock is behind.
func TestRecordOrder(t *testing.T) {
	t.Parallel()
	now := time.Now()
	first := Record{}.next(wire.Instance{'A'}, now)
	for _, at := range []time.Time{now, now.Add(-time.Hour), now.Add(time.Microsecond), now.Add(time.Second)} {
		second := first.next(wire.Instance{'B'}, at)
		if again := ParseRecord(second.String()); !again.Since.After(first.Since) || again != second {
			t.Errorf("next of %v at %v = %v, read again as %v; want a later one that is read as it was written",
				first, at, second, again)
		}
	}
}
