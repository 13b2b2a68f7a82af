package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// TestDoubtful: a key that only the peer has named comes by NextDoubtful, until something else names it, and also after
// a refusal of its delete.
func TestDoubtful(t *testing.T) {
	now := time.Unix(0, 0)
	q := New(testOptions)
	q.Reset(map[resource.Key]State{pod("a"): {UID: "u"}, pod("b"): {UID: "u"}, pod("c"): {UID: "u", Version: "v"}},
		[]resource.Key{pod("c")})
	var got []string
	note := func(which string, key resource.Key, ok bool) {
		if ok {
			got = append(got, which+" "+key.Name)
		} else {
			got = append(got, which+" none")
		}
	}
	next := func() (key resource.Key) {
		key, ok := q.Next(now)
		note("next", key, ok)
		return key
	}
	nextDoubtful := func() (key resource.Key) {
		key, ok := q.NextDoubtful(now)
		note("doubtful", key, ok)
		return key
	}
	q.Take(next(), want("u", "v", "1"), nil, now)
	next()
	if !q.Doubtful() || !q.Wake(now).IsZero() {
		t.Errorf("Doubtful() = %v, Wake() = %v; want true, never", q.Doubtful(), q.Wake(now))
	}
	q.Mark(pod("a"))
	q.Take(next(), nil, func() string { return "1" }, now)
	q.Take(nextDoubtful(), nil, func() string { return "2" }, now)
	nextDoubtful()
	q.Nack("1", now)
	q.Nack("2", now)
	now = now.Add(time.Second)
	next()
	next()
	nextDoubtful()
	wanted := []string{
		"next c", "next none", "next a", "doubtful b", "doubtful none", "next a", "next none", "doubtful b",
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("turns mismatch (-want +got):\n%s", diff)
	}
}

// TestHoldsIsBounded: of what a peer says it holds beside what is known, no more is kept than is allowed, and its keys
// are doubtful each time that it says so.
func TestHoldsIsBounded(t *testing.T) {
	const most = 10
	now := time.Unix(0, 0)
	q := New(testOptions)
	for range 3 {
		taken := 0
		for i := range 2 * most {
			if q.Holds(pod(fmt.Sprint(i)), types.UID("u"), most) {
				taken++
			}
		}
		if key, ok := q.Next(now); ok || taken != most || len(q.held) != most || q.inDoubt != most {
			t.Errorf("%d taken, %d held, %d doubtful, Next() = %v, %v; want %d each, and none",
				taken, len(q.held), q.inDoubt, key, ok, most)
		}
	}
}

// TestChangeDuringTurn: what changes while someone finds out what the peer is to have is looked at again.
func TestChangeDuringTurn(t *testing.T) {
	now := time.Unix(0, 0)
	q := New(testOptions)
	q.Mark(pod("a"))
	q.Mark(pod("b"))
	a, _ := q.Next(now)
	b, _ := q.Next(now)
	q.Mark(pod("a"))
	if key, ok := q.Next(now); ok {
		t.Errorf("Next() = %v during the turns of all keys, want none", key)
	}
	q.Take(b, want("u", "v", "1"), func() string { return "b" }, now)
	q.Take(a, nil, nil, now)
	if key, ok := q.Next(now); key != a || !ok {
		t.Errorf("Next() = %v, %v after a change, want %v", key, ok, a)
	}
	act := q.Take(a, want("u", "v", "2"), func() string { return "a" }, now)
	if diff := cmp.Diff(Action{Op: Insert, ID: "a", State: *state("u", "v", "2"), First: true}, act); diff != "" {
		t.Errorf("action mismatch (-want +got):\n%s", diff)
	}
}
