// Package garbage removes from the node what no pod needs any more: dead containers and sandboxes, unused images, and
// folders, cgroups, logs and statuses of pods that are gone.
//
// It collects a while after containers have ended or images were pulled, and every few minutes. It removes nothing that
// a pod may still need: as long as a source of pods was not read (see package readiness), only dead containers of known
// pods are removed.
package garbage

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/gc"
	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
	"github.com/edgecore-io/edgecore/edged/containers/images"
	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/readiness"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/notify"
)

const (
	// period is how often to collect when nothing calls for it: as often as the kubelet collects images. A collection
	// that finds nothing takes a few lists and one measurement of a file system.
	period = 5 * time.Minute
	// debounce is how long a change waits for more: containers that end, pods that go, images that come.
	debounce = 10 * time.Second
	// retryAfter is when to collect again after images could not free enough space: some were too young.
	retryAfter = time.Minute

	eventFreeDiskSpaceFailed = "FreeDiskSpaceFailed"
	eventImageGCFailed       = "ImageGCFailed"
)

// Policy says what may stay.
type Policy struct {
	Images     imagegc.Policy
	Containers gc.Policy
}

// Runtime is the part of package runtime that the Manager needs.
type Runtime interface {
	gc.Runtime
	// LogDirs returns two folders: that of the log links, and that of the log files which the links point to.
	LogDirs() (links, logs string)
	// SetDeadAttempts says how many ended attempts of a container its next start leaves.
	SetDeadAttempts(n int)
}

// Workers are the workers of pods; see package podworker.
type Workers interface {
	Knows(uid types.UID) bool
	Busy(uid types.UID) bool
	Remove(uid types.UID)
}

// Store keeps the statuses of pods; package metaclient implements it.
type Store interface {
	// StatusOwners returns the pods whose statuses are in the store, without their specs.
	StatusOwners(ctx context.Context) ([]*v1.Pod, error)
	ForgetStatus(ctx context.Context, pod *v1.Pod) error
}

// Repairs are the repairs of damaged images; see package repair.
type Repairs interface {
	// ForgetExcept drops what is known of images that are not in names.
	ForgetExcept(names []string)
}

// Options are what a Manager needs.
type Options struct {
	Policy   Policy
	Ready    *readiness.Tracker
	Desired  *desired.Pods
	Runtime  Runtime
	Images   imagegc.State
	PLEG     pleg.Interface
	Workers  Workers
	Statuses *status.Manager
	Store    Store
	Repairs  Repairs
	// Leftovers are the places where pods leave things behind: each lists the UIDs that it has something of.
	Leftovers gc.Sources
	// KeepFile lists images that are never removed; "" is none. See package imagegc.
	KeepFile string
	Recorder *events.Recorder
	Health   *health.Registry
}

// Manager removes garbage. Its methods may be called from any goroutine.
type Manager struct {
	opts   Options
	images *imagegc.Collector
	dead   *gc.Collector
	// containersChanged and imagesChanged wake Run.
	containersChanged, imagesChanged notify.Signal
	// statusesClean says that the store has no status of a pod that is gone. From then on each goes with its pod.
	statusesClean atomic.Bool
	// diskFull says that images could not free enough space, and that an event was sent. Only Run uses it.
	diskFull bool
}

// New returns a Manager that collects nothing before Run.
func New(o Options) *Manager {
	m := &Manager{opts: o, containersChanged: notify.NewSignal(), imagesChanged: notify.NewSignal()}
	m.images = imagegc.New(imagegc.Options{
		State:    o.Images,
		Policy:   o.Policy.Images,
		Wanted:   m.usedImages,
		KeepFile: o.KeepFile,
	})
	m.dead = gc.New(gc.Options{
		Runtime: o.Runtime,
		Policy:  o.Policy.Containers,
		Pods:    m.observedPods,
		Refresh: o.PLEG.Refresh,
	})
	o.Runtime.SetDeadAttempts(deadAttempts(o.Policy.Containers))
	return m
}

// SetPolicy replaces the policy, and collects soon.
func (m *Manager) SetPolicy(p Policy) {
	m.images.SetPolicy(p.Images)
	m.dead.SetPolicy(p.Containers)
	m.opts.Runtime.SetDeadAttempts(deadAttempts(p.Containers))
	m.imagesChanged.Notify()
}

// deadAttempts returns how many ended attempts of a container its next start leaves.
func deadAttempts(p gc.Policy) int {
	if p.PerContainer < 0 {
		return math.MaxInt
	}
	return p.PerContainer
}

// ContainersChanged requests a collection of dead containers soon: a container has exited, or a pod is gone.
func (m *Manager) ContainersChanged() { m.containersChanged.Notify() }

// Changed requests a collection of everything soon: an image was added, or all pods are known now.
func (m *Manager) Changed() { m.imagesChanged.Notify() }

// ImagesUsed records that a pod used its images until now; pod may be nil.
func (m *Manager) ImagesUsed(pod *v1.Pod) {
	if pod != nil {
		m.images.Used(imagegc.PodImages(pod)...)
	}
}

// Collectors returns the metrics.
func (m *Manager) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.images.Metrics()}
}

// FreeContainers removes all dead containers and sandboxes that no decision needs. The node is short of disk.
func (m *Manager) FreeContainers(ctx context.Context) error {
	_, err := m.dead.RemoveAllDead(ctx)
	return err
}

// FreeImages removes unused images, least recently used first, until enough returns true; all of them if enough is nil.
// The node is short of disk.
func (m *Manager) FreeImages(ctx context.Context, enough func(context.Context) bool) error {
	_, err := m.images.Free(ctx, enough)
	return err
}

