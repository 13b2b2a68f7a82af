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
	Pulls      images.Pace
	// LogSize and LogFiles are the limits of containers' logs.
	LogSize  int64
	LogFiles int
	GC       garbage.Policy
	// Evictions say when pods end for want of resources. Hard thresholds are as they were at the start: what they keep from
	// pods is part of what the node has told that it has.
	Evictions eviction.Config
}

// Settings returns those of the options that can change while pods run.
func (o *Options) Settings() Settings {
	return Settings{
		DNS: o.DNS, MaxBackoff: o.MaxBackoff, Events: o.Events, Pulls: o.Images.Pace(), LogSize: o.Logs.MaxSize, LogFiles: o.Logs.MaxFiles,
		GC: o.GC, Evictions: o.Eviction.Config,
	}
}

// reloads hands what the configuration changes to the parts that take it over.
type reloads struct {
	mu sync.Mutex
	// next are the newest settings; nil until they change.
	next *Settings
	// takers are told of them, in the order in which they were added.
	takers []func(*Settings)
}

// set hands other settings to the takers.
func (r *reloads) set(next Settings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = &next
	for _, take := range r.takers {
		take(&next)
	}
}

// onReload has a part told of the settings when they change, and at once if they have changed since the start. It must
// not call back into Module.Reload.
func (e *Edged) onReload(take func(*Settings)) {
	e.reloads.mu.Lock()
	defer e.reloads.mu.Unlock()
	e.reloads.takers = append(e.reloads.takers, take)
	if e.reloads.next != nil {
		take(e.reloads.next)
	}
}

// takeReloads names who takes over what; the parts of an earlier run are told no more.
func (e *Edged) takeReloads() {
	e.reloads.mu.Lock()
	e.reloads.takers = nil
	e.reloads.mu.Unlock()
	e.onReload(func(s *Settings) { e.dns.Store(dns.New(s.DNS)) })
	e.onReload(func(s *Settings) { e.runtime.SetMaxBackoff(s.MaxBackoff) })
	e.onReload(func(s *Settings) { e.events.Set(s.Events) })
	e.onReload(func(s *Settings) { e.puller.SetPace(s.Pulls) })
	e.onReload(func(s *Settings) { e.logs.SetLimits(s.LogSize, s.LogFiles) })
	e.onReload(func(s *Settings) { e.garbage.SetPolicy(s.GC) })
	e.onReload(func(s *Settings) { e.evictions.Configure(s.Evictions.WithHard(e.opts.Eviction.Config)) })
}
