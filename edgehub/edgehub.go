// Package edgehub is the edge's end of the link: the module "websocket" of the group "hub", through which all other
// modules reach the cloud. It keeps one connection, and does not interpret what it carries.
//
// It promises:
//
//   - Messages sent to the module go to the cloud by priority: queries and acknowledgements, then reports, and events
//     last. Messages of one priority keep their order, and none waits forever (sendqueue.go). Without a link they are
//     answered at once with the operation "error"; so is a request if the link ends before its answer. Nothing is
//     stored here for later: metamanager's outbox does that.
//   - Where batches are agreed, events that wait together are sent in one message, and so are requests for tokens. Each
//     has its own answer.
//   - messageQPS and messageBurst apply only to KubeEdge's cloud.
//   - A slow network blocks senders through the module's inbox; it causes no drops.
//   - Messages from the cloud go where docs/wire.md, Dispatch, says: answers to their waiters, the rest to modules by
//     group, in order.
//   - The group "meta" learns of each change of the link (wire.LinkState) before it gets anything over the new link,
//     and after the last message over the old one.
//   - A dead link is detected within two heartbeats. After a loss or a failed dial the next dial follows after 1 to 60
//     s, with growing random delays, and at once when the network changes or Reconnect is called. Certificate files are
//     read again at each dial.
//   - Why there is no link is a condition in the registry that says what to do.
//
// Package tunnel beside it opens tunnels to the kubelet API when the cloud asks for them, and package apitunnel
// connects to the Kubernetes API through the cloud.
//
// One goroutine connects and reads (link.go, session.go), one queues modules' messages, one sends them (outgoing.go),
// one sends heartbeats (session.go), one watches the network (network_linux.go). All end with Run's context.
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
	"github.com/edgecore-io/edgecore/edgehub/apitunnel"
	"github.com/edgecore-io/edgecore/edgehub/stream"
	tunnelend "github.com/edgecore-io/edgecore/edgehub/tunnel"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Bus is the part of beehive that the module uses.
type Bus interface {
	Receive(ctx context.Context, module string) (*model.Message, error)
	Send(ctx context.Context, module string, m *model.Message) error
	SendResp(ctx context.Context, m *model.Message) error
	SendToGroup(ctx context.Context, group string, m *model.Message) error
}

// Options configures a Module.
type Options struct {
	// Node is the node's name.
	Node   string
	Config v1alpha2.EdgeHub
	Bus    Bus
	// Health gets the conditions of the link; nil: none are set.
	Health *health.Registry
	// Features are offered to the cloud; nil: all.
	Features *wire.Features
	// Proxy chooses the proxy; nil: http.ProxyFromEnvironment.
	Proxy func(*http.Request) (*url.URL, error)
	// Watch calls changed when the device's network changes, until ctx ends; nil: netlink.
	Watch func(ctx context.Context, changed func()) error
	// NewCA is called when the cloud has a CA that the node does not know; it may be nil. It must not block.
	NewCA func()
	// Instance is sent to the cloud as the run of this agent; the zero value: a random one.
	Instance wire.Instance
	// KubeletAPI connects to the node's kubelet API, to which the cloud may ask for a tunnel; nil is none.
	KubeletAPI func(ctx context.Context) (net.Conn, error)
	// ReachedAt is called with the IP address at which the kubelet API is reached through tunnels; it may be nil. It
	// must not block.
	ReachedAt func(address string)
	// Stream is the tunnel to KubeEdge's cloudcore, for its requests to the kubelet API.
	Stream StreamOptions
	// API: clients on the device may reach the Kubernetes API through the cloud (Module.API).
	API bool
}

// StreamOptions say where the tunnel to KubeEdge's cloudcore goes, and what it reaches.
type StreamOptions struct {
	// Server is the cloud's HOST:PORT.
	Server string
	// API connects to the kubelet API without authentication; nil opens no tunnel.
	API func(ctx context.Context) (net.Conn, error)
	// NodeIP is the node's first InternalIP, under which the cloud finds the node, too; "" is not known.
	NodeIP func() string
}

