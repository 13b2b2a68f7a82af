package pleg

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// againFirst is how soon a pod is looked at again whose runtime is behind the kernel; it doubles.
	againFirst = 5 * time.Millisecond
	// againMax is the longest such wait. A runtime that is still behind after it is left to the relist.
	againMax = 5 * time.Second
)

// lookAgain says which pods are to be looked at again, and when. The zero value has none.
type lookAgain struct {
	pods map[types.UID]look
}

type look struct {
	delay time.Duration
	at    time.Time // zero: it was looked at, and the outcome is not known
}

// add puts a pod's next look off, each time for twice as long, and lets it go after againMax.
func (l *lookAgain) add(uid types.UID, now time.Time) {
	have := l.pods[uid]
	switch {
	case !have.at.IsZero():
		return // a look is to come
	case have.delay >= againMax:
		delete(l.pods, uid)
		return
	}
	if l.pods == nil {
		l.pods = map[types.UID]look{}
	}
	delay := min(max(2*have.delay, againFirst), againMax)
	l.pods[uid] = look{delay: delay, at: now.Add(delay)}
}

func (l *lookAgain) remove(uid types.UID) { delete(l.pods, uid) }

// due takes the pods whose time has come. add or remove is to be called for each.
func (l *lookAgain) due(now time.Time) []types.UID {
	var uids []types.UID
	for uid, next := range l.pods {
		if !next.at.IsZero() && !next.at.After(now) {
			l.pods[uid] = look{delay: next.delay}
			uids = append(uids, uid)
		}
	}
	return uids
}

// next returns how long there is nothing to do.
func (l *lookAgain) next(now time.Time) (wait time.Duration, ok bool) {
	for _, next := range l.pods {
		if next.at.IsZero() {
			continue
		}
		if left := max(next.at.Sub(now), 0); !ok || left < wait {
			wait, ok = left, true
		}
	}
	return wait, ok
}
