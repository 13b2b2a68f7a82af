// Package mirror shows the static pods of this device in the cloud, each by a mirror pod: the only pods that the API
// server lets a node create. Deleting a mirror pod stops nothing. It is created again, since the manifest is still
// there.
//
// # What is done
//
// For each name there is a static pod, or none, and a mirror pod that the cloud has told of, or none:
//
//	static pod   mirror pod                            then
//	none         there                                 its end is reported
//	there        none                                  one is made, when there is a link
//	there        being deleted, or of another manifest its end is reported, and when it is gone one is made
//
// there        of this manifest                      the static pod's status is reported
//
// # Promises
//
//   - The static pods run on whatever becomes of their mirrors, and nothing here waits for a link but the making of a
//     mirror. Ends and statuses are kept in the store until the cloud has them.
//   - No mirror is deleted before both are known: the manifests and the stored pods. See Loaded.
//   - A status is reported when it differs from the last one, and once after a restart of the agent.
//   - A mirror that the cloud does not take is tried again at growing intervals, at once over a new link or when its
//     manifest changes. Why is logged when it is another reason than before.
package mirror

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/notify"
)

const (
	retryMin = time.Second
	retryMax = 5 * time.Minute
)

// Cloud is what is asked of the cloud, and told to it; see metaclient.
type Cloud interface {
	// Node returns the Node.
	Node(ctx context.Context, name string) (*v1.Node, error)
	// CreatePod makes a pod; it fails where there is no link.
	CreatePod(ctx context.Context, pod *v1.Pod) (*v1.Pod, error)
	// ReportDeleted queues that nothing is left of a pod.
	ReportDeleted(ctx context.Context, pod *v1.Pod) error
	// ReportMirrorStatus queues the status of a mirror pod.
	ReportMirrorStatus(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error
}

// Options configure a Manager.
type Options struct {
	Cloud    Cloud
	NodeName string
	// Status returns the newest status of a static pod.
	Status func(types.UID) (v1.PodStatus, bool)
	// Linked reports whether the link exists already; later changes come by Link.
	Linked bool
}

// Manager keeps the mirror pods. Its methods may be called from any goroutine, and do not wait; those of a nil manager,
// on a device without a cloud, do nothing.
type Manager struct {
	opts Options
	wake notify.Signal

	mu     sync.Mutex
	loaded bool
	linked bool
	pods   map[types.NamespacedName]*pair
}

// pair is the static pod and the mirror pod of one name.
type pair struct {
	static, mirror *v1.Pod
	// ended is the mirror whose end was reported.
	ended types.UID
	// reported is the status that was reported of the mirror; nil before the first.
	reported *v1.PodStatus
	// Of what failed: when it is tried again, after how long, and why.
	retryAt time.Time
	delay   time.Duration
	reason  string
}

// New makes a manager; Run starts it.
func New(opts Options) *Manager {
	return &Manager{opts: opts, linked: opts.Linked, wake: notify.NewSignal(), pods: map[types.NamespacedName]*pair{}}
}

// Wake makes Run check all mirror pods again: a status has changed.
func (m *Manager) Wake() {
	if m == nil {
		return
	}
	m.wake.Notify()
}

// change changes what is known with f, and wakes Run.
func (m *Manager) change(f func()) {
	if m == nil {
		return
	}
	m.mu.Lock()
	f()
	m.mu.Unlock()
	m.Wake()
}

// pairOf returns the pair of a pod's name, and makes one if there is none. m.mu is held.
func (m *Manager) pairOf(pod *v1.Pod) *pair {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	p := m.pods[name]
	if p == nil {
		p = &pair{}
		m.pods[name] = p
	}
	return p
}

// SetStatic replaces all static pods.
func (m *Manager) SetStatic(pods []*v1.Pod) {
	m.change(func() {
		before := map[*pair]*v1.Pod{}
		for _, p := range m.pods {
			before[p], p.static = p.static, nil
		}
		for _, pod := range pods {
			p := m.pairOf(pod)
			if p.static = pod; before[p] == nil || before[p].UID != pod.UID {
				p.resetRetry()
			}
		}
	})
}

// Seen is called for each mirror pod in the store.
func (m *Manager) Seen(pod *v1.Pod) {
	m.change(func() {
		p := m.pairOf(pod)
		if p.mirror == nil || p.mirror.UID != pod.UID {
			p.reported = nil
		}
		p.mirror = pod
	})
}

// Gone is called for each pod that was removed from the store.
func (m *Manager) Gone(uid types.UID) {
	m.change(func() {
		for _, p := range m.pods {
			if p.mirror != nil && p.mirror.UID == uid {
				p.mirror, p.reported = nil, nil
				p.resetRetry()
			}
		}
	})
}

// Loaded says that manifests and stored pods were read.
func (m *Manager) Loaded() { m.change(func() { m.loaded = true }) }

// Link says whether there is a link.
func (m *Manager) Link(connected bool) {
	m.change(func() {
		m.linked = connected
		if !connected {
			return
		}
		for _, p := range m.pods {
			p.ended = "" // what the cloud did not take then it may take now
			p.resetRetry()
		}
	})
}

// resetRetry forgets that something failed.
func (p *pair) resetRetry() { p.retryAt, p.delay = time.Time{}, 0 }

// Run keeps the mirror pods until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	if m == nil {
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-timer.C:
		}
		next := m.step(ctx)
		if next.IsZero() {
			timer.Stop()
			continue
		}
		timer.Reset(max(time.Until(next), 0))
	}
}

