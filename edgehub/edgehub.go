// Package edgehub is the edge's end of the link: the module "websocket" of the group "hub", through which all
// other modules reach the cloud. It keeps one connection to it, and knows nothing of what goes over it.
//
// It promises:
//
//   - What is sent to the module goes to the cloud in the order in which it came, or is answered at once with
//     the operation "error" when there is no link; so is a request whose answer the link did not live to
//     see. Nothing is kept for later here: metamanager's outbox does that.
//   - A full network holds up senders through the module's inbox; nothing is dropped for it.
//   - What comes from the cloud goes where docs/wire.md, Dispatch, says: answers to anyone who waits for them,
//     the rest to modules by group, in the order in which it came.
//   - The group "meta" hears of each change of the link (wire.LinkState) before it gets anything over the new
//     link, and after the last thing over the old one.
//   - A link whose other end is gone is noticed within two heartbeats. After a loss or a failed dial the next one is
//     tried after 1 to 60 s, longer each time and spread, and at once when the network changes or
//     Reconnect is called. Certificate files are read again at each dial.
//   - Why there is no link is a condition in the registry, in words that say what to do.
//
// One goroutine connects and reads (link.go, session.go), one takes what modules send (outgoing.go), one beats
// (session.go), one watches the network (network_linux.go). All end with Run's context.
package edgehub

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Bus is what the module needs of beehive.
type Bus interface {
	Receive(ctx context.Context, module string) (*model.Message, error)
	Send(ctx context.Context, module string, m *model.Message) error
	SendResp(ctx context.Context, m *model.Message) error
	SendToGroup(ctx context.Context, group string, m *model.Message) error
}

// Options are what a module is made of.
type Options struct {
	// Node is the node's name.
	Node   string
	Config v1alpha2.EdgeHub
	Bus    Bus
	// Health gets the conditions of the link; nil: nobody is told.
	Health *health.Registry
	// Features are offered to the cloud; nil: all.
	Features *wire.Features
	// Proxy says which proxy to use; nil: http.ProxyFromEnvironment.
	Proxy func(*http.Request) (*url.URL, error)
	// Watch calls changed when the device's network has changed, until ctx ends; nil: netlink.
	Watch func(ctx context.Context, changed func()) error
	// NewCA is called when the cloud turns out to have another CA than the node knows; nil: nobody is told. It must not
	// block.
	NewCA func()
	// Instance is the run of this agent that the cloud is told; the zero value: a random one.
	Instance wire.Instance
}

// Module is the beehive module.
type Module struct {
	// node is its name. set is the business of the goroutine that keeps the link.
	node   string
	set    settings
	bus    Bus
	health *health.Registry
	proxy  func(*http.Request) (*url.URL, error)
	watch  func(ctx context.Context, changed func()) error
	newCA  func()
	// instance is the run of this agent.
	instance wire.Instance
	// dialer makes the connections of WebSockets; nil: over TCP.
	dialer func(ctx context.Context, network, addr string) (net.Conn, error)

	// reconnect asks for a new connection, changed says that the network is another.
	reconnect, networkChanged notify.Signal

	mu sync.Mutex
	// next is the configuration that the next connection takes over; nil when there is none.
	next *settings
	// now is the session of now, nil when there is none.
	now   *session
	state State
	count counts
}

// State is the link as the status command shows it.
type State struct {
	Connected bool
	// Since is when the link came up, or when it was lost; zero before the first of either.
	Since time.Time
	// Protocol and Server are those of the link of now, or of the last one.
	Protocol, Server string
	Features         wire.Features
	// Reason says why there is no link.
	Reason string
}

// New makes the module. What is wrong with the configuration is told now.
func New(o Options) (*Module, error) {
	set, err := settingsOf(o.Node, o.Config)
	if err != nil {
		return nil, err
	}
	set.features = wire.AllFeatures()
	if o.Features != nil {
		set.features = *o.Features
	}
	m := &Module{
		node: o.Node, set: set, bus: o.Bus, health: o.Health, proxy: o.Proxy, watch: o.Watch, newCA: o.NewCA,
		instance: o.Instance, reconnect: notify.NewSignal(), networkChanged: notify.NewSignal(),
	}
	if !m.instance.Known() {
		m.instance = wire.NewInstance()
	}
	m.count.failures = map[string]int64{}
	if m.health == nil {
		m.health = &health.Registry{}
	}
	if m.proxy == nil {
		m.proxy = http.ProxyFromEnvironment
	}
	if m.watch == nil {
		m.watch = watchNetwork
	}
	return m, nil
}

// Name implements beehive.Module.
func (m *Module) Name() string { return model.ModuleEdgeHub }

// Group implements beehive.Module.
func (m *Module) Group() string { return model.GroupHub }

// Run implements beehive.Module: it keeps the link until ctx ends.
func (m *Module) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel(nil)
	parts.Go(func() { cancel(m.sendAll(ctx)) })
	parts.Go(func() { m.watchNetwork(ctx) })
	m.keepLink(ctx)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Retry dials at once where there is no link, and sees that one that is there still lives: after the clock was set,
// say.
func (m *Module) Retry() { m.networkChanged.Notify() }

// Reconnect replaces the connection by a new one at once: after the certificate was renewed, say.
func (m *Module) Reconnect() { m.reconnect.Notify() }

// Configure takes over another way to the cloud, and connects again by it. The node's name and the files of
// certificates stay what they were.
func (m *Module) Configure(c v1alpha2.EdgeHub) error {
	next, err := settingsOf(m.node, c)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.next = &next
	m.mu.Unlock()
	m.Reconnect()
	return nil
}

// applyConfig makes the newest configuration the one in force. keepLink calls it between connections.
func (m *Module) applyConfig() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.next == nil {
		return
	}
	next := *m.next
	next.files, next.features, next.backoffMin, next.backoffMax = m.set.files, m.set.features, m.set.backoffMin,
		m.set.backoffMax
	m.set, m.next = next, nil
}

// State returns the link as it is now.
func (m *Module) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// session returns the session of now, or nil.
func (m *Module) session() *session {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}
