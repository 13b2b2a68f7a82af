package edged

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/source"
)

const (
	// gather is how long a changed status waits for the next change of the same pod: a pod that
	// starts passes several states within a moment, and each write wears the flash. What others wait for, that
	// a pod is ready or has ended, does not wait.
	gather = 200 * time.Millisecond
	// reportRetryMin and reportRetryMax bound the wait after the store refused a report.
	reportRetryMin = time.Second
	reportRetryMax = 30 * time.Second
)

// statusStore keeps reports; see metaclient.
type statusStore interface {
	ReportStatus(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error
	KeepStatus(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error
}

// reporter brings changed pod statuses to the store, the newest of each pod only, away from the
// workers: no container waits for a disk. A status that could not be stored is tried again until
// a newer one takes its place.
type reporter struct {
	store statusStore
	// failed is told of the outcome of each attempt.
	failed func(error)
	// kept is told when the status of a static pod was stored.
	kept func()

	mu    sync.Mutex
	dirty map[types.UID]report
	// told is what was stored last of each pod, as far as others wait for it.
	told map[types.UID]milestone
	wake chan struct{}
	// urgent wakes for what does not wait.
	urgent chan struct{}
	// sending serialises stores, so that flush and run never overtake each other.
	sending sync.Mutex
}

type report struct {
	pod    *v1.Pod
	status v1.PodStatus
}

// milestone is what others wait for.
type milestone struct {
	phase v1.PodPhase
	ready bool
}

func milestoneOf(status *v1.PodStatus) milestone {
	m := milestone{phase: status.Phase}
	for _, c := range status.Conditions {
		m.ready = m.ready || c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	}
	return m
}

func newReporter(store statusStore, failed func(error)) *reporter {
	return &reporter{store: store, failed: failed, dirty: map[types.UID]report{}, kept: func() {}, told: map[types.UID]milestone{}, wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1)}
}

// PodStatus implements status.Reporter.
func (r *reporter) PodStatus(pod *v1.Pod, status v1.PodStatus) {
	r.mu.Lock()
	r.dirty[pod.UID] = report{pod: pod, status: status}
	urgent := r.isUrgent(pod.UID)
	r.mu.Unlock()
	if urgent {
		poke(r.urgent)
	}
	poke(r.wake)
}

// isUrgent tells whether what is to be told of a pod is what others wait for. A pod that is pending is not.
func (r *reporter) isUrgent(uid types.UID) bool {
	now := milestoneOf(new(r.dirty[uid].status))
	return now != r.told[uid] && now.phase != v1.PodPending
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// drop forgets what is to be told of a pod. What is being stored of it is stored when it returns.
func (r *reporter) drop(uid types.UID) {
	r.sending.Lock()
	defer r.sending.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.dirty, uid)
	delete(r.told, uid)
}

// run reports until ctx ends.
func (r *reporter) run(ctx context.Context) {
	delay := time.Duration(0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	waiting := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
			if !waiting {
				timer.Reset(max(gather, delay))
				waiting = true
			}
			continue
		case <-r.urgent:
			if delay == 0 {
				r.send(ctx, r.isUrgent) // what fails stays, and is tried with the rest
			}
			continue
		case <-timer.C:
			waiting = false
		}
		if r.sendAll(ctx) {
			delay = 0
			continue
		}
		delay = min(max(2*delay, reportRetryMin), reportRetryMax)
		poke(r.wake)
	}
}

// sendAll stores what is dirty, and returns whether all of it was stored.
func (r *reporter) sendAll(ctx context.Context) bool {
	return r.send(ctx, func(types.UID) bool { return true })
}

// send stores what is dirty of some pods, and returns whether all of that was stored. which is called under the lock.
func (r *reporter) send(ctx context.Context, which func(types.UID) bool) bool {
	r.mu.Lock()
	uids := make([]types.UID, 0, len(r.dirty))
	for uid := range r.dirty {
		if which(uid) {
			uids = append(uids, uid)
		}
	}
	r.mu.Unlock()
	ok := true
	for _, uid := range uids {
		ok = r.flush(ctx, uid) == nil && ok
	}
	return ok
}

// flush stores what is dirty of one pod, now.
func (r *reporter) flush(ctx context.Context, uid types.UID) error {
	r.sending.Lock()
	defer r.sending.Unlock()
	r.mu.Lock()
	rep, ok := r.dirty[uid]
	delete(r.dirty, uid)
	r.mu.Unlock()
	if !ok {
		return nil
	}
	put := r.store.ReportStatus
	if source.IsStatic(rep.pod) {
		put = r.store.KeepStatus // the cloud knows its mirror only
	}
	err := put(ctx, rep.pod, rep.status)
	if ctx.Err() == nil {
		r.failed(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.told[uid] = milestoneOf(&rep.status)
		if source.IsStatic(rep.pod) {
			r.kept()
		}
		return nil
	}
	klog.V(2).InfoS("Pod status not stored yet", "pod", klog.KObj(rep.pod), "err", err)
	if _, newer := r.dirty[uid]; !newer {
		r.dirty[uid] = rep
	}
	poke(r.wake) // run may have found nothing to do meanwhile
	return err
}

// sleep waits, and returns false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
