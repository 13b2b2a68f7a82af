package events

import (
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

// similar combines events that differ in their words alone. The zero value is ready; it is its caller's to lock.
type similar struct{ kinds map[similarity]*kind }

type kind struct {
	messages []string // at most similarMax
	last     time.Time
}

// message returns the message with which an event is recorded, and whether it stands for several events.
func (s *similar) message(of similarity, message string, now time.Time) (text string, combined bool) {
	k := s.kinds[of]
	if k == nil || now.Sub(k.last) > similarFor {
		s.makeRoom()
		k = &kind{}
		s.kinds[of] = k
	}
	k.last = now
	if slices.Contains(k.messages, message) {
		return message, false
	}
	if len(k.messages) >= similarMax {
		return combinedPrefix + message, true
	}
	k.messages = append(k.messages, message)
	return message, false
}

// makeRoom forgets the kind that is longest ago, when there are too many.
func (s *similar) makeRoom() {
	if s.kinds == nil {
		s.kinds = map[similarity]*kind{}
	}
	if len(s.kinds) < similarKinds {
		return
	}
	var oldest similarity
	first := true
	for of, k := range s.kinds {
		if first || k.last.Before(s.kinds[oldest].last) {
			oldest, first = of, false
		}
	}
	delete(s.kinds, oldest)
}
