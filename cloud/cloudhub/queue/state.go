package queue

import (
	"strconv"

	"k8s.io/apimachinery/pkg/types"
)

// State is a version of an object. Without a Version, only its ResourceVersion is known, as from KubeEdge's sync
// objects. Without either, the version is unknown: it was sent, and no answer has come.
type State struct {
	UID             types.UID
	Version         string
	ResourceVersion string
}

// Desired is the desired state of an object.
type Desired struct {
	State
	// Deleting objects are never sent as new.
	Deleting bool
}

// Op is what to send for an object.
type Op int

// The operations, in the words of the wire except None.
const (
	None Op = iota
	Insert
	Update
	Delete
)

func (o Op) String() string {
	return [...]string{"none", "insert", "update", "delete"}[o]
}

// Decide returns what to send a peer that holds one state of an object, or none, and must have another, or none. An
// object that took another's name waits until the delete of the other is acked: deletes go by UID.
func Decide(held *State, want *Desired) Op {
	switch {
	case held == nil && want == nil:
		return None
	case want == nil:
		return Delete
	case held == nil && want.Deleting:
		return Update
	case held == nil:
		return Insert
	case held.UID != want.UID && held.UID != "":
		return Delete
	case held.same(want.State):
		return None
	}
	return Update
}

// same reports whether a peer that holds s needs nothing to have w.
func (s State) same(w State) bool {
	if s.Version != "" && w.Version != "" {
		return s.Version == w.Version
	}
	return s.ResourceVersion != "" && !newer(w.ResourceVersion, s.ResourceVersion)
}

// newer reports whether resource version a comes after b. If they are not numbers, it reports whether they differ.
func newer(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	if errA != nil || errB != nil {
		return a != b
	}
	return x > y
}
