package cloudhub

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// How often leases are renewed. A lease lasts 40 s, and Kubernetes calls a node unreachable 40 to 50 s after the last
// renewal, depending on its version. At the longest period, one renewal and its retries may fail for 15 s.
const (
	shortestLeasePeriod = 10 * time.Second
	longestLeasePeriod  = 20 * time.Second
	// leaseRate is how many renewals a second do not burden an API server. With more nodes each is renewed less often,
	// up to the longest period.
	leaseRate = 100
	// leaseRetry is the pause after a failed renewal.
	leaseRetry = 3 * time.Second
	// leaseHeadroom allows more renewals than the period requires: if thousands of nodes connect at once and are all
	// due, they spread over most of a period and stay spread.
	leaseHeadroom = 1.5
)

// leasePeriod returns the time between two renewals of a node, for that many nodes.
func leasePeriod(nodes int) time.Duration {
	return min(max(time.Duration(nodes)*time.Second/leaseRate, shortestLeasePeriod), longestLeasePeriod)
}

// leaseBudget returns how many renewals may run in one step, including those under way.
func leaseBudget(nodes int, step time.Duration) int {
	return int(math.Ceil(leaseHeadroom * float64(max(nodes, leaseRate)) * step.Seconds() / leasePeriod(nodes).
		Seconds()))
}

// leaseState is what is known of a node's lease.
type leaseState struct {
	// tried is when a renewal was last tried; heard is when the node was last heard.
	tried, heard time.Time
	// failed is set if the last renewal failed, busy while one is running.
	failed, busy bool
}

// due reports whether to renew the lease: once per period if the node was heard since the last renewal, sooner after a
// failure.
func (l leaseState) due(now time.Time, period time.Duration) bool {
	switch {
	case l.busy:
		return false
	case l.failed:
		return now.Sub(l.tried) >= leaseRetry
	}
	return now.Sub(l.tried) >= period && !l.heard.Before(l.tried)
}

// mostUrgent returns the sessions that waited longest, at most limit. It reorders the list.
func mostUrgent(due []*session, limit int) []*session {
	if len(due) <= limit {
		return due
	}
	slices.SortFunc(due, func(a, b *session) int { return cmp.Compare(a.tried, b.tried) })
	return due[:limit]
}

// sweep ends the sessions of silent nodes and renews the leases of the others. It is called once in each step.
func (h *Hub) sweep(now time.Time, step time.Duration) {
	all := h.allSessions()
	period, places := leasePeriod(len(all)), leaseBudget(len(all), step)
	due := all[:0]
	for _, s := range all {
		lease, ok := s.sweep(now)
		switch {
		case lease.busy:
			places-- // an API server that is behind gets no more
		case ok && lease.due(now, period):
			due = append(due, s)
		}
	}
	for _, s := range mostUrgent(due, max(places, 0)) {
		s.renew(now)
	}
}
