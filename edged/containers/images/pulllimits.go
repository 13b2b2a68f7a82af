package images

import "golang.org/x/time/rate"

// PullLimits is how often and how many images are pulled.
type PullLimits struct {
	Serialize   bool
	MaxParallel int
	QPS         float64
	Burst       int
}

// PullLimits returns the pace that the options ask for.
func (o *Options) PullLimits() PullLimits {
	return PullLimits{o.Serialize, o.MaxParallel, o.QPS, o.Burst}
}

// SetPullLimits changes how often and how many images are pulled. Pulls under way go on, and do not count among those
// to come.
func (p *Puller) SetPullLimits(limits PullLimits) {
	limit := rate.Inf
	if limits.QPS > 0 {
		limit = rate.Limit(limits.QPS)
	}
	p.limit.SetBurst(max(limits.Burst, 1))
	p.limit.SetLimit(limit)
	slots := 0
	switch {
	case limits.Serialize:
		slots = 1
	case limits.MaxParallel > 0:
		slots = limits.MaxParallel
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if slots == cap(p.slots) {
		return
	}
	p.slots = nil
	if slots > 0 {
		p.slots = make(chan struct{}, slots)
	}
}

// slotsNow are the slots of a pull that begins now; nil is no bound.
func (p *Puller) slotsNow() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slots
}
