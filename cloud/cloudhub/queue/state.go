package queue

import (
	"strconv"

	"k8s.io/apimachinery/pkg/types"
)

// State is a version of an object. Without a Version it is known by its ResourceVersion only, as from the sync
// objects of upstream; without either nobody knows which version it is: it was sent, and no answer has come.
type State struct {
	UID             types.UID
	Version         string
	ResourceVersion string
}

// Want is an object as the peer is to have it.
type Want struct {
	State
	// Deleting objects are never told as new.
	Deleting bool
}

// Op is what has to be done about an object.
type Op int

// The operations, in the words of the wire but None.
const (
	None Op = iota
	Insert
	Update
	Delete
)

func (o Op) String() string {
	return [...]string{"none", "insert", "update", "delete"}[o]
}

// Decide says what a peer has to be sent that holds one state of an object, or none, and is to have another, or
// none. An object that took another's name comes after the delete of the other is acked: deletes go by UID.
func Decide(held *State, want *Want) Op {
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

// same reports whether who holds s needs nothing to have w.
func (s State) same(w State) bool {
	if s.Version != "" && w.Version != "" {
		return s.Version == w.Version
	}
	return s.ResourceVersion != "" && !newer(w.ResourceVersion, s.ResourceVersion)
}

// newer reports whether resource version a comes after b. Versions that are no numbers only tell that they differ.
func newer(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	if errA != nil || errB != nil {
		return a != b
	}
	return x > y
}
