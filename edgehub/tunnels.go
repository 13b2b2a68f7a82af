package edgehub

import (
	"context"
	"errors"
	"net"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edgehub/apitunnel"
	tunnelend "github.com/edgecore-io/edgecore/edgehub/tunnel"
	"github.com/edgecore-io/edgecore/pkg/edgestream"
	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// errNoWebSocket means that the configuration names no WebSocket server, which tunnels need.
var errNoWebSocket = errors.New("modules.edgeHub.websocket.server is empty: tunnels connect to it; a QUIC link needs " +
	"none if cloudcore is new enough to open streams of the link")

// openTunnel handles a request of the cloud for a tunnel.
func (m *Module) openTunnel(msg *model.Message) {
	r, err := tunnel.ParseRequest(msg)
	if err != nil {
		klog.V(2).InfoS("Message from the cloud dropped", "err", err)
		return
	}
	m.tunnels.Open(r)
}

// dialTunnel connects to the server of the link for a tunnel.
func (m *Module) dialTunnel(ctx context.Context, token string) (net.Conn, error) {
	o, err := m.webSocket()
	if err != nil {
		return nil, err
	}
	return wire.DialTunnel(ctx, o, token)
}

// dialAPI connects to the server of the link for requests to the Kubernetes API.
func (m *Module) dialAPI(ctx context.Context) (net.Conn, error) {
	o, err := m.webSocket()
	if err != nil {
		return nil, err
	}
	return wire.DialAPI(ctx, o)
}

// API opens streams to the Kubernetes API through the cloud; nil without Options.API.
func (m *Module) API() *apitunnel.Tunnel { return m.api }

// webSocket returns how to connect to the server of the link, beside the link.
func (m *Module) webSocket() (wire.DialOptions, error) {
	m.mu.Lock()
	set := m.set // written with the lock, by applyConfig
	m.mu.Unlock()
	for _, t := range set.targets {
		if t.protocol != wire.ProtocolWebSocket {
			continue
		}
		config, _, err := set.files.load()
		if err != nil {
			return wire.DialOptions{}, err
		}
		return wire.DialOptions{
			URL:              t.url,
			TLS:              config,
			Header:           set.header,
			Proxy:            m.proxy,
			Dial:             m.dialer,
			HandshakeTimeout: t.handshake,
		}, nil
	}
	return wire.DialOptions{}, errNoWebSocket
}

// dialStream connects to KubeEdge's cloudcore for its stream tunnel.
func (m *Module) dialStream(ctx context.Context) (*edgestream.Conn, error) {
	m.mu.Lock()
	set := m.set // written with the lock, by applyConfig
	m.mu.Unlock()
	config, _, err := set.files.load()
	if err != nil {
		return nil, err
	}
	return edgestream.Dial(ctx, edgestream.DialOptions{
		Server: m.streamTo.Server, Node: m.node, IP: m.streamTo.NodeIP(), TLS: config, Proxy: m.proxy,
	})
}

// StreamOpen reports whether there is a stream tunnel to KubeEdge's cloudcore.
func (m *Module) StreamOpen() bool { return m.stream != nil && m.stream.State().Tunnels > 0 }

// Tunnels returns the state of the tunnels, including the one to KubeEdge's cloudcore. It is empty on a node without a
// kubelet API.
func (m *Module) Tunnels() (s tunnelend.State) {
	if m.tunnels != nil {
		s = m.tunnels.State()
	}
	if m.stream != nil {
		s = s.Plus(m.stream.State())
	}
	return s
}
