package podstatus

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/containers/runtime"
)

// Results keeps the result of the newest sync of each pod, which says why containers wait. The zero value is empty. It
// outlives a Maker, so that a restart of the module keeps the reasons.
type Results struct {
	mu   sync.Mutex
	last map[types.UID]runtime.SyncResult
}

func (r *Results) setResult(uid types.UID, result runtime.SyncResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[types.UID]runtime.SyncResult{}
	}
	r.last[uid] = result
}

func (r *Results) get(uid types.UID) runtime.SyncResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[uid]
}

func (r *Results) drop(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, uid)
}
