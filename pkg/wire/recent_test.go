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
			t.Errorf("Has(%s) before Add = true, want false", id)
		}
		r.Add(id)
	}
	for i := range 3 * recentKept {
		if got, want := r.Has(fmt.Sprint("id-", i)), i >= 2*recentKept; got != want {
			t.Errorf("id-%d known: %v, want %v", i, got, want)
		}
	}
	if cap(r.ids) > recentKept {
		t.Errorf("%d ids take room for %d, want at most %d", len(r.ids), cap(r.ids), recentKept)
	}
}
