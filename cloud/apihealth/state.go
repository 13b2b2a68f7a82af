package apihealth

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// minRefusals and minTime are how often and for how long a kind is refused, without a success, before it counts.
	minRefusals = 3
	minTime     = 30 * time.Second
	// minSuccesses end it at once. One success ends it if no refusal follows for minTime.
	minSuccesses = 3
	// forget is the time without a refusal after which earlier ones say nothing. Nodes repeat what was refused after at
	// most 5 minutes.
	forget = 6 * time.Minute
	// activeTime is how long a node counts as active after a request in its name. Connected nodes have their Leases
	// renewed more often.
	activeTime = 2 * time.Minute
	// manyNodes are so many that no single node can be the cause, and 1/manyShare of the active ones is needed.
	manyNodes, manyShare = 5, 4
	// maxNodes is how many refused nodes are counted at most: a Device may name any node.
	maxNodes = 20_000
)

// state is what was observed. Its methods are given the time, and do nothing else than compute.
type state struct {
	// minTime is the constant of that name, unless a test has a shorter one.
	minTime time.Duration
	streaks map[streakKey]*streak
	// active has the nodes and the time of their last request.
	active map[string]time.Time
}

type streakKey struct {
	kind string
	// self is set for refusals of cloudcore itself, and not for those of nodes.
	self bool
}

// streak are the refusals of a kind since its last success; those of nodes since the last success of each node.
type streak struct {
	began, last time.Time
	refusals    int
	nodes       map[string]bool // that were refused, and not accepted since
	answer      answer          // the last one
	// counts is set once the streak makes cloudcore unready. Successes are counted from then on; before, one success
	// ends the streak.
	counts    bool
	successes int
}

// problem is why cloudcore is not ready.
type problem struct {
	kind     string
	since    time.Time
	refusals int
	nodes    int
	answer   answer
}

func newState(minTime time.Duration) *state {
	return &state{minTime: minTime, streaks: map[streakKey]*streak{}, active: map[string]time.Time{}}
}

// observe takes the answer to a request.
func (s *state) observe(now time.Time, t target, a answer) {
	if t.node != "" {
		s.active[t.node] = now
	}
	switch a.verdict {
	case accepted:
		s.succeeded(streakKey{t.kind, true})
		s.succeededFor(streakKey{t.kind, false}, cmp.Or(t.node, t.about))
	case refusedNode, refusedSelf:
		s.failed(now, streakKey{t.kind, a.verdict == refusedSelf}, cmp.Or(t.node, t.about), a)
	}
}

func (s *state) succeeded(key streakKey) {
	k := s.streaks[key]
	switch {
	case k == nil:
	case k.counts:
		k.successes++
	default:
		delete(s.streaks, key)
		s.recovered(k.answer.remedy)
	}
}

// succeededFor takes a success of one node: it says nothing about the others that are refused.
func (s *state) succeededFor(key streakKey, node string) {
	k := s.streaks[key]
	if k == nil || !k.nodes[node] {
		return
	}
	delete(k.nodes, node)
	if len(k.nodes) == 0 {
		delete(s.streaks, key)
		s.recovered(k.answer.remedy)
	}
}

// recovered takes the end of refusals for a success of all kinds that had the same cause: some are requested only while
// others are refused, and would not be accepted again.
func (s *state) recovered(remedy string) {
	for key, k := range s.streaks {
		switch {
		case k.answer.remedy != remedy:
		case k.counts:
			k.successes = max(k.successes, 1)
		default:
			delete(s.streaks, key)
		}
	}
}

func (s *state) failed(now time.Time, key streakKey, node string, a answer) {
	k := s.streaks[key]
	if k == nil || now.Sub(k.last) > forget {
		k = &streak{began: now, nodes: map[string]bool{}}
		s.streaks[key] = k
	}
	k.last, k.answer = now, a
	k.refusals++
	if node != "" && len(k.nodes) < maxNodes {
		k.nodes[node] = true
	}
}

// decide returns what makes cloudcore unready, the kinds with most refusals first.
func (s *state) decide(now time.Time) []problem {
	for node, at := range s.active {
		if now.Sub(at) > activeTime {
			delete(s.active, node)
		}
	}
	for key, k := range s.streaks {
		if s.isOver(k, now) || k.counts && !key.self && !concernsMany(len(k.nodes), len(s.active)) {
			delete(s.streaks, key)
			if k.successes > 0 {
				s.recovered(k.answer.remedy)
			}
		}
	}
	var problems []problem
	for key, k := range s.streaks {
		k.counts = k.counts || s.lasts(k) && (key.self || concernsMany(len(k.nodes), len(s.active)))
		if k.counts {
			problems = append(problems, problem{key.kind, k.began, k.refusals, len(k.nodes), k.answer})
		}
	}
	slices.SortFunc(problems, func(a, b problem) int {
		return cmp.Or(cmp.Compare(b.refusals, a.refusals), cmp.Compare(a.kind, b.kind))
	})
	return problems
}

func (s *state) lasts(k *streak) bool {
	return k.refusals >= minRefusals && k.last.Sub(k.began) >= s.minTime
}

func (s *state) isOver(k *streak, now time.Time) bool {
	quiet := now.Sub(k.last)
	return quiet > forget || k.successes >= minSuccesses || k.successes > 0 && quiet >= s.minTime
}

// concernsMany reports whether that many nodes are refused that the cause is not one of them: all that are active, or
// many of them.
func concernsMany(refused, active int) bool {
	return refused >= 2 && (refused >= active || refused >= max(manyNodes, active/manyShare))
}

// describe returns problems as one line, with what to do: one example for each remedy.
func describe(problems []problem) string {
	var lines []string
	for rest := problems; len(rest) > 0; {
		first, others, next := rest[0], []string(nil), []problem(nil)
		for _, p := range rest[1:] {
			if p.answer.remedy == first.answer.remedy {
				others = append(others, p.kind)
			} else {
				next = append(next, p)
			}
		}
		rest = next
		line := fmt.Sprintf("%s refused %d times since %s", first.kind, first.refusals,
			first.since.UTC().Format(time.RFC3339))
		switch {
		case first.nodes == 1:
			line += ", for 1 node"
		case first.nodes > 1:
			line += fmt.Sprintf(", for %d nodes", first.nodes)
		}
		if len(others) > 0 {
			slices.Sort(others)
			others = slices.Compact(others)
			line += ", and also " + strings.Join(others, ", ")
		}
		lines = append(lines, line+": "+first.answer.text+": "+first.answer.remedy)
	}
	return strings.Join(lines, "; ")
}
