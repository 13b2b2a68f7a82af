package edged

import (
	"sync"

	"github.com/edgecore-io/edgecore/edged/options"
)

// reloads hands settings that change to the parts of the current run. Its methods may be called from any goroutine.
type reloads struct {
	mu sync.Mutex
	// next are the newest settings; nil until they change.
	next  *options.Settings
	parts []part
}

// set hands other settings to the parts.
func (r *reloads) set(next options.Settings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = &next
	r.reload()
}

// setParts replaces the parts by those of another run. They get the settings at once if these have changed since the
// start.
func (r *reloads) setParts(parts []part) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.parts = parts
	if r.next != nil {
		r.reload()
	}
}

// reload is called under the lock.
func (r *reloads) reload() {
	for _, p := range r.parts {
		if p.reload != nil {
			p.reload(r.next)
		}
	}
}
