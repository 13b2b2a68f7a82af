// Package pleg (pod lifecycle event generator) keeps the newest snapshot of every pod of the runtime, and reports each
// change of one. It learns of changes from three sources:
//
//   - the runtime's event stream, where the runtime has one (containerd 1.7 and newer);
//   - elsewhere, the kernel: the init process of each running container and sandbox is watched through
//     a pidfd, so that an exit is known at once and an idle node spends no time on it;
//   - a relist as the safety net, often while something changes and seldom while nothing does. It costs two
//     calls, and two or more for each pod that differs from the snapshot.
//
// Order: snapshots of a pod are made one after another, and a later one never loses what an earlier one had. A change
// during a snapshot is in the next: each notice makes one that begins after the notice. The kernel reports an exit
// before the runtime knows of it: a snapshot in which a process runs that has ended is followed by more, at growing
// intervals, until the two agree. OnChange is called after the snapshot that has the change was stored; not for what
// Refresh found, since its caller has it in hand.
package pleg

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/pkg/notify"
)

// Lister reads the runtime; see runtime.Runtime.
type Lister interface {
	ListPods(ctx context.Context) ([]*observed.Pod, error)
	// GetPod is given the snapshot before, or nil.
	GetPod(ctx context.Context, uid types.UID, known *observed.Pod) (*observed.Pod, error)
}

// Options configure a PLEG. Zero values are the defaults.
type Options struct {
	// OnChange is called for each pod that changed. It must not block.
	OnChange func(types.UID)
	// Stored is called for each snapshot that differs from the one before, also by Refresh. It must not block.
	Stored func()
	// OnHealth is called when the runtime stops (err set) or begins (nil) to answer. It must not block.
	OnHealth func(error)
	// Busy reports whether a pod is being worked on: anyone who does so refreshes it, and a relist leaves it out.
	Busy func(types.UID) bool
	// RelistMin is the relist period while something changes: 1 s.
	RelistMin time.Duration
	// RelistMax is the relist period while nothing does: 20 s. An exit that the kernel cannot tell of
	// (its pid is not known) is noticed after this time at the latest.
	RelistMax time.Duration
}

const (
	defaultRelistMin = time.Second
	defaultRelistMax = 20 * time.Second
	// maxSilence is how long relists may take no end before Healthy says so: the kubelet's threshold.
	maxSilence = 3 * time.Minute
	// downRetry is how often a runtime that does not answer is asked.
	downRetry = time.Second
	// getParallel bounds the snapshots in flight: a restart adopts many pods at once.
	getParallel = 4
)

// Interface is what other packages ask of a PLEG.
type Interface interface {
	// Get returns what is known of a pod's containers, nil when that is nothing. It does not wait.
	Get(uid types.UID) *observed.Pod
	// All returns the same for all pods.
	All() []*observed.Pod
	// Refresh asks the runtime for it.
	Refresh(ctx context.Context, uid types.UID) (*observed.Pod, error)
	// Healthy says why what is known is out of date; nil if it is not.
	Healthy() error
}

// PLEG keeps snapshots. Its methods may be called from any goroutine.
type PLEG struct {
	lister Lister
	client Client
	opts   Options
	// source is there while Run is.
	source atomic.Pointer[sources]

	// noticed holds the pods that are reported to have changed.
	noticed chan types.UID
	// behind holds the pods with an exited process that the runtime still reports running.
	behind chan types.UID

	mu     sync.Mutex
	pods   map[types.UID]*observed.Pod
	locks  map[types.UID]*sync.Mutex // serialise snapshots of a pod
	listed time.Time                 // of the newest good relist
	down   error
	again  notify.Signal // relist at once
	active notify.Signal // relist often for a while
}

// New makes a PLEG over a runtime. client gives the event stream and the pids; nil uses the relist alone.
func New(lister Lister, client Client, opts Options) *PLEG {
	if opts.RelistMin <= 0 {
		opts.RelistMin = defaultRelistMin
	}
	if opts.RelistMax <= 0 {
		opts.RelistMax = defaultRelistMax
	}
	if opts.OnChange == nil {
		opts.OnChange = func(types.UID) {}
	}
	if opts.Stored == nil {
		opts.Stored = func() {}
	}
	if opts.Busy == nil {
		opts.Busy = func(types.UID) bool { return false }
	}
	if opts.OnHealth == nil {
		opts.OnHealth = func(error) {}
	}
	p := &PLEG{
		lister:  lister,
		opts:    opts,
		noticed: make(chan types.UID, 256),
		again:   notify.NewSignal(),
		active:  notify.NewSignal(),
		behind:  make(chan types.UID, 256),
		pods:    map[types.UID]*observed.Pod{},
		locks:   map[types.UID]*sync.Mutex{},
	}
	p.client = client
	return p
}

