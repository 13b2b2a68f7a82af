package edged

import (
	"context"
	"sync/atomic"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edged/containers/runtimestatus"
	"github.com/edgecore-io/edgecore/edged/pods/deadline"
	"github.com/edgecore-io/edgecore/edged/pods/podstatus"
	"github.com/edgecore-io/edgecore/edged/pods/shutdown"
	"github.com/edgecore-io/edgecore/edged/pods/termination"
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
	podstate *podstate.State
	// results are those of the newest syncs.
	results podstatus.Results
	reloads reloads
	// deadlines are those of pods with activeDeadlineSeconds.
	deadlines deadline.Tracker
	// terminations wakes callers that wait for the end of a pod.
	terminations termination.Waiters
	// gate is closed while the device shuts down: nothing starts any more.
	gate shutdown.Gate
	// runtimeVersion is the name and version of the runtime.
	runtimeVersion runtimestatus.Version
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
		e.admissions.Probe()
		e.shown.Pods()
		e.pool.UIDs()
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
