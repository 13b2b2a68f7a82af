package cloudhub

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// How often leases are renewed. A lease lasts 40 s, and Kubernetes calls a node unreachable 40 to 50 s after the last
// renewal, by version: at the longest period, one renewal may fail and its repetitions with it for a quarter of a
// minute.
const (
	shortestLeasePeriod = 10 * time.Second
	longestLeasePeriod  = 20 * time.Second
	// leaseRate is how many renewals a second are no burden to an API server. More nodes are renewed less often, but
	// for the longest period.
	leaseRate = 100
	// leaseRetry is the pause after a renewal that failed.
	leaseRetry = 3 * time.Second
	// leaseRoom is by how much more may be renewed than the period asks for: thousands of nodes that connect at once,
	// of which each is due, are spread over most of a period, and then stay spread.
	leaseRoom = 1.5
)

// leasePeriod is the time between two renewals for one of so many nodes.
func leasePeriod(nodes int) time.Duration {
	return min(max(time.Duration(nodes)*time.Second/leaseRate, shortestLeasePeriod), longestLeasePeriod)
}

// leasePlaces is how many may be renewed in a step of so long, those included whose renewal is still under way.
func leasePlaces(nodes int, step time.Duration) int {
	return int(math.Ceil(leaseRoom * float64(max(nodes, leaseRate)) * step.Seconds() / leasePeriod(nodes).Seconds()))
}

// leaseState is what is known of a node's lease.
type leaseState struct {
	// tried is when it was renewed last, or that was tried; heard when a sign of life came last.
	tried, heard time.Time
	// failed is set when that did not succeed, busy while it is on its way.
	failed, busy bool
}

// due reports whether the lease is to be renewed: at its period if signs of life came since the last time, sooner when
// that failed.
func (l leaseState) due(now time.Time, period time.Duration) bool {
	switch {
	case l.busy:
		return false
	case l.failed:
		return now.Sub(l.tried) >= leaseRetry
	}
	return now.Sub(l.tried) >= period && !l.heard.Before(l.tried)
}

// mostUrgent are those that waited longest, as many as there are places for. It reorders the list.
func mostUrgent(due []*session, limit int) []*session {
	if len(due) <= limit {
		return due
	}
	slices.SortFunc(due, func(a, b *session) int { return cmp.Compare(a.tried, b.tried) })
	return due[:limit]
}

// sweep ends the sessions of silent nodes, and renews the leases of the others. It is called once in each step.
func (h *Hub) sweep(now time.Time, step time.Duration) {
	all := h.all()
	period, places := leasePeriod(len(all)), leasePlaces(len(all), step)
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