// Run keeps the snapshots up to date until ctx ends.
func (p *PLEG) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if p.client != nil {
		source, err := newSources(p.client, p.notice, p.relistSoon)
		if err != nil {
			return err
		}
		source.start(ctx, &wg)
		p.source.Store(source)
	}
	wg.Go(func() { p.followNotices(ctx) })
	p.relistLoop(ctx)
	return nil
}

// relistLoop lists as often as needed.
func (p *PLEG) relistLoop(ctx context.Context) {
	period := p.opts.RelistMin
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-p.again:
			period = p.opts.RelistMin
		case <-p.active:
			if period > p.opts.RelistMin {
				period = p.opts.RelistMin
				timer.Reset(period)
			}
			continue
		}
		changed, err := p.Relist(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			period = downRetry
		case changed:
			period = p.opts.RelistMin
		default:
			period = min(2*period, p.opts.RelistMax)
		}
		timer.Reset(period)
	}
}

// relistSoon asks for a relist at once, and often for a while.
func (p *PLEG) relistSoon() {
	p.again.Notify()
}

// notice says that something of a pod changed.
func (p *PLEG) notice(ctx context.Context, uid types.UID) {
	select {
	case p.noticed <- uid:
	case <-ctx.Done():
	}
}

// followNotices makes a snapshot of each pod with an event, and another one of pods that have a process which has
// exited although CRI still reports it running.
func (p *PLEG) followNotices(ctx context.Context) {
	var later lookAgain
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case uid := <-p.noticed:
			p.reread(ctx, uid, &later)
		case uid := <-p.behind:
			later.add(uid, time.Now())
		case <-timer.C:
			for _, uid := range later.due(time.Now()) {
				p.reread(ctx, uid, &later)
			}
		}
		if wait, ok := later.next(time.Now()); ok {
			timer.Reset(wait)
		}
	}
}

func (p *PLEG) reread(ctx context.Context, uid types.UID, later *lookAgain) {
	_, behind, err := p.update(ctx, uid, true)
	switch {
	case err != nil && ctx.Err() == nil:
		klog.V(2).InfoS("Pod state not read; relisting", "podUID", uid, "err", err)
		p.relistSoon()
	case behind:
		later.add(uid, time.Now())
	default:
		later.remove(uid)
	}
}

// fallsBehind requests another snapshot of a pod soon.
func (p *PLEG) fallsBehind(uid types.UID) {
	select {
	case p.behind <- uid:
	default:
		p.relistSoon()
	}
}

// Relist compares the runtime's lists with the snapshots, renews those that differ, and reports whether
// there were any.
func (p *PLEG) Relist(ctx context.Context) (changed bool, err error) {
	lists, err := p.lister.ListPods(ctx)
	if err != nil {
		if ctx.Err() == nil {
			p.health(err)
		}
		return false, err
	}
	differ := p.differing(lists)
	found := len(differ)
	differ = slices.DeleteFunc(differ, p.opts.Busy)
	var wg sync.WaitGroup
	slots := make(chan struct{}, getParallel)
	var mu sync.Mutex
	for _, uid := range differ {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			_, behind, e := p.update(ctx, uid, true)
			if behind {
				p.fallsBehind(uid)
			}
			if e != nil {
				mu.Lock()
				defer mu.Unlock()
				err = e
			}
		})
	}
	wg.Wait()
	if err != nil {
		return true, err
	}
	p.health(nil)
	return found > 0, nil
}

// differing returns the pods whose containers in the runtime's lists differ from their snapshots, and those that are
// gone.
func (p *PLEG) differing(lists []*observed.Pod) []types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	var uids []types.UID
	seen := map[types.UID]bool{}
	for _, list := range lists {
		seen[list.UID] = true
		if have := p.pods[list.UID]; have == nil || (have.At.Before(list.At) && !sameLists(have, list)) {
			uids = append(uids, list.UID)
		}
	}
	for uid, have := range p.pods {
		if !seen[uid] && len(have.Sandboxes)+len(have.Containers) > 0 {
			uids = append(uids, uid)
		}
	}
	return uids
}

