package edged

import (
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/edged/dns"
	"github.com/edgecore-io/edgecore/edged/eventreport"
	"github.com/edgecore-io/edgecore/edged/eviction"
	"github.com/edgecore-io/edgecore/edged/garbage"
	"github.com/edgecore-io/edgecore/edged/images"
)

// Settings are those of the Options that can change while pods run.
type Settings struct {
	DNS        dns.Config
	MaxBackoff time.Duration
	Events     eventreport.Options
	Pulls      images.PullLimits
	// LogSize and LogFiles are the limits of containers' logs.
	LogSize  int64
	LogFiles int
	GC       garbage.Policy
	// Evictions say when pods end for want of resources. Hard thresholds are as they were at the start: what they keep
	// from pods is part of what the node has told that it has.
	Evictions eviction.Config
}

// Settings returns those of the options that can change while pods run.
func (o *Options) Settings() Settings {
	return Settings{
		DNS:        o.DNS,
		MaxBackoff: o.MaxBackoff,
		Events:     o.Events,
		Pulls:      o.Images.PullLimits(),
		LogSize:    o.Logs.MaxSize,
		LogFiles:   o.Logs.MaxFiles,
		GC:         o.GC,
		Evictions:  o.Eviction.Config,
	}
}

// reloads hands settings that change to the parts of the current run. Its methods may be called from any goroutine.
type reloads struct {
	mu sync.Mutex
	// next are the newest settings; nil until they change.
	next  *Settings
	parts []part
}

// set hands other settings to the parts.
func (r *reloads) set(next Settings) {
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