// Module is the beehive module.
type Module struct {
	// node is its name. Only the goroutine that keeps the link uses set.
	node   string
	set    settings
	bus    Bus
	health *health.Registry
	proxy  func(*http.Request) (*url.URL, error)
	watch  func(ctx context.Context, changed func()) error
	newCA  func()
	// instance is the run of this agent.
	instance wire.Instance
	// dialer dials WebSocket connections; nil: over TCP.
	dialer func(ctx context.Context, network, addr string) (net.Conn, error)
	// tunnels serves the tunnels to the kubelet API; nil without one.
	tunnels *tunnelend.Keeper
	// stream keeps the tunnel to KubeEdge's cloudcore that streamTo describes; nil without one.
	stream   *stream.Client
	streamTo StreamOptions
	// api connects to the Kubernetes API; nil without.
	api *apitunnel.Tunnel

	// queue holds the messages that wait for the link.
	queue *sendQueue
	// reconnect asks for a new connection, networkChanged reports a change of the network.
	reconnect, networkChanged notify.Signal

	mu sync.Mutex
	// next is the configuration for the next connection; nil if unchanged.
	next *settings
	// now is the current session, nil if there is none.
	now   *session
	state State
	count counts
}

// State is the link as the status command shows it.
type State struct {
	Connected bool
	// Since is when the link came up or was lost; zero before either.
	Since time.Time
	// Protocol and Server are those of the current link, or of the last one.
	Protocol, Server string
	Features         wire.Features
	// Reason says why there is no link.
	Reason string
}

// New makes the module. It reports errors in the configuration.
func New(o Options) (*Module, error) {
	set, err := settingsOf(o.Node, o.Config)
	if err != nil {
		return nil, err
	}
	set.features = wire.AllFeatures()
	if o.Features != nil {
		set.features = *o.Features
	}
	set.features.Tunnel, set.features.API = o.KubeletAPI != nil, o.API
	m := &Module{
		node: o.Node, set: set, bus: o.Bus, health: o.Health, proxy: o.Proxy, watch: o.Watch, newCA: o.NewCA,
		instance: o.Instance, queue: newSendQueue(), reconnect: notify.NewSignal(), networkChanged: notify.NewSignal(),
		streamTo: o.Stream,
	}
	if o.Stream.API != nil {
		m.stream = stream.New(stream.Options{Dial: m.dialStream, API: o.Stream.API})
	}
	if set.features.Tunnel {
		m.tunnels = tunnelend.New(tunnelend.Options{
			Dial: m.dialTunnel, Backend: o.KubeletAPI, ReachedAt: o.ReachedAt,
		})
	}
	if o.API {
		m.api = apitunnel.New(m.dialAPI)
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
	parts.Go(func() { cancel(m.receiveAll(ctx)) })
	parts.Go(func() { m.sendAll(ctx) })
	parts.Go(func() { m.watchNetwork(ctx) })
	if m.tunnels != nil {
		parts.Go(func() { m.tunnels.Run(ctx) })
	}
	if m.api != nil {
		parts.Go(func() { m.api.Run(ctx) })
	}
	m.keepLink(ctx)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Retry dials at once if there is no link, and checks an existing one: for example after the clock was set.
func (m *Module) Retry() { m.networkChanged.Notify() }

// Reconnect replaces the connection at once: for example after the certificate was renewed.
func (m *Module) Reconnect() { m.reconnect.Notify() }

// Configure applies a new configuration of the link, and reconnects. The node's name and the certificate files stay.
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

// applyConfig applies the newest configuration. keepLink calls it between connections.
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

// State returns the current state of the link.
func (m *Module) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// session returns the current session, or nil.
func (m *Module) session() *session {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}