// sameLists compares what the runtime's lists tell of two snapshots of a pod.
func sameLists(a, b *observed.Pod) bool {
	return slices.EqualFunc(a.Sandboxes, b.Sandboxes, func(x, y *observed.Sandbox) bool {
		return x.ID == y.ID && x.Ready == y.Ready
	}) &&
		slices.EqualFunc(a.Containers, b.Containers, func(x, y *observed.Container) bool {
			return x.ID == y.ID && x.State == y.State
		})
}

// Refresh makes a snapshot of a pod now, and returns it. OnChange is not called.
func (p *PLEG) Refresh(ctx context.Context, uid types.UID) (*observed.Pod, error) {
	p.active.Notify()
	pod, behind, err := p.update(ctx, uid, false)
	if behind {
		p.fallsBehind(uid)
	}
	return pod, err
}

// update makes and stores a snapshot; tell says whether a change is reported. behind says that a process runs
// in the snapshot that has ended.
func (p *PLEG) update(ctx context.Context, uid types.UID, notify bool) (pod *observed.Pod, behind bool, err error) {
	lock := p.lockOf(uid)
	lock.Lock()
	pod, err = p.lister.GetPod(ctx, uid, p.Get(uid))
	if err != nil {
		lock.Unlock()
		return nil, false, fmt.Errorf("read pod %s from the runtime: %w", uid, err)
	}
	changed := p.store(pod)
	lock.Unlock()
	if changed {
		p.opts.Stored()
	}
	if s := p.source.Load(); s != nil {
		behind = s.watch(pod)
	}
	if changed && notify {
		p.opts.OnChange(uid)
	}
	return pod, behind, nil
}

func (p *PLEG) lockOf(uid types.UID) *sync.Mutex {
	p.mu.Lock()
	defer p.mu.Unlock()
	lock := p.locks[uid]
	if lock == nil {
		lock = &sync.Mutex{}
		p.locks[uid] = lock
	}
	return lock
}

// store keeps a snapshot and reports whether it differs from the one before. A pod without containers and sandboxes is
// forgotten.
func (p *PLEG) store(pod *observed.Pod) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.pods[pod.UID]
	if before != nil && before.At.After(pod.At) {
		return false
	}
	if len(pod.Sandboxes)+len(pod.Containers) == 0 {
		delete(p.pods, pod.UID)
		delete(p.locks, pod.UID)
		return before != nil
	}
	p.pods[pod.UID] = pod
	return before == nil || !reflect.DeepEqual(before.Sandboxes, pod.Sandboxes) || !equalContainers(before, pod)
}

// equalContainers compares without the resources, whose protobuf form does not compare.
func equalContainers(a, b *observed.Pod) bool {
	return slices.EqualFunc(a.Containers, b.Containers, func(x, y *observed.Container) bool {
		cx, cy := *x, *y
		cx.Resources, cy.Resources = nil, nil
		return reflect.DeepEqual(cx, cy)
	})
}

// Get returns the newest snapshot of a pod, or nil when the runtime has nothing of it.
func (p *PLEG) Get(uid types.UID) *observed.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods[uid]
}

// All returns the newest snapshots of all pods of the runtime.
func (p *PLEG) All() []*observed.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.pods))
}

// Healthy returns nil when the newest relist went well, and otherwise what is wrong.
func (p *PLEG) Healthy() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.down != nil && p.listed.IsZero():
		return fmt.Errorf("pleg has yet to be successful: %w", p.down)
	case p.down != nil:
		return fmt.Errorf("pleg was last seen active %v ago: %w", time.Since(p.listed).Round(time.Second), p.down)
	case p.listed.IsZero():
		return fmt.Errorf("pleg has yet to be successful")
	case time.Since(p.listed) > max(maxSilence, 2*p.opts.RelistMax):
		return fmt.Errorf("pleg was last seen active %v ago; threshold is %v", time.Since(p.listed).Round(time.Second),
			max(maxSilence, 2*p.opts.RelistMax))
	}
	return nil
}

// health records the outcome of a relist and reports a change.
func (p *PLEG) health(err error) {
	p.mu.Lock()
	first := p.listed.IsZero()
	changed := (err != nil) != (p.down != nil)
	p.down = err
	if err == nil {
		p.listed = time.Now()
	}
	p.mu.Unlock()
	if changed || (first && err == nil) {
		p.opts.OnHealth(err)
	}
}
