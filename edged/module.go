package edged

import (
	"context"
	"net/netip"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edged/containers"
	"github.com/edgecore-io/edgecore/edged/options"
	"github.com/edgecore-io/edgecore/edged/pods"
	"github.com/edgecore-io/edgecore/edged/podstate"
	"github.com/edgecore-io/edgecore/edged/serve"
)

// Module is the beehive module. Each Run makes all parts again, in an Edged of its own.
type Module struct {
	opts  options.Options
	state *state
	// running is the run whose parts are made; nil between two runs.
	running atomic.Pointer[Edged]
}

// state is what outlives a run.
type state struct {
	podstate   *podstate.State
	containers containers.State
	pods       pods.State
	serve      serve.State
	reloads    reloads
}

// New makes the module. It connects to nothing yet.
func New(opts options.Options) *Module {
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

// Alive implements beehive.Prober: it takes each lock that all pods share, and returns. The runtime is not asked: one
// that hangs is a condition of its own, which no restart of this module mends. It may be called at any time, and may
// outlast the run that it asks.
func (m *Module) Alive(context.Context) error {
	if e := m.running.Load(); e != nil {
		e.pods.Admissions.Probe()
		e.serve.Shown.Pods()
		e.workers.UIDs()
		e.podstate.Recorder.Probe()
	}
	return nil
}

// Reload takes over other settings. No container is restarted for it: what concerns containers counts for those that
// are started from now on.
func (m *Module) Reload(next options.Settings) { m.state.reloads.set(next) }

// NodeIP is the node's first address; "" while it is not known.
func (m *Module) NodeIP() string {
	if e := m.running.Load(); e != nil {
		return e.self.IP()
	}
	return ""
}

// HasAddress reports whether a pod has an address.
func (m *Module) HasAddress(addr netip.Addr) bool {
	e := m.running.Load()
	return e != nil && e.podstate.HasAddress(addr)
}

// Has reports whether a pod is on the device, also if it is about to end.
func (m *Module) Has(uid types.UID) bool {
	_, ok := m.state.podstate.Desired.Get(uid)
	return ok
}

// ReachedAt adds an IP address to those for which the certificate of the authenticated port is made: the address of a
// tunnel. It replaces the address of the call before. It does not block.
func (m *Module) ReachedAt(address string) {
	if !m.state.serve.SetReachedAt(address) {
		return
	}
	if e := m.running.Load(); e != nil {
		e.serve.API.NamesChanged()
	}
}