// Run collects until ctx ends: dead containers soon after ContainersChanged was called, and everything soon after
// Changed was called, every period, and sooner after a collection that could not free enough space.
func (m *Manager) Run(ctx context.Context) error {
	// A collection that is due soon is not put off by further changes.
	containers := time.NewTimer(debounce)
	defer containers.Stop()
	all := time.NewTimer(debounce)
	defer all.Stop()
	containersDue, allDue := true, time.Now().Add(debounce)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.containersChanged:
			if !containersDue {
				containers.Reset(debounce)
				containersDue = true
			}
		case <-m.imagesChanged:
			if time.Until(allDue) > debounce {
				allDue = time.Now().Add(debounce)
				all.Reset(debounce)
			}
		case <-containers.C:
			containersDue = false
			m.collectContainers(ctx)
			m.forgetStatuses(ctx) // of pods that were being ended when it was last called
		case <-all.C:
			m.collectContainers(ctx)
			m.CleanUp(ctx)
			m.keepRepairs()
			wait := m.collectImages(ctx)
			allDue = time.Now().Add(wait)
			all.Reset(wait)
		}
	}
}

func (m *Manager) collectContainers(ctx context.Context) {
	if !m.opts.Ready.Started() || m.opts.PLEG.Healthy() != nil {
		return
	}
	n, err := m.dead.Collect(ctx)
	if err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "Dead containers not removed; trying again later")
	}
	if n > 0 {
		klog.InfoS("Dead containers and sandboxes removed", "count", n)
	}
}

// collectImages removes images as the policy says, and returns when to collect again.
func (m *Manager) collectImages(ctx context.Context) time.Duration {
	if m.opts.PLEG.Healthy() != nil {
		return period
	}
	_, err := m.images.Collect(ctx)
	if full, ok := errors.AsType[*imagegc.NotEnoughError](err); ok {
		if !m.diskFull {
			m.opts.Recorder.NodeEventf(v1.EventTypeWarning, eventFreeDiskSpaceFailed, "%v", full)
		}
		m.diskFull = true
		m.opts.Health.Set(health.ImagesFillDisk, full.Usage.Mountpoint, full.Error())
		return retryAfter
	}
	switch {
	case err == nil:
		m.diskFull = false
		m.clearDiskFull()
	case errors.Is(err, imagegc.ErrUnknown):
		klog.V(2).InfoS("Images not collected", "why", err)
		return retryAfter
	case ctx.Err() == nil:
		klog.ErrorS(err, "Images could not be collected; trying again later")
		m.opts.Recorder.NodeEventf(v1.EventTypeWarning, eventImageGCFailed, "%v", err)
	}
	return period
}

// clearDiskFull clears the condition for all file systems.
func (m *Manager) clearDiskFull() {
	for _, c := range m.opts.Health.Snapshot() {
		if c.Code == health.ImagesFillDisk {
			m.opts.Health.Clear(c.Code, c.Object)
		}
	}
}

// usedImages returns the images that the pods of this node name; ok is false if a pod may be missing. A removed pod
// counts until nothing is left of it: then it is recorded that its images were used until now.
func (m *Manager) usedImages() (names []string, ok bool) {
	if !m.opts.Ready.AllPodsKnown() {
		return nil, false
	}
	for _, p := range m.opts.Desired.All() {
		if p.Removed || imagegc.Wants(p.Pod, m.opts.Statuses.Phase(p.Pod.UID)) {
			names = append(names, imagegc.PodImages(p.Pod)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), true
}

// keepRepairs ends the conditions of damaged images that no pod names.
func (m *Manager) keepRepairs() {
	names, ok := m.usedImages()
	if !ok {
		return
	}
	for i, name := range names {
		if full, err := images.Normalize(name); err == nil {
			names[i] = full
		}
	}
	m.opts.Repairs.ForgetExcept(names)
}

// observedPods returns what the runtime has of desired pods. Orphans are removed as a whole elsewhere.
func (m *Manager) observedPods() []gc.Pod {
	var pods []gc.Pod
	for _, obs := range m.opts.PLEG.All() {
		p, ok := m.opts.Desired.Get(obs.UID)
		if !ok || p.Removed {
			continue
		}
		ended := status.Terminal(m.opts.Statuses.Phase(obs.UID)) && !obs.Alive() && !m.opts.Workers.Busy(obs.UID)
		pods = append(pods, gc.Pod{Observed: obs, Ended: ended})
	}
	return pods
}

// CleanUp removes what pods have left that ended while the agent was not running, or that are unknown. It does nothing
// while a pod may be missing.
func (m *Manager) CleanUp(ctx context.Context) {
	if !m.opts.Ready.AllPodsKnown() {
		return
	}
	left, err := gc.Leftovers(m.opts.Leftovers, func(uid types.UID) bool {
		_, desired := m.opts.Desired.Get(uid)
		return desired || m.opts.Workers.Knows(uid) || m.opts.PLEG.Get(uid) != nil
	})
	if err != nil {
		klog.ErrorS(err, "Leftovers of deleted pods not all listed")
	}
	for uid, where := range left {
		if ctx.Err() != nil {
			return
		}
		klog.InfoS("Cleaning up after a deleted pod", "podUID", uid, "left", where)
		m.opts.Workers.Remove(uid)
	}
	m.forgetStatuses(ctx)
	links, logs := m.opts.Runtime.LogDirs()
	if n, err := gc.RemoveDeadLinks(links, filepath.Clean(logs)); err != nil {
		klog.ErrorS(err, "Links to logs of deleted pods not removed", "dir", links)
	} else if n > 0 {
		klog.InfoS("Removed links to deleted logs", "dir", links, "count", n)
	}
}
