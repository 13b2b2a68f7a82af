// Package podworker runs one goroutine per pod UID and decides, from the updates that it receives, which of three
// steps it takes next. It knows nothing of runtimes: a Syncer does the work.
//
// # The states of a pod
//
//		        Update                      Remove, Stop, or Update with a deletion time,
//		(new) ─────────► Syncing ───────────────────────────────┐  or Sync says "finished"
//		                    ▲                                   ▼
//		                    │ restart wanted               Terminating ── Terminate, until it succeeds
//		                    │                                   │
//		                    └────────── Terminated ◄────────────┘
//		                                    │ Terminated, until it succeeds
//		                                    ▼
//		                      done: kept while wanted, forgotten when removed
//
//	  - Syncing: the pod is desired. Sync is called when the pod changed, after a call of
//	    Enqueue, when the time that Sync asked for has come, and every Resync as a safety net. The
//	    safety net of a pod that is settled and that nobody wakes grows wider, to maxSettled times that.
//	  - Terminating: nothing of the pod may start any more. Terminate is called until it returns
//	    nil, which promises that no container runs. A shorter grace period interrupts it and calls
//	    it again; a longer one is ignored.
//	  - Terminated: Terminated is called until it returns nil, and may take away volumes, cgroups,
//	    containers. A pod that ended by itself and is still wanted stays in this state, idle.
//
// # Promises
//
//   - Calls for one UID never overlap; those for different UIDs run side by side.
//   - The newest update wins: updates that arrive while a call runs are merged into one.
//   - A pod never leaves Terminating for Syncing; an update for the same UID that arrives meanwhile (a manifest put
//     back, a lost row resynced) is kept, and starts a new pod after Terminated.
//   - The context of Sync is cancelled as soon as the pod is to end, so a slow pull delays no delete and no eviction.
//   - A pod whose startAfter names another UID (the older pod of the same static manifest) is not synced before that
//     one is done.
//   - A failed call is repeated with a backoff between 1 s and 30 s, at once on an update.
package podworker

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/notify"
)

// Syncer does the work of a pod. Calls for one pod never overlap.
type Syncer interface {
	// Sync brings the pod nearer to its spec. It may be called any number of times.
	Sync(ctx context.Context, pod *v1.Pod) SyncResult
	// Terminate stops all that runs of a pod, within the grace period of end if that is set.
	Terminate(ctx context.Context, end End) error
	// Terminated is called when nothing of the pod runs any more.
	Terminated(ctx context.Context, end End) error
}

// SyncResult is what a sync came to.
type SyncResult struct {
	// Finished: all containers have ended for good; the pod goes to Terminating.
	Finished bool
	// RetryAt asks for the next sync at a time (the end of a backoff); zero asks for nothing.
	RetryAt time.Time
	// By is when there is to be another sync at the latest, whatever else is said; zero asks for nothing.
	By time.Time
	// Settled: nothing was to be done, and what the pod depends on does not change without an Update, an Enqueue, or
	// By.
	Settled bool
	// Err asks for another try with a growing delay.
	Err error
}

// End says which pod is to end, and how.
type End struct {
	UID types.UID
	// Pod is that of the newest update; nil for a pod that only the runtime knows.
	Pod *v1.Pod
	// Grace, in seconds, overrides the pod's own; nil leaves it.
	Grace *int64
	// Removed: the pod is no longer desired, so that nothing of it has to stay. False for a pod that finished by itself
	// and is still desired.
	Removed bool
	// Deleted: the pod carries a deletion time, so anyone who deleted it waits for a report.
	Deleted bool
}

// Options configure a Pool.
type Options struct {
	// Resync is the period of the safety net; zero is one minute. It doubles up to maxSettled times this while a pod is
	// settled.
	Resync time.Duration
	// Forgotten, when set, is called for each UID that the pool forgets.
	Forgotten func(types.UID)
}

const (
	defaultResync = time.Minute
	retryMin      = time.Second
	retryMax      = 30 * time.Second
	// maxSettled is how many times Resync the safety net of a settled pod is at the most: what somebody changed behind
	// the agent's back, such as a file of a ConfigMap volume, is found then.
	maxSettled = 8
)

// Interface is what other packages ask of a Pool.
type Interface interface {
	Update(pod *v1.Pod, startAfter types.UID)
	Remove(uid types.UID)
	Stop(uid types.UID, grace *int64)
	Enqueue(uid types.UID)
	EnqueueAll()
	Knows(uid types.UID) bool
	Busy(uid types.UID) bool
}

