package differential

import (
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/status"
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

// starts reports whether all containers of a pod wait for their start, and nothing else.
func starts(s *v1.PodStatus) bool {
	other := func(c v1.ContainerStatus) bool {
		return c.State.Waiting == nil || !status.IsStarting(c.State.Waiting)
	}
	return s.Phase == v1.PodPending && !slices.ContainsFunc(s.InitContainerStatuses, other) &&
		!slices.ContainsFunc(s.ContainerStatuses, other)
}

// Brief says for each value of a path of a [Trace] whether another one followed it at once. The last value of a path is
// never brief.
type Brief map[string][]bool

// durations turns the times at which the values of paths began into what was brief.
func durations(begun map[string][]begin) Brief {
	out := Brief{}
	for path, times := range begun {
		out[path] = make([]bool, len(times))
		for i := range len(times) - 1 {
			limit := briefLimit
			if times[i].starts {
				limit = startLimit
			}
			out[path][i] = times[i+1].at.Sub(times[i].at) < daemon.Scaled(limit)
		}
	}
	return out
}

// withoutBrief gives both traces the same values for the paths of a pod's status that differ only in brief ones.
func withoutBrief(l, r Trace, lBrief, rBrief Brief) {
	paths := maps.Clone(l)
	maps.Copy(paths, r)
	for path := range paths {
		if !strings.HasPrefix(path, "pod.status.") || slices.Equal(l[path], r[path]) {
			continue
		}
		left, right := newSequence(l[path], lBrief[path]), newSequence(r[path], rBrief[path])
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
	values []string
	brief  []bool
}

func newSequence(values []string, brief []bool) sequence {
	out := sequence{values: append([]string{absent}, values...), brief: make([]bool, len(values)+1)}
	copy(out.brief[1:], brief)
	return out
}

// sameBut reports whether two sequences are the same without some of their brief values. What stands on both sides of a
// value that is left out is one value. Between two values that both have, only one of the sequences may have others: a
// brief value may be missing, but not be another one.
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
	skip := func(at, next pathStep, of side, value string, brief bool) bool {
		next.value, next.more = at.value, at.more
		if value == at.value {
			return same(next)
		}
		if !brief || at.more != none && at.more != of {
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
		if inLeft && skip(at, pathStep{left: at.left + 1, right: at.right}, left, l.values[at.left], l.brief[at.left]) {
			return true
		}
		return inRight && skip(at, pathStep{left: at.left, right: at.right + 1}, right, r.values[at.right],
			r.brief[at.right])
	}
	return same(pathStep{})
}
