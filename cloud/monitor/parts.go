package monitor

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

var (
	// ErrStarting is the state of a part that has not started yet.
	ErrStarting = errors.New("starting")
	errStopping = errors.New("cloudcore is ending")
)

// Parts tracks the state of cloudcore's parts, for /healthz and /readyz. A part is ready once it has started; losing
// kube-apiserver later does not change that, since edges are served from memory meanwhile. A kube-apiserver that
// answers and refuses is another matter, and a part of its own (package apihealth). Its methods may be called from any
// goroutine.
type Parts struct {
	mu    sync.Mutex
	names []string // in start order
	state map[string]func() error
	// onlyReady are the parts that do not count for /healthz.
	onlyReady map[string]bool
	stopping  bool
}

// NewParts returns parts that are all starting.
func NewParts(names ...string) *Parts {
	p := &Parts{names: names, state: map[string]func() error{}, onlyReady: map[string]bool{}}
	for _, name := range names {
		p.Set(name, ErrStarting)
	}
	return p
}

// Set sets the state of a part; nil is healthy.
func (p *Parts) Set(name string, err error) { p.SetCheck(name, func() error { return err }) }

// SetCheck lets a part report its state at each probe.
func (p *Parts) SetCheck(name string, check func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state[name] = check
}

// SetReadyCheck is SetCheck for a part whose failure a restart cannot repair: it counts for /readyz alone.
func (p *Parts) SetReadyCheck(name string, check func() error) {
	p.SetCheck(name, check)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onlyReady[name] = true
}

// SetWaiting sets what a starting part waits for.
func (p *Parts) SetWaiting(name string, err error) {
	p.Set(name, fmt.Errorf("%w: %w", ErrStarting, err))
}

// SetStopping marks cloudcore as stopping: no new edge should connect here.
func (p *Parts) SetStopping() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopping = true
}

// report is the state of one part; nil is healthy.
type report struct {
	name string
	err  error
	// excluded is set if the caller does not want to know.
	excluded bool
}

// ready returns the state of the parts, in order.
func (p *Parts) ready() []report {
	p.mu.Lock()
	names, ending := p.names, p.stopping
	checks := make([]func() error, len(names))
	for i, name := range names {
		checks[i] = p.state[name]
	}
	p.mu.Unlock()
	list := make([]report, 0, len(names)+1)
	for i, name := range names {
		list = append(list, report{name: name, err: checks[i]()})
	}
	if ending {
		list = append(list, report{name: "shutdown", err: errStopping})
	}
	return list
}

// alive returns the parts that have failed. Starting and stopping are not failures.
func (p *Parts) alive() []report {
	list := p.ready()
	ending := len(list) > len(p.names)
	list = slices.Clip(list[:len(p.names)])
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range list {
		if ending || p.onlyReady[list[i].name] || errors.Is(list[i].err, ErrStarting) {
			list[i].err = nil
		}
	}
	return list
}

// verdict returns the answer to a probe: a line for every part, or only for unhealthy ones.
func verdict(probe string, list []report, verbose bool) (text string, well bool) {
	well = true
	for _, r := range list {
		switch {
		case r.excluded:
			if verbose {
				text += fmt.Sprintf("[+]%s excluded: ok\n", r.name)
			}
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
