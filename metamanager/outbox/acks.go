package outbox

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// ackGather is how long an answered report waits for others, so that those of a batch leave the store in one
	// commit.
	ackGather = 20 * time.Millisecond
	// lastAckTimeout is how long an agent that stops may remove answered reports.
	lastAckTimeout = time.Second
)

// acks are the reports that the cloud has answered and that are being removed from the outbox. They count as removed,
// so that the next report of their queue does not wait for the disk. If the agent is killed before they are removed,
// they are sent again.
type acks struct {
	mu sync.Mutex
	// seqs is the sequence number of each report, by its key.
	seqs map[string]int64
	// waiting are the reports whose removal has not begun. removing: removeAnswered runs.
	waiting  []store.Report
	removing bool
}

// answered reports whether a report in the outbox has been answered.
func (a *acks) answered(r store.Report) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	seq, ok := a.seqs[r.Key]
	return ok && seq == r.Seq
}

// addAnswered notes an answered report. It reports whether the caller has to run removeAnswered.
func (a *acks) addAnswered(r store.Report) (mine bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seqs == nil {
		a.seqs = map[string]int64{}
	}
	a.seqs[r.Key] = r.Seq
	a.waiting = append(a.waiting, r)
	mine, a.removing = !a.removing, true
	return mine
}

// nextBatch returns the reports to remove next; after it returned none, the next addAnswered returns true.
func (a *acks) nextBatch() []store.Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	reports := a.waiting
	a.waiting, a.removing = nil, len(reports) > 0
	return reports
}

// forgetRemoved forgets reports that were removed, except those of whose keys a newer one has been answered since.
func (a *acks) forgetRemoved(reports []store.Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range reports {
		if a.seqs[r.Key] == r.Seq {
			delete(a.seqs, r.Key)
		}
	}
}

// acknowledged starts the removal of a report that the cloud has answered, and does not wait for it.
func (o *Outbox) acknowledged(ctx context.Context, r store.Report) {
	if o.acks.addAnswered(r) {
		o.background(ctx, o.removeAnswered)
	}
}

// removeAnswered removes answered reports from the store, those that wait together in one commit, until none is left.
func (o *Outbox) removeAnswered(ctx context.Context) {
	for {
		retry.Sleep(ctx, ackGather)
		reports := o.acks.nextBatch()
		if len(reports) == 0 {
			return
		}
		o.removeReports(ctx, reports)
		o.acks.forgetRemoved(reports)
	}
}

// removeReports removes reports from the store. It tries again until ctx ends, and then once more.
func (o *Outbox) removeReports(ctx context.Context, reports []store.Report) {
	ops := make([]store.Op, len(reports))
	for i, r := range reports {
		ops[i] = store.OutboxAck(r.Key, r.Seq)
	}
	for backoff := retry.NewBackoff(RetryFirst, RetryMax); ctx.Err() == nil; {
		err := o.store.Apply(ctx, ops...)
		if err == nil {
			return
		}
		klog.V(2).InfoS("Answered reports not removed from the store yet", "reports", len(reports),
			"first", reports[0].Key, "err", err)
		backoff.Wait(ctx)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAckTimeout)
	defer cancel()
	if err := o.store.Apply(last, ops...); err != nil {
		klog.V(2).InfoS("Answered reports not removed from the store; they will be sent again",
			"reports", len(reports), "first", reports[0].Key, "err", err)
	}
}
