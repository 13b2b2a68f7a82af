package smallsort

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

type pair struct{ key, place int }

func byKey(a, b pair) int { return cmp.Compare(a.key, b.key) }

// TestSort: lists of all lengths are sorted as by package slices; the stable form leaves equal elements in their order.
func TestSort(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for length := range 300 {
		var list []pair
		for i := range length {
			list = append(list, pair{random.IntN(1 + length/3), i})
		}
		want := slices.Clone(list)
		slices.SortStableFunc(want, byKey)
		stable := slices.Clone(list)
		SortStableFunc(stable, byKey)
		if !slices.Equal(stable, want) {
			t.Errorf("SortStableFunc(%v) = %v, want %v", list, stable, want)
		}
		SortFunc(list, byKey)
		if !slices.IsSortedFunc(list, byKey) {
			t.Errorf("SortFunc left %v unsorted", list)
		}
	}
}