// task is what is to be done about one name.
type task struct {
	pair
	name types.NamespacedName
	do   action
}

// step does what is to be done now, and returns when to look again; zero when something has to happen first.
func (m *Manager) step(ctx context.Context) (next time.Time) {
	for _, t := range m.tasks(time.Now()) {
		if ctx.Err() != nil {
			return time.Time{}
		}
		err := m.apply(ctx, t)
		m.recordResult(t, err, time.Now())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.pods {
		if !p.retryAt.IsZero() && (next.IsZero() || p.retryAt.Before(next)) {
			next = p.retryAt
		}
	}
	return next
}

// tasks lists what is to be done now.
func (m *Manager) tasks(now time.Time) []task {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.loaded {
		return nil
	}
	var list []task
	for name, p := range m.pods {
		if p.static == nil && p.mirror == nil {
			delete(m.pods, name)
			continue
		}
		if now.Before(p.retryAt) {
			continue
		}
		p.retryAt = time.Time{}
		if do := decide(p, m.linked); do != nothing {
			list = append(list, task{*p, name, do})
		}
	}
	return list
}

// apply does one thing.
func (m *Manager) apply(ctx context.Context, t task) error {
	switch t.do {
	case remove:
		return m.opts.Cloud.ReportDeleted(ctx, t.mirror)
	case create:
		return m.create(ctx, t)
	case tell:
		return m.reportStatus(ctx, t)
	}
	return nil
}

// create makes a mirror pod.
func (m *Manager) create(ctx context.Context, t task) error {
	node, err := m.opts.Cloud.Node(ctx, m.opts.NodeName)
	if err != nil {
		return fmt.Errorf("read the Node that is to own the mirror pod: %w", err)
	}
	made, err := m.opts.Cloud.CreatePod(ctx, Of(t.static, node))
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("the cloud has another pod of this name; delete that, or rename the static pod: %w", err)
	}
	if err != nil {
		return err
	}
	klog.InfoS("Mirror pod made", "pod", t.name, "podUID", made.UID, "static", t.static.UID)
	m.change(func() {
		if p := m.pods[t.name]; p != nil && p.mirror == nil {
			p.mirror, p.reported = made, nil
		}
	})
	return nil
}

// reportStatus reports a mirror pod's status, if it has changed.
func (m *Manager) reportStatus(ctx context.Context, t task) error {
	status, ok := m.opts.Status(t.static.UID)
	if !ok || t.reported != nil && equality.Semantic.DeepEqual(*t.reported, status) {
		return nil
	}
	if err := m.opts.Cloud.ReportMirrorStatus(ctx, t.mirror, status); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.pods[t.name]; p != nil && p.mirror != nil && p.mirror.UID == t.mirror.UID {
		p.reported = &status
	}
	return nil
}

// recordResult records the result of a task.
func (m *Manager) recordResult(t task, err error, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[t.name]
	if p == nil {
		return
	}
	if err == nil {
		if t.do == remove {
			p.ended = t.mirror.UID
		}
		p.reason = ""
		p.resetRetry()
		return
	}
	p.delay = min(max(2*p.delay, retryMin), retryMax)
	p.retryAt = now.Add(p.delay)
	if text := err.Error(); m.linked && text != p.reason {
		p.reason = text
		klog.InfoS("Mirror pod not updated; trying again", "pod", t.name, "what", t.do, "in", p.delay, "err", err)
	}
}
