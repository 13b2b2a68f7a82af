package prober

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// queue is a heap of probes by the time at which they are due.
type queue []*probe

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	r := x.(*probe)
	r.at = len(*q)
	*q = append(*q, r)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	r.at = -1
	return r
}

// push queues a probe for a time.
func (p *Prober) push(r *probe, due time.Time) {
	r.due = due
	heap.Push(&p.queue, r)
	if r.at == 0 {
		p.wake.Notify()
	}
}

// stopProbe stops a probe for good. The result of an attempt under way is dropped.
func (p *Prober) stopProbe(r *probe) {
	r.ended = true
	if r.at >= 0 {
		heap.Remove(&p.queue, r.at)
	}
	if r.cancel != nil {
		r.cancel()
	}
}

func (p *Prober) endAll(w *watch) {
	for _, r := range w.probes {
		if r != nil {
			p.stopProbe(r)
		}
	}
}

// Run probes until ctx ends, and returns when no attempt is under way any more.
func (p *Prober) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if wait, ok := p.startDue(ctx, &wg); ok {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-timer.C:
		}
	}
}

// startDue starts the attempts that are due, and returns how long the next one waits; ok is false when there is none.
func (p *Prober) startDue(ctx context.Context, wg *sync.WaitGroup) (wait time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 {
		r := p.queue[0]
		if wait := time.Until(r.due); wait > 0 {
			return wait, true
		}
		heap.Pop(&p.queue)
		ctx, cancel := context.WithCancel(ctx)
		r.cancel = cancel
		at := ask{target: r.watch.target, id: r.watch.id, kind: r.kind, spec: r.spec}
		wg.Go(func() {
			defer cancel()
			began := time.Now()
			got := p.attempts.attempt(ctx, at)
			p.recordAttempt(r, got, time.Since(began))
		})
	}
	return 0, false
}

// recordAttempt takes the outcome of an attempt and how long it took.
func (p *Prober) recordAttempt(r *probe, got result, took time.Duration) {
	if uid, ending, changed := p.recordResult(r, got, took); changed {
		p.opts.Changed(uid, ending)
	}
}

func (p *Prober) recordResult(r *probe, got result, took time.Duration) (uid types.UID, ending, changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.cancel = nil
	if r.ended {
		return "", false, false
	}
	p.metrics.observe(r, got, took)
	before := r.verdict
	r.tally = r.withResult(got, r.spec)
	if !r.isOver(r.kind) {
		p.push(r, r.nextAttempt(time.Now(), p.began))
	}
	if r.kind == startup && r.verdict == success {
		p.enqueueProbes(r.watch)
	}
	// It is not a change that a container which was never ready is not ready, or that a live container is alive.
	news := before != r.verdict && !(r.kind == readiness && before == unknown && r.verdict == failure) &&
		!(r.kind == liveness && r.verdict == success)
	return r.watch.pod.UID, r.watch.of.ending, news
}
