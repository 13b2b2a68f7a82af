package differential

import (
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// briefLimit is how long a value of a pod's status may last in the API at the most, so that the other node may leave it
// out: both nodes wait a moment before they report, on a busy machine the reports themselves take a while, and the
// kubelet looks for what is left of a pod every second before it lets the API server remove it.
const briefLimit = 2 * time.Second

// startLimit is the same for values that began while the pod started: edgecore reports the start after 5 s if other
// pods start, too.
const startLimit = 6 * time.Second

// begin is when a value of a path began, and whether the pod started then.
type begin struct {
	at     time.Time
	starts bool
}

// starts reports whether a pod starts, and nothing keeps it from running: edgecore may report no such status.
func starts(s *v1.PodStatus) bool {
	return s.Phase == v1.PodPending && !slices.ContainsFunc(s.InitContainerStatuses, stands) &&
		!slices.ContainsFunc(s.ContainerStatuses, stands)
}

// brevity says whether a value may be left out.
type brevity int

const (
	lasting brevity = iota
	// brief is a value that another one followed at once.
	brief
	// starting is the same, and the value began while the pod started. One node may report another moment of the start
	// than the other.
	starting
	// slow is a value that began while the pod started, and lasted. It may be left out if the other node's pod started
	// soon, since that one had nothing to report before it ran, and if that one reported another moment of the start.
	slow
)

// Brief says which values of a [Trace] may be left out.
type Brief struct {
	// values has the brevity of each value of a path. The last value of a path is always lasting.
	values map[string][]brevity
	// soon: within startLimit of its first state, the pod ran or something kept it from running.
	soon bool
}

// durations turns the times at which the values of paths began into their brevity.
func durations(begun map[string][]begin) map[string][]brevity {
	out := map[string][]brevity{}
	for path, times := range begun {
		out[path] = make([]brevity, len(times))
		for i := range len(times) - 1 {
			limit, short, long := briefLimit, brief, lasting
			if times[i].starts {
				limit, short, long = startLimit, starting, slow
			}
			out[path][i] = long
			if times[i+1].at.Sub(times[i].at) < daemon.Scaled(limit) {
				out[path][i] = short
			}
		}
	}
	return out
}

// startedSoon reports whether the pod ran, or something kept it from running, within startLimit of its first state.
func startedSoon(states []state) bool {
	i := slices.IndexFunc(states, func(s state) bool { return !starts(&s.pod.Status) })
	return i >= 0 && states[i].at.Sub(states[0].at) < daemon.Scaled(startLimit)
}

// withoutBrief gives both traces the same values for the paths of a pod's status that differ only in brief ones.
func withoutBrief(l, r Trace, lBrief, rBrief Brief) {
	paths := maps.Clone(l)
	maps.Copy(paths, r)
	for path := range paths {
		if !strings.HasPrefix(path, "pod.status.") || slices.Equal(l[path], r[path]) {
			continue
		}
		left := newSequence(l[path], lBrief.values[path], rBrief.soon || ofStart(rBrief.values[path]))
		right := newSequence(r[path], rBrief.values[path], lBrief.soon || ofStart(lBrief.values[path]))
		if !sameBut(left, right) {
			continue
		}
		few := l[path]
		if len(r[path]) < len(few) {
			few = r[path]
		}
		if len(few) == 0 {
			delete(l, path)
			delete(r, path)
			continue
		}
		l[path], r[path] = few, few
	}
}

// sequence are the values of a path, from before it was there.
type sequence struct {
	values  []string
	brevity []brevity
}

// ofStart reports whether a value is a moment of the start.
func ofStart(lengths []brevity) bool {
	return slices.ContainsFunc(lengths, func(b brevity) bool { return b == starting || b == slow })
}

// newSequence makes a sequence; slowToo says that slow values may be left out, too.
func newSequence(values []string, lengths []brevity, slowToo bool) sequence {
	out := sequence{values: append([]string{absent}, values...), brevity: make([]brevity, len(values)+1)}
	for i, length := range lengths {
		switch {
		case length != slow:
			out.brevity[i+1] = length
		case slowToo:
			out.brevity[i+1] = starting
		}
	}
	return out
}

// sameBut reports whether two sequences are the same without some of their brief values. What stands on both sides of a
// value that is left out is one value. Between two values that both have, only one of the sequences may have brief
// ones: such a value may be missing, but not be another one. Both may have others of the start.
func sameBut(l, r sequence) bool {
	type side int
	const (
		none side = iota
		left
		right
	)
	type pathStep struct {
		left, right int
		value       string // the last one that both had
		more        side   // which sequence has had another value since
	}
	seen := map[pathStep]bool{}
	var same func(at pathStep) bool
	// skip leaves the value of one sequence out.
	skip := func(at, next pathStep, of side, value string, length brevity) bool {
		next.value, next.more = at.value, at.more
		if value == at.value || length == starting {
			return same(next)
		}
		if length == lasting || at.more != none && at.more != of {
			return false
		}
		next.more = of
		return same(next)
	}
	same = func(at pathStep) bool {
		if at.left == len(l.values) && at.right == len(r.values) {
			return true
		}
		if seen[at] {
			return false
		}
		seen[at] = true
		inLeft, inRight := at.left < len(l.values), at.right < len(r.values)
		if inLeft && inRight && alike(l.values[at.left], r.values[at.right]) &&
			same(pathStep{left: at.left + 1, right: at.right + 1, value: l.values[at.left]}) {
			return true
		}
		if inLeft && skip(at, pathStep{left: at.left + 1, right: at.right}, left, l.values[at.left],
			l.brevity[at.left]) {
			return true
		}
		return inRight && skip(at, pathStep{left: at.left, right: at.right + 1}, right, r.values[at.right],
			r.brevity[at.right])
	}
	return same(pathStep{})
}
