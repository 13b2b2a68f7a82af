package edgecontroller

import (
	"errors"
	"testing"
)

func TestCompareHistory(t *testing.T) {
	for _, tc := range []struct {
		seen  uint64
		later string
		want  error
	}{
		{seen: 10, later: "10"},
		{seen: 10, later: "11"},
		{seen: 0, later: "1"},
		{seen: 10, later: ""},
		{seen: 10, later: "opaque"},
		{seen: 10, later: "9", want: errRestored{seen: 10, now: 9}},
	} {
		if got := compareHistory(tc.seen, tc.later); !errors.Is(got, tc.want) {
			t.Errorf("compareHistory(%d, %q) = %v, want %v", tc.seen, tc.later, got, tc.want)
		}
	}
}

// A request that fails, as while the API server is restored, says nothing about its history.
func TestHistoryUnread(t *testing.T) {
	w := newWorld(t)
	w.api.answer(func(call) (int, any) { return 500, "x" })
	if err := w.checkHistory(t.Context()); err != nil {
		t.Errorf("checkHistory while the API server fails = %v, want nil", err)
	}
	if got := w.api.seen(); len(got) != 1 || got[0] != "GET /api/v1/nodes as cloudcore" {
		t.Errorf("requests = %v, want one list of nodes by cloudcore", got)
	}
}
