package status

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// Reporter receives changed statuses, in order for each pod. It must not block.
type Reporter interface {
	PodStatus(pod *v1.Pod, status v1.PodStatus)
}

// Manager keeps the newest status of each pod. Its methods may be called from any goroutine.
type Manager struct {
	reporter Reporter

	mu       sync.Mutex
	statuses map[types.UID]v1.PodStatus
	// restored are the pods whose status is still that of an earlier run of the agent.
	restored map[types.UID]bool
}

// NewManager makes a Manager that tells reporter of each change.
func NewManager(reporter Reporter) *Manager {
	return &Manager{reporter: reporter, statuses: map[types.UID]v1.PodStatus{}, restored: map[types.UID]bool{}}
}

// Restore takes over statuses of the previous run, without reporting them; newer ones stay.
func (m *Manager) Restore(statuses map[types.UID]v1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, s := range statuses {
		if _, known := m.statuses[uid]; !known {
			m.statuses[uid], m.restored[uid] = s, true
		}
	}
}

// Set keeps a status, and reports it if it differs from the one before.
func (m *Manager) Set(pod *v1.Pod, status v1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, known := m.statuses[pod.UID]
	delete(m.restored, pod.UID)
	if known && equality.Semantic.DeepEqual(before, status) {
		return
	}
	m.statuses[pod.UID] = status
	m.reporter.PodStatus(pod, status)
}

// Get returns a pod's status; ok is false when none is known.
func (m *Manager) Get(uid types.UID) (status v1.PodStatus, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	status, ok = m.statuses[uid]
	return status, ok
}

// Restored reports whether a pod's status is still that of an earlier run of the agent.
func (m *Manager) Restored(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.restored[uid]
}

// Phase returns a pod's phase, "" when none is known.
func (m *Manager) Phase(uid types.UID) v1.PodPhase {
	status, _ := m.Get(uid)
	return status.Phase
}

// Delete forgets a pod.
func (m *Manager) Delete(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.statuses, uid)
	delete(m.restored, uid)
}