// Pool owns the workers.
type Pool struct {
	opts   Options
	syncer Syncer

	mu      sync.Mutex
	workers map[types.UID]*worker
	ctx     context.Context
	wg      sync.WaitGroup
}

// New makes a pool whose workers end with ctx. Wait for them with Wait. It needs a Syncer; see SetSyncer.
func New(ctx context.Context, opts Options) *Pool {
	if opts.Resync <= 0 {
		opts.Resync = defaultResync
	}
	return &Pool{opts: opts, workers: map[types.UID]*worker{}, ctx: ctx}
}

// SetSyncer sets what does the work. It is called once, before the first Update or Remove: a Syncer needs parts that
// need the pool.
func (p *Pool) SetSyncer(s Syncer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.syncer = s
}

// Update says that a pod is wanted as given. startAfter, when not empty, names the pod that has to
// be done first.
func (p *Pool) Update(pod *v1.Pod, startAfter types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.worker(pod.UID)
	if w == nil {
		return
	}
	w.enqueue(func(n *pendingUpdate) {
		n.pod, n.removed, n.changed = pod, false, true
		if startAfter != pod.UID {
			n.startAfter = startAfter
		}
	})
}

// Remove stops a pod that is no longer desired, within its own grace period. It also stops a pod that the pool does not
// know: see End.Pod.
func (p *Pool) Remove(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.worker(uid); w != nil {
		w.enqueue(func(n *pendingUpdate) { n.removed, n.changed = true, true })
	}
}

// Stop ends a pod that is still wanted, and interrupts a sync under way. grace, in seconds, overrides the pod's own
// when not nil; a termination under way goes on within the shorter grace. It does nothing for a pod that the pool does
// not know.
func (p *Pool) Stop(uid types.UID, grace *int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[uid]
	if w == nil {
		return
	}
	w.enqueue(func(n *pendingUpdate) {
		n.stopped = true
		if grace != nil && (n.grace == nil || *grace < *n.grace) {
			n.grace = grace
		}
	})
}

// Enqueue asks for a sync of a pod that the pool knows; it does nothing for others.
func (p *Pool) Enqueue(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.workers[uid]; w != nil {
		w.enqueue(func(*pendingUpdate) {})
	}
}

// EnqueueAll asks for a sync of every pod.
func (p *Pool) EnqueueAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.workers {
		w.enqueue(func(*pendingUpdate) {})
	}
}

// Knows reports whether the pool has a worker for a UID, in whatever state.
func (p *Pool) Knows(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.workers[uid] != nil
}

// Busy reports whether a pod is being worked on right now.
func (p *Pool) Busy(uid types.UID) bool {
	p.mu.Lock()
	w := p.workers[uid]
	p.mu.Unlock()
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cancel != nil
}

// UIDs returns the pods that the pool knows, sorted.
func (p *Pool) UIDs() []types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.workers))
}

// Wait returns when all workers have ended, which they do when the pool's context does.
func (p *Pool) Wait() { p.wg.Wait() }

// worker returns the worker of a UID and starts it when there is none; nil when the pool has ended.
func (p *Pool) worker(uid types.UID) *worker {
	if w := p.workers[uid]; w != nil {
		return w
	}
	if p.ctx.Err() != nil {
		return nil
	}
	w := &worker{uid: uid, pool: p, wake: notify.NewSignal()}
	p.workers[uid] = w
	p.wg.Go(w.run)
	return w
}

// forget drops a worker that is done, unless an update came for it.
func (p *Pool) forget(w *worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !w.idleForGood() {
		return false
	}
	delete(p.workers, w.uid)
	// Anyone who waited for this pod may go on now.
	for _, other := range p.workers {
		other.mu.Lock()
		waits := other.pending.startAfter == w.uid
		other.mu.Unlock()
		if waits {
			other.enqueue(func(n *pendingUpdate) { n.startAfter = "" })
		}
	}
	if p.opts.Forgotten != nil {
		p.opts.Forgotten(w.uid)
	}
	return true
}

// call runs a step of a syncer, and turns a panic into an error, which concerns that pod alone. The step has a
// goroutine of its own: it needs several times the stack that a waiting worker does, and Go gives stacks back slowly
// unless their goroutine ends.
func call(uid types.UID, step string, do func() error) error {
	ended := make(chan error, 1)
	go func() {
		var err error
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("pod %s: %s panicked: %v", uid, step, r)
				klog.ErrorS(err, "Pod worker panicked", "podUID", uid, "step", step, "stack", string(debug.Stack()))
			}
			ended <- err
		}()
		err = do()
	}()
	return <-ended
}
