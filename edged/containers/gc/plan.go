package gc

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Policy says which dead containers stay.
type Policy struct {
	// MinAge is how long a container was there before it may go.
	MinAge time.Duration
	// PerContainer is how many dead attempts at one container of a pod stay; below 0 is all.
	PerContainer int
	// Total is how many dead containers stay on the node; below 0 is all.
	Total int
}

// sandboxMinAge is how old a dead sandbox is before it goes: one that is being made looks dead for a moment.
const sandboxMinAge = 30 * time.Second

// Pod is what the runtime has of a pod, and what is to become of it.
type Pod struct {
	Observed *observed.Pod
	// Ended: the pod has ended for good, and its status is kept elsewhere: nothing is decided from its containers any
	// more.
	Ended bool
}

// Removal is what is to go, the oldest first.
type Removal struct {
	Containers []Container
	Sandboxes  []Sandbox
}

// Container is one attempt at a container.
type Container struct {
	UID types.UID
	*observed.Container
}

// Sandbox is one attempt at a sandbox.
type Sandbox struct {
	UID types.UID
	*observed.Sandbox
}

// Plan decides which dead containers and sandboxes go. Of a pod that is still to run the newest attempt at each
// container stays whatever the policy says, since what comes next is decided from it; so does its newest sandbox.
func Plan(p Policy, pods []Pod, now time.Time) Removal {
	var kept, gone []Container
	for _, pod := range pods {
		for _, unit := range units(p, pod, now) {
			allowed := len(unit)
			if p.PerContainer >= 0 {
				allowed = min(allowed, p.PerContainer)
			}
			kept, gone = append(kept, unit[:allowed]...), append(gone, unit[allowed:]...)
		}
	}
	if p.Total >= 0 && len(kept) > p.Total {
		oldestFirst(kept)
		excess := len(kept) - p.Total
		gone = append(gone, kept[:excess]...)
	}
	oldestFirst(gone)
	return Removal{Containers: gone, Sandboxes: sandboxes(pods, gone, now)}
}

// units returns the dead containers of a pod that may go, by their names, the newest first.
func units(p Policy, pod Pod, now time.Time) [][]Container {
	var out [][]Container
	var names []string
	for _, c := range pod.Observed.Containers {
		if slices.Contains(names, c.Name) {
			continue
		}
		names = append(names, c.Name)
		var unit []Container
		for n, a := range pod.Observed.Attempts(c.Name) {
			if (n == 0 && !pod.Ended) || !dead(a) || age(a.CreatedAt, now) < p.MinAge {
				continue
			}
			unit = append(unit, Container{pod.Observed.UID, a})
		}
		out = append(out, unit)
	}
	return out
}

// dead reports whether a container does not run and will not.
func dead(c *observed.Container) bool { return !c.Running() && !unknown(c) }

// age is how old something is. What comes from the future was made under another clock, and is old.
func age(made, now time.Time) time.Duration {
	if made.After(now) {
		return time.Duration(1<<63 - 1)
	}
	return now.Sub(made)
}

// sandboxes returns the dead sandboxes that have no containers left once those in gone are removed.
func sandboxes(pods []Pod, gone []Container, now time.Time) []Sandbox {
	going := map[string]bool{}
	for _, c := range gone {
		going[c.ID] = true
	}
	var out []Sandbox
	for _, pod := range pods {
		busy := map[string]bool{}
		for _, c := range pod.Observed.Containers {
			if !going[c.ID] {
				busy[c.SandboxID] = true
			}
		}
		for n, s := range pod.Observed.Sandboxes {
			if (n == 0 && !pod.Ended) || s.Ready || busy[s.ID] || age(s.CreatedAt, now) < sandboxMinAge {
				continue
			}
			out = append(out, Sandbox{pod.Observed.UID, s})
		}
	}
	return out
}

func oldestFirst(list []Container) {
	smallsort.SortStableFunc(list, func(a, b Container) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.UID, b.UID), cmp.Compare(a.Attempt, b.Attempt),
			cmp.Compare(a.ID, b.ID))
	})
}
