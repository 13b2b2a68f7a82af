package eviction

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/pkg/notify"
)

const (
	// immediate is the grace, in seconds, of pods that go for a hard threshold: as the kubelet's.
	immediate = 1
	// endWait is how long the end of one pod is waited for before the next one is chosen.
	endWait = 30 * time.Second
	// confirmAfter is the time after an end, or after garbage is removed, in which a look may still show what was
	// before.
	confirmAfter = 1500 * time.Millisecond
	// maxVain is the longest time between two tries to make room on the disk.
	maxVain = 2 * time.Minute
)

// Options are what a Manager needs of the node.
type Options struct {
	Config
	// Node reads how much there is of everything.
	Node func(ctx context.Context) (Observations, error)
	// Pods measures, as far as a signal needs it, the running pods that are not being stopped.
	Pods func(ctx context.Context, s Signal) ([]PodUsage, Layout, error)
	// Evict stops a pod within a grace period in seconds, and says why in an event with annotations. The channel is
	// closed when nothing of it runs.
	Evict func(pod *v1.Pod, message string, annotations map[string]string, grace int64) <-chan struct{}
	// FreeDisk removes unused data from the file system of a signal until enough returns true; nil if nothing can be
	// removed.
	FreeDisk func(ctx context.Context, s Signal, enough func(context.Context) bool) error
	// Changed is called with the node's conditions and the observations behind them, at the start and when they change.
	Changed func(conditions []v1.NodeConditionType, met []Threshold, seen Observations)
	// Acting is called when a resource is being reclaimed.
	Acting func(resource v1.ResourceName)
	// Memory is called with how much more memory may be used before a hard threshold is met, by signal. It may be nil.
	Memory func(headroom map[Signal]int64)
	// After waits; nil is time.After. For tests.
	After func(time.Duration) <-chan time.Time
}

// Manager watches the node. Make it with New.
type Manager struct {
	opts     Options
	notified notify.Signal
	evicted  *prometheus.CounterVec

	mu         sync.Mutex
	config     Config
	conditions []v1.NodeConditionType

	// What follows is Run's own.

	state State
	told  bool
	// tries are the thresholds that are acted upon.
	tries map[key]*try
	// reclaim is what is being done for a short disk; nil is nothing. reclaims waits for it at the end.
	reclaim  *reclaim
	reclaims sync.WaitGroup
	// warned: the node could not be read, and that was said.
	warned bool
}

// try is what was done for a threshold since it is acted upon, or since the last pod was evicted.
type try struct {
	// said: it was logged.
	said bool
	// vain is how often in a row nothing could be done, idle until when nothing is tried because of that.
	vain int
	idle time.Time
}

// New makes a manager; Run watches.
func New(opts Options) *Manager {
	if opts.After == nil {
		opts.After = time.After
	}
	return &Manager{
		opts:     opts,
		config:   opts.Config,
		notified: notify.NewSignal(),
		evicted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_evictions",
			Help: "Pods evicted because the node was short of a resource, by eviction signal",
		}, []string{"eviction_signal"}),
	}
}

// Describe implements prometheus.Collector.
func (m *Manager) Describe(ch chan<- *prometheus.Desc) { m.evicted.Describe(ch) }

// Collect implements prometheus.Collector.
func (m *Manager) Collect(ch chan<- prometheus.Metric) { m.evicted.Collect(ch) }

// Count counts a pod that ended for another limit than those of the node.
func (m *Manager) Count(signal string) { m.evicted.WithLabelValues(signal).Inc() }

// Notify asks for a look now. It may be called from any goroutine.
func (m *Manager) Notify() { m.notified.Notify() }

// Configure changes what is watched for. What was seen before stays known.
func (m *Manager) Configure(c Config) {
	m.mu.Lock()
	m.config = c
	m.mu.Unlock()
	m.Notify()
}

// Conditions are those that the node is in.
func (m *Manager) Conditions() []v1.NodeConditionType {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.conditions)
}

// Admit says why the node rejects a pod now; nil admits it.
func (m *Manager) Admit(pod *v1.Pod) *observed.Reason { return Admit(m.Conditions(), pod) }

// Run watches until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	defer m.reclaims.Wait()
	poked := false
	for {
		wait := m.synchronize(ctx)
		if poked {
			wait = min(wait, confirmAfter) // what was seen may be from just before the news
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.notified:
			poked = true
		case <-m.opts.After(wait):
			poked = false
		}
	}
}

// synchronize measures the node, reclaims what is short, and returns how long to wait before the next time.
func (m *Manager) synchronize(ctx context.Context) time.Duration {
	verdict, seen, err := m.observe(ctx)
	if err != nil {
		return Period
	}
	if !slices.ContainsFunc(verdict.Acts, func(t Threshold) bool {
		return t.Signal.Condition() == v1.NodeDiskPressure
	}) {
		m.dropReclaim()
	}
	due, wait := m.dueThresholds(verdict.Acts)
	if len(verdict.Acts) == 0 {
		return verdict.Again
	}
	if len(due) == 0 {
		return min(wait, Period)
	}
	// Memory does not wait for the disk, whose measuring may take minutes.
	var disk, rest []Threshold
	for _, t := range due {
		if t.Signal.Condition() == v1.NodeDiskPressure {
			disk = append(disk, t)
		} else {
			rest = append(rest, t)
		}
	}
	evicted, pending := m.evictOne(ctx, rest, seen), false
	if !evicted {
		wait = min(wait, m.inVain(rest))
	}
	if !evicted && len(disk) > 0 {
		m.logReclaim(&disk[0], seen)
		evicted, pending = m.reclaimDisk(ctx, disk, seen)
		if !evicted && !pending {
			wait = min(wait, m.inVain(disk))
		}
	}
	switch {
	case evicted:
		m.tries = map[key]*try{}
		m.pause(ctx, confirmAfter)
		return 0
	case pending:
		return Soon
	}
	return min(wait, Period)
}

