package eviction

import (
	"context"
	"slices"

	"k8s.io/klog/v2"
)

// reclaim is what is done for a short disk while the node is watched on: garbage is removed and, where that is not
// enough, the pods are measured. Its fields are its goroutine's until done is closed, and Run's afterwards.
type reclaim struct {
	done chan struct{}
	// stop ends it; stale is Run's, and says that its result is invalid: the disk has room.
	stop  context.CancelFunc
	stale bool
	// enough: there is nothing more to do.
	enough bool
	// threshold is the one for which ranked may go, the first to go first. ranked is empty where none may.
	threshold Threshold
	ranked    []PodUsage
	err       error
}

// reclaimDisk begins to reclaim disk for thresholds that are met, or ends the pod that goes first once it is known
// which. pending says that what goes on beside is not done yet.
func (m *Manager) reclaimDisk(ctx context.Context, acts []Threshold, seen Observations) (evicted, pending bool) {
	r := m.reclaim
	if r == nil {
		ctx, stop := context.WithCancel(ctx)
		r = &reclaim{done: make(chan struct{}), stop: stop, threshold: acts[0]}
		m.reclaim = r
		m.reclaims.Go(func() {
			defer stop()
			m.reclaimFor(ctx, r, acts)
			close(r.done)
			m.Notify()
		})
		return false, true
	}
	select {
	case <-r.done:
	default:
		return false, true
	}
	m.reclaim = nil
	still := slices.ContainsFunc(acts, func(t Threshold) bool { return t.key() == r.threshold.key() })
	switch {
	case r.stale, r.enough, !still: // what is met now is another matter, or met again
		return false, true
	case r.err != nil:
		if ctx.Err() == nil {
			klog.ErrorS(r.err, "Pods not measured: none is evicted until they are; trying again",
				"signal", r.threshold.Signal)
		}
		return false, false
	case len(r.ranked) == 0:
		if m.tries[acts[0].key()].vain == 0 {
			m.sayNothing(r.threshold.Signal)
		}
		return false, false
	}
	m.evict(ctx, r.threshold, seen, r.ranked[0])
	return true, false
}

// dropReclaim ends what is done for a disk that has room.
func (m *Manager) dropReclaim() {
	if m.reclaim == nil {
		return
	}
	m.reclaim.stop()
	m.reclaim.stale = true
	select {
	case <-m.reclaim.done:
		m.reclaim = nil
	default:
	}
}

// reclaimFor removes unused data and, if that is not enough, measures the pods. It touches no state of Run.
func (m *Manager) reclaimFor(ctx context.Context, r *reclaim, acts []Threshold) {
	enough := func(ctx context.Context) bool {
		seen, err := m.opts.Node(ctx)
		return err == nil && !met(&acts[0], seen, true)
	}
	if m.opts.FreeDisk != nil {
		if err := m.opts.FreeDisk(ctx, acts[0].Signal, enough); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Garbage not collected to free disk space", "signal", acts[0].Signal)
		}
		m.pause(ctx, confirmAfter)
		if r.enough = enough(ctx); r.enough {
			return
		}
	}
	for _, t := range acts {
		pods, layout, err := m.opts.Pods(ctx, t.Signal)
		if err != nil {
			r.err = err
			return
		}
		if ranked := Rank(t.Signal, layout, pods); len(ranked) > 0 {
			r.threshold, r.ranked = t, ranked
			return
		}
	}
}
