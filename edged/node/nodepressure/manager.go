package nodepressure

import (
	"context"
	"errors"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/node/eviction"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// Cgroups are the cgroups of the node and of its pods together; see package cgroups. An empty name means that there is
// no such file or folder.
type Cgroups interface {
	PodsPressure() string
	PodsMemcg() string
	NodeMemcg() string
}

// Settings say when pods are evicted.
type Settings struct {
	eviction.Config
	// KernelMemcg sets thresholds on the use of memory cgroups (cgroup v1) although the kernel has PSI.
	KernelMemcg bool
	// PodsMemory is how many bytes all pods together may use; 0 means no limit.
	PodsMemory int64
}

// Options are what a Manager needs.
type Options struct {
	Settings Settings
	Desired  *desired.Pods
	Stats    Stats
	PLEG     pleg.Interface
	Statuses *status.Manager
	Cgroups  Cgroups
	Stopper  Stopper
	Garbage  Garbage
	Recorder events.Interface
	Health   *health.Registry
	// Changed is called at the start and whenever the node's conditions have changed.
	Changed func()
}

// Manager evicts pods while the node is short of memory, disk or process IDs. Its methods may be called from any
// goroutine.
type Manager struct {
	*eviction.Manager
	memory *eviction.Notifier
}

// New returns a Manager; Run starts it.
func New(o Options) *Manager {
	m := &Manager{}
	m.memory = eviction.NewNotifier(notifierOptions(o.Cgroups, o.Settings.KernelMemcg, func() { m.Notify() }))
	meter := &Meter{
		Stats:      o.Stats,
		PLEG:       o.PLEG,
		Desired:    o.Desired,
		Statuses:   o.Statuses,
		PodsMemory: o.Settings.PodsMemory,
	}
	m.Manager = eviction.New(eviction.Options{
		Config: o.Settings.Config,
		Node:   meter.Node,
		Pods:   meter.Pods,
		Evict: func(pod *v1.Pod, message string, annotations map[string]string, grace int64) <-chan struct{} {
			return evict(o.Stopper, pod, message, annotations, grace)
		},
		FreeDisk: (&reclaimer{stats: o.Stats, garbage: o.Garbage}).free,
		Changed: func(conditions []v1.NodeConditionType, met []eviction.Threshold, seen eviction.Observations) {
			show(o.Health, conditions, met, seen)
			o.Changed()
		},
		Acting: func(name v1.ResourceName) {
			o.Recorder.NodeEventf(v1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim %s", name)
		},
		Memory: m.memory.Headroom,
	})
	return m
}

// notifierOptions returns what the kernel is asked to watch. It is pure but for the questions to cg.
func notifierOptions(cg Cgroups, kernelMemcg bool, notify func()) eviction.NotifierOptions {
	o := eviction.NotifierOptions{Pressure: []string{eviction.SystemPressure}, Notify: notify}
	if v2 := cg.PodsPressure(); v2 != "" {
		o.Pressure = append(o.Pressure, v2)
	}
	// On cgroup v1, PSI says nothing about the memory of all pods together.
	if dir := cg.PodsMemcg(); dir != "" {
		o.Memcg = map[eviction.Signal]string{eviction.AllocatableMemory: dir}
		if kernelMemcg {
			o.Memcg[eviction.Memory] = cg.NodeMemcg()
		}
	}
	return o
}

// Run evicts pods until ctx ends, at intervals and as soon as the kernel reports that memory is short.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() {
		if failed = m.memory.Run(ctx); failed != nil {
			cancel()
		}
	})
	err := m.Manager.Run(ctx)
	cancel()
	wg.Wait()
	return errors.Join(err, failed)
}

// NodeConditions returns the node's conditions of pressure.
func (m *Manager) NodeConditions() []v1.NodeCondition { return eviction.NodeConditions(m.Conditions()) }
