package status

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// Reporter is told of changed statuses, in order for each pod. It must not block.
type Reporter interface {
	PodStatus(pod *v1.Pod, status v1.PodStatus)
}

// Manager keeps the newest status of each pod. Its methods may be called from any goroutine.
type Manager struct {
	reporter Reporter

	mu       sync.Mutex
	statuses map[types.UID]v1.PodStatus
}

// NewManager makes a Manager that tells reporter of each change.
func NewManager(reporter Reporter) *Manager {
	return &Manager{reporter: reporter, statuses: map[types.UID]v1.PodStatus{}}
}

// Restore takes over statuses of before, without telling anybody; newer ones that are known stay.
func (m *Manager) Restore(statuses map[types.UID]v1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, s := range statuses {
		if _, known := m.statuses[uid]; !known {
			m.statuses[uid] = s
		}
	}
}

// Set keeps a status and tells of it if it differs from the one before. It returns its phase.
func (m *Manager) Set(pod *v1.Pod, status v1.PodStatus) v1.PodPhase {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, known := m.statuses[pod.UID]
	if known && equality.Semantic.DeepEqual(before, status) {
		return status.Phase
	}
	m.statuses[pod.UID] = status
	m.reporter.PodStatus(pod, status)
	return status.Phase
}

// Get returns a pod's status; ok is false when none is known.
func (m *Manager) Get(uid types.UID) (status v1.PodStatus, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	status, ok = m.statuses[uid]
	return status, ok
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
}