// dueThresholds returns those of the thresholds for which something may be tried now, and the time until the next of
// the others. It forgets the tries for thresholds that are not acted upon any more.
func (m *Manager) dueThresholds(acts []Threshold) (due []Threshold, wait time.Duration) {
	tries := make(map[key]*try, len(acts))
	wait = Period
	for _, t := range acts {
		done := m.tries[t.key()]
		if done == nil {
			done = &try{}
		}
		tries[t.key()] = done
		if left := time.Until(done.idle); left > 0 {
			wait = min(wait, left)
		} else {
			due = append(due, t)
		}
	}
	m.tries = tries
	return due, wait
}

// inVain puts off the next try for thresholds for which nothing could be done, each by its own pause, and returns the
// shortest of them.
func (m *Manager) inVain(acts []Threshold) time.Duration {
	wait := Period
	for i := range acts {
		done := m.tries[acts[i].key()]
		done.vain++
		pause := retryDelay(&acts[i], done.vain)
		done.idle = time.Now().Add(pause)
		wait = min(wait, pause)
	}
	return wait
}

// retryDelay is when to try again to reclaim something after nothing could be done for so many times. To measure the
// disk and to look for garbage costs more than to look for pods.
func retryDelay(t *Threshold, times int) time.Duration {
	if t.Signal.Condition() == v1.NodeDiskPressure {
		return min(Period<<min(times-1, 8), maxVain)
	}
	return min(Soon<<min(times-1, 8), Period)
}

// logReclaim logs once that something is being reclaimed.
func (m *Manager) logReclaim(t *Threshold, seen Observations) {
	done := m.tries[t.key()]
	if done.said {
		return
	}
	done.said = true
	if m.opts.Acting != nil {
		m.opts.Acting(t.Signal.Resource())
	}
	klog.InfoS("Node is short of a resource", "resource", t.Signal.Resource(), "signal", t.Signal,
		"available", amount(t.Signal, seen[t.Signal].Available),
		"threshold", amount(t.Signal, t.Value.Of(seen[t.Signal].Capacity)), "soft", t.Soft)
}

// observe measures the node and reports what has changed.
func (m *Manager) observe(ctx context.Context) (Verdict, Observations, error) {
	seen, err := m.opts.Node(ctx)
	if err != nil {
		if ctx.Err() == nil && !m.warned {
			klog.ErrorS(err, "Node not measured: no pod is evicted until it is; trying again")
		}
		m.warned = true
		return Verdict{}, nil, err
	}
	m.warned = false
	m.mu.Lock()
	config := m.config
	m.mu.Unlock()
	var verdict Verdict
	m.state, verdict = Step(config, m.state, seen, time.Now())
	m.mu.Lock()
	changed := !m.told || !slices.Equal(m.conditions, verdict.Conditions)
	m.conditions, m.told = verdict.Conditions, true
	m.mu.Unlock()
	if changed {
		m.opts.Changed(verdict.Conditions, verdict.Met, seen)
	}
	if m.opts.Memory != nil {
		left := map[Signal]int64{}
		for _, s := range []Signal{Memory, AllocatableMemory} {
			if bytes, ok := headroom(config, seen, s); ok {
				left[s] = bytes
			}
		}
		m.opts.Memory(left)
	}
	return verdict, seen, nil
}

// evictOne ends the pod that goes first for the first threshold for which one may go, and waits until it has ended. It
// returns false where there is none.
func (m *Manager) evictOne(ctx context.Context, acts []Threshold, seen Observations) bool {
	for _, t := range acts {
		m.logReclaim(&t, seen)
		pods, layout, err := m.opts.Pods(ctx, t.Signal)
		if err != nil {
			if ctx.Err() == nil {
				klog.ErrorS(err, "Pods not measured: none is evicted until they are; trying again",
					"signal", t.Signal)
			}
			continue
		}
		ranked := Rank(t.Signal, layout, pods)
		if len(ranked) == 0 {
			continue
		}
		m.evict(ctx, t, seen, ranked[0])
		return true
	}
	if len(acts) > 0 && m.tries[acts[0].key()].vain == 0 {
		m.sayNothing(acts[0].Signal)
	}
	return false
}

func (m *Manager) sayNothing(s Signal) {
	klog.InfoS("The node is short of a resource, and no pod can be evicted: only critical pods run", "signal", s)
}

// evict ends a pod, and returns when it has ended, or takes too long to.
func (m *Manager) evict(ctx context.Context, t Threshold, seen Observations, u PodUsage) {
	var grace int64 = immediate
	if t.Soft {
		m.mu.Lock()
		grace = m.config.MaxPodGrace
		m.mu.Unlock()
		if own := u.Pod.Spec.TerminationGracePeriodSeconds; own != nil {
			grace = min(grace, *own)
		}
	}
	message, annotations := Message(t, seen, u)
	klog.InfoS("Pod evicted: the node is short of a resource", "pod", klog.KObj(u.Pod), "signal", t.Signal,
		"grace", grace, "message", message)
	m.evicted.WithLabelValues(string(t.Signal)).Inc()
	ended := m.opts.Evict(u.Pod, message, annotations, grace)
	select {
	case <-ended:
	case <-ctx.Done():
	case <-m.opts.After(endWait + time.Duration(grace)*time.Second):
		klog.InfoS("Pod takes long to terminate", "pod", klog.KObj(u.Pod))
	}
}

func (m *Manager) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-m.opts.After(d):
	}
}
