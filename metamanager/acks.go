package metamanager

import (
	"context"
	"sync"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// acks are the reports that the cloud has answered and that are being removed from the outbox. They count as removed,
// so that the next report of their queue does not wait for the disk. If the agent stops before they are removed, they
// are sent again.
type acks struct {
	mu sync.Mutex
	// seqs is the sequence number of each report, by its key.
	seqs map[string]int64
}

// has reports whether a report in the outbox has been answered.
func (a *acks) has(r store.Report) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	seq, ok := a.seqs[r.Key]
	return ok && seq == r.Seq
}

func (a *acks) begin(r store.Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seqs == nil {
		a.seqs = map[string]int64{}
	}
	a.seqs[r.Key] = r.Seq
}

// end forgets a report that was removed, unless a newer report with its key has been answered since.
func (a *acks) end(r store.Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seqs[r.Key] == r.Seq {
		delete(a.seqs, r.Key)
	}
}

// acknowledged starts the removal of a report that the cloud has answered, and does not wait for it.
func (m *Module) acknowledged(ctx context.Context, r store.Report) {
	m.acks.begin(r)
	m.background(ctx, func(ctx context.Context) {
		defer m.acks.end(r)
		for backoff := retry.NewBackoff(retryFirst, retryMax); ; {
			err := m.store.Apply(ctx, store.OutboxAck(r.Key, r.Seq))
			if err == nil || ctx.Err() != nil {
				return
			}
			klog.V(2).InfoS("Answered report not removed from the store yet", "report", r.Key, "err", err)
			if !backoff.Wait(ctx) {
				return
			}
		}
	})
}
