package queue

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func state(uid, version, rv string) *State {
	return &State{UID: types.UID(uid), Version: version, ResourceVersion: rv}
}

func want(uid, version, rv string) *Desired { return &Desired{State: *state(uid, version, rv)} }

func TestDecide(t *testing.T) {
	for _, tt := range []struct {
		name string
		held *State
		want *Desired
		op   Op
	}{
		{"nothing of nothing", nil, nil, None},
		{"new", nil, want("u", "v", "5"), Insert},
		{"new, and being deleted", nil, &Desired{State: *state("u", "v", "5"), Deleting: true}, Update},
		{"gone", state("u", "v", "5"), nil, Delete},
		{"gone, sent without an answer", state("u", "", ""), nil, Delete},
		{"same version", state("u", "v", "5"), want("u", "v", "5"), None},
		{"only the status changed", state("u", "v", "5"), want("u", "v", "9"), None},
		{"changed", state("u", "v", "5"), want("u", "w", "9"), Update},
		{"another object of that name", state("u", "v", "5"), want("x", "v", "9"), Delete},
		{"the peer names no UID", state("", "v", "5"), want("x", "v", "9"), None},
		{"known by resource version: same", state("u", "", "5"), want("u", "v", "5"), None},
		{"known by resource version: older", state("u", "", "5"), want("u", "v", "10"), Update},
		{"known by resource version: ours lags", state("u", "", "10"), want("u", "v", "9"), None},
		{"first sent, never acked", state("u", "", "0"), want("u", "v", "10"), Update},
		{"sent without an answer", state("u", "", ""), want("u", "v", "10"), Update},
		{"no numbers, same", state("u", "", "a!"), want("u", "v", "a!"), None},
		{"no numbers, other", state("u", "", "a!"), want("u", "v", "7"), Update},
		{"larger than a uint64", state("u", "", "99999999999999999999999"), want("u", "v", "7"), Update},
		{"no version, no number", state("u", "", ""), want("u", "", ""), Update},
	} {
		if got := Decide(tt.held, tt.want); got != tt.op {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.op)
		}
	}
}
