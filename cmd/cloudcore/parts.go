package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

var (
	errStarting = errors.New("starting")
	errEnding   = errors.New("cloudcore is ending")
)

// parts knows how the parts of cloudcore are, for /healthz and /readyz. A part is ready once it has started; to lose
// kube-apiserver afterwards does not change that, since edges are served from memory meanwhile. Its methods may be
// called from any goroutine.
type parts struct {
	mu     sync.Mutex
	names  []string // in the order in which they start
	state  map[string]func() error
	ending bool
}

// newParts returns parts that are all starting.
func newParts(names ...string) *parts {
	p := &parts{names: names, state: map[string]func() error{}}
	for _, name := range names {
		p.set(name, errStarting)
	}
	return p
}

// set says how a part is; nil is well.
func (p *parts) set(name string, err error) { p.ask(name, func() error { return err }) }

// ask lets the part itself say how it is, at each probe.
func (p *parts) ask(name string, check func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state[name] = check
}

// waiting says what a part that is starting waits for.
func (p *parts) waiting(name string, err error) { p.set(name, fmt.Errorf("%w: %w", errStarting, err)) }

// end says that cloudcore was asked to end: no new edge should come here.
func (p *parts) end() {
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
func (p *parts) ready() []report {
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
func (p *parts) alive() []report {
	list := p.ready()
	ending := len(list) > len(p.names)
	list = slices.Clip(list[:len(p.names)])
	for i := range list {
		if ending || errors.Is(list[i].err, errStarting) {
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
