// Package smallsort sorts as package slices does, with less code: slices.SortFunc is compiled again for each type of
// element that is not a pointer, 4 to 14 KB each time, which was 1 % of edgecore. It is a little slower, so it is for
// lists that are short or rarely sorted.
package smallsort

import "sort"

// SortFunc sorts a slice like slices.SortFunc: compare returns a negative number if a comes before b, a positive one if
// b does. Equal elements may change places.
func SortFunc[T any](s []T, compare func(a, b T) int) { sort.Sort(list[T]{s, compare}) }

// SortStableFunc is SortFunc, but equal elements keep their order.
func SortStableFunc[T any](s []T, compare func(a, b T) int) { sort.Stable(list[T]{s, compare}) }

// list implements sort.Interface.
type list[T any] struct {
	s       []T
	compare func(a, b T) int
}

func (l list[T]) Len() int           { return len(l.s) }
func (l list[T]) Less(i, j int) bool { return l.compare(l.s[i], l.s[j]) < 0 }
func (l list[T]) Swap(i, j int)      { l.s[i], l.s[j] = l.s[j], l.s[i] }
