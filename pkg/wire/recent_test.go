package wire

import (
	"fmt"
	"testing"
)

func TestRecent(t *testing.T) {
	var r Recent
	for i := range 3 * recentKept {
		id := fmt.Sprint("id-", i)
		if r.Has(id) {
			t.Errorf("%s is known before it came", id)
		}
		r.Add(id)
	}
	for i := range 3 * recentKept {
		if got, want := r.Has(fmt.Sprint("id-", i)), i >= 2*recentKept; got != want {
			t.Errorf("id-%d known: %v, want %v", i, got, want)
		}
	}
	if cap(r.ids) > recentKept {
		t.Errorf("%d ids take room for %d", len(r.ids), cap(r.ids))
	}
}
