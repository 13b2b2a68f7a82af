package monitor

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

var (
	// ErrStarting is how a part is that has not started yet.
	ErrStarting = errors.New("starting")
	errEnding   = errors.New("cloudcore is ending")
)

// Parts knows how the parts of cloudcore are, for /healthz and /readyz. A part is ready once it has started; to lose
// kube-apiserver afterwards does not change that, since edges are served from memory meanwhile. Its methods may be
// called from any goroutine.
type Parts struct {
	mu     sync.Mutex
	names  []string // in the order in which they start
	state  map[string]func() error
	ending bool
}

// NewParts returns parts that are all starting.
func NewParts(names ...string) *Parts {
	p := &Parts{names: names, state: map[string]func() error{}}
	for _, name := range names {
		p.Set(name, ErrStarting)
	}
	return p
}

// Set says how a part is; nil is well.
func (p *Parts) Set(name string, err error) { p.Ask(name, func() error { return err }) }

// Ask lets the part itself say how it is, at each probe.
func (p *Parts) Ask(name string, check func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state[name] = check
}

// Waiting says what a part that is starting waits for.
func (p *Parts) Waiting(name string, err error) { p.Set(name, fmt.Errorf("%w: %w", ErrStarting, err)) }

// End says that cloudcore was asked to end: no new edge should come here.
func (p *Parts) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending = true
}

// report is how one part is; nil is well.
type report struct {
	name string
	err  error
}

// ready tells how the parts are, in order.
func (p *Parts) ready() []report {
	p.mu.Lock()
	names, ending := p.names, p.ending
	checks := make([]func() error, len(names))
	for i, name := range names {
		checks[i] = p.state[name]
	}
	p.mu.Unlock()
	list := make([]report, 0, len(names)+1)
	for i, name := range names {
		list = append(list, report{name, checks[i]()})
	}
	if ending {
		list = append(list, report{"shutdown", errEnding})
	}
	return list
}

// alive tells which parts have failed: to start and to end is as it should be.
func (p *Parts) alive() []report {
	list := p.ready()
	ending := len(list) > len(p.names)
	list = slices.Clip(list[:len(p.names)])
	for i := range list {
		if ending || errors.Is(list[i].err, ErrStarting) {
			list[i].err = nil
		}
	}
	return list
}

// verdict is the answer to a probe: every part has its line, or only those that are not well have.
func verdict(probe string, list []report, verbose bool) (text string, well bool) {
	well = true
	for _, r := range list {
		switch {
		case r.err != nil:
			well = false
			text += fmt.Sprintf("[-]%s failed: %v\n", r.name, r.err)
		case verbose:
			text += fmt.Sprintf("[+]%s ok\n", r.name)
		}
	}
	switch {
	case !well:
		return text + probe + " check failed\n", false
	case verbose:
		return text + probe + " check passed\n", true
	}
	return "ok", true
}
