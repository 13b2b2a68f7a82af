package events

import (
	"hash/maphash"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// similarMax is how many events of one kind are recorded one by one within similarFor; further ones are merged into
	// one. Both are those of Kubernetes' own components.
	similarMax = 10
	similarFor = 10 * time.Minute
	// similarKinds bounds the kinds that are remembered.
	similarKinds = 512
	// combinedPrefix begins the message of an event that stands for many; it is Kubernetes'.
	combinedPrefix = "(combined from similar events): "
)

// similarity is what similar events have in common: all but their words.
type similarity struct {
	uid                      types.UID
	field, eventType, reason string
}

// similar combines events that differ in their words alone. It remembers kinds and messages by their hashes, because a
// message may be 32 KiB. The caller must hold the lock.
type similar struct {
	seed  maphash.Seed
	kinds map[uint64]kind
}

type kind struct {
	messages []uint64 // at most similarMax
	last     time.Time
}

func newSimilar() similar { return similar{seed: maphash.MakeSeed(), kinds: map[uint64]kind{}} }

// message returns the message with which an event is recorded, and whether it stands for several events.
func (s *similar) message(of similarity, message string, now time.Time) (text string, combined bool) {
	key, hash := maphash.Comparable(s.seed, of), maphash.String(s.seed, message)
	k, known := s.kinds[key]
	if !known {
		s.makeRoom()
	}
	if now.Sub(k.last) > similarFor {
		k.messages = nil
	}
	k.last = now
	known = slices.Contains(k.messages, hash)
	combined = !known && len(k.messages) >= similarMax
	if !known && !combined {
		k.messages = append(k.messages, hash)
	}
	s.kinds[key] = k
	if combined {
		return combinedPrefix + message, true
	}
	return message, false
}

// makeRoom forgets the kind that is longest ago, when there are too many.
func (s *similar) makeRoom() {
	if len(s.kinds) < similarKinds {
		return
	}
	var oldest uint64
	var last time.Time
	for key, k := range s.kinds {
		if last.IsZero() || k.last.Before(last) {
			oldest, last = key, k.last
		}
	}
	delete(s.kinds, oldest)
}
