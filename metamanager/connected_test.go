package metamanager

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/metamanager/store"
)

// TestConnectedSince: the first connection with a schema counts, and only that is written.
func TestConnectedSince(t *testing.T) {
	db := openStore(t)
	at := func(day int) time.Time { return time.Date(2026, 5, day, 0, 0, 0, 0, time.UTC) }
	if got := ConnectedSince(t.Context(), db); !got.IsZero() {
		t.Errorf("ConnectedSince before any connection = %v, want zero", got)
	}
	set := func(note string) {
		t.Helper()
		if err := db.Apply(t.Context(), store.AgentSet(store.ConnectedNote, note)); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		name      string
		note      string // that was there before; "" for the one of the step before
		now, want time.Time
	}{
		{"the first", "", at(10), at(10)},
		{"a later one", "", at(20), at(10)},
		{"the clock was set back", "", at(5), at(5)},
		{"the one after that", "", at(6), at(5)},
		{"of another schema", fmt.Sprintf("%d 2026-05-01T00:00:00Z", store.SchemaVersion()+1), at(7), at(7)},
		{"spoilt", "7", at(8), at(8)},
		{"a spoilt time", fmt.Sprintf("%d yesterday", store.SchemaVersion()), at(9), at(9)},
	} {
		if step.note != "" {
			set(step.note)
			if got := ConnectedSince(t.Context(), db); !got.IsZero() {
				t.Errorf("%s: ConnectedSince = %v, want zero", step.name, got)
			}
		}
		RememberConnected(t.Context(), db, step.now)
		if got := ConnectedSince(t.Context(), db); !got.Equal(step.want) {
			t.Errorf("%s: ConnectedSince = %v, want %v", step.name, got, step.want)
		}
	}
}

// TestConnectedIsCalled: whoever wants to know hears of each new link, whatever cloud it is to.
func TestConnectedIsCalled(t *testing.T) {
	var calls atomic.Int32
	e, _ := newLinked(t, Options{Connected: func(context.Context) { calls.Add(1) }})
	for i, text := range []string{down, up, down, up} {
		e.link(text)
		if got, want := int(calls.Load()), (i+1)/2; got != want {
			t.Errorf("after %d reports on the link: %d calls, want %d", i+1, got, want)
		}
	}
}
