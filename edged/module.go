package edged

import (
	"context"
	"sync/atomic"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edged/containers"
	"github.com/edgecore-io/edgecore/edged/pods"
	"github.com/edgecore-io/edgecore/edged/podstate"
)

// Module is the beehive module. Each Run makes all parts again, in an Edged of its own.
type Module struct {
	opts  Options
	state *state
	// running is the run whose parts are made; nil between two runs.
	running atomic.Pointer[Edged]
}

// state is what outlives a run.
type state struct {
	podstate   *podstate.State
	containers containers.State
	pods       pods.State
	reloads    reloads
	// reachedAt is where the cluster reaches the authenticated port, if not at the node's addresses; nil until known.
	reachedAt atomic.Pointer[string]
}

// New makes the module. It connects to nothing yet.
func New(opts Options) *Module {
	return &Module{opts: opts, state: &state{podstate: podstate.NewState(opts.StoreDamaged)}}
}

// Name implements beehive.Module.
func (m *Module) Name() string { return model.ModuleEdged }

// Group implements beehive.Module.
func (m *Module) Group() string { return model.GroupEdged }

// Run implements beehive.Module.
func (m *Module) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e := &Edged{opts: m.opts, state: m.state}
	if err := e.build(ctx); err != nil {
		return err
	}
	m.running.Store(e)
	defer m.running.Store(nil)
	return e.run(ctx, cancel)
}

// Alive implements beehive.Prober: it returns once the locks that all pods share have been had. The runtime is not
// asked: one that hangs is a condition of its own, which no restart of this module mends. It may be called at any time,
// and may outlast the run that it asks.
func (m *Module) Alive(context.Context) error {
	if e := m.running.Load(); e != nil {
		e.pods.Admissions.Probe()
		e.shown.Pods()
		e.workers.UIDs()
		e.podstate.Recorder.Probe()
	}
	return nil
}

// Reload takes over other settings. No container is restarted for it: what concerns containers counts for those that
// are started from now on.
func (m *Module) Reload(next Settings) { m.state.reloads.set(next) }

// NodeIP is the node's first address; "" while it is not known.
func (m *Module) NodeIP() string {
	if e := m.running.Load(); e != nil {
		return e.self.IP()
	}
	return ""
}

// ReachedAt adds an IP address to those for which the certificate of the authenticated port is made: the address of a
// tunnel. It replaces the address of the call before. It does not block.
func (m *Module) ReachedAt(address string) {
	if before := m.state.reachedAt.Swap(&address); before != nil && *before == address {
		return
	}
	if e := m.running.Load(); e != nil {
		e.api.NamesChanged()
	}
}
