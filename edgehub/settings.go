package edgehub

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/time/rate"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// settings are the configuration in the form that the module uses.
type settings struct {
	node      string
	heartbeat time.Duration
	rate      rate.Limit
	burst     int
	files     files
	header    http.Header
	features  wire.Features
	// targets in the order to try them.
	targets []target
	// backoff limits the time between dials.
	backoffMin, backoffMax time.Duration
}

// files are the paths of the certificates.
type files struct{ ca, cert, key string }

// target is one endpoint of the cloud.
type target struct {
	protocol  string
	server    string
	url       string
	handshake time.Duration
	limits    wire.Limits
}

const (
	backoffMin = time.Second
	backoffMax = time.Minute
	// quicTimeout is how long QUIC may take to connect if there is a WebSocket to fall back to: networks that block UDP
	// drop it silently.
	quicTimeout = 8 * time.Second
)

// silence returns how long the cloud may be silent: each heartbeat sends a ping, whose answer has three quarters of a
// heartbeat, and the link is dropped before the second heartbeat ends.
func silence(heartbeat time.Duration) time.Duration { return heartbeat * 7 / 4 }

// settingsOf converts the configuration, whose types and ranges have been checked.
func settingsOf(node string, c v1alpha2.EdgeHub) (settings, error) {
	if node == "" {
		return settings{}, errors.New("edgeHub: the node has no name; set modules.edged.hostnameOverride")
	}
	s := settings{
		node: node, heartbeat: time.Duration(c.Heartbeat) * time.Second,
		rate: rate.Limit(c.MessageQPS), burst: int(c.MessageBurst),
		files:      files{c.TLSCAFile, c.TLSCertFile, c.TLSPrivateKeyFile},
		header:     http.Header{},
		backoffMin: backoffMin, backoffMax: backoffMax,
	}
	if s.heartbeat <= 0 {
		return settings{}, fmt.Errorf("modules.edgeHub.heartbeat: %d is not allowed; want seconds, at least 1",
			c.Heartbeat)
	}
	if c.MessageQPS <= 0 {
		s.rate = rate.Inf
	}
	s.burst = max(s.burst, 1)
	s.header.Set(wire.HeaderNodeID, node)
	s.header.Set(wire.HeaderProjectID, c.ProjectID)
	s.header.Set(wire.HeaderUse, wire.UseMessages)
	path := "/" + url.PathEscape(c.ProjectID) + "/" + url.PathEscape(node) + "/events"
	if c.Quic.Enable {
		t := targetOf(wire.ProtocolQUIC, "quic", c.Quic.Server, path, c.Quic, s.heartbeat)
		t.handshake = min(t.handshake, quicTimeout)
		s.targets = append(s.targets, t)
	}
	if server := webSocketServer(c); server != "" {
		s.targets = append(s.targets, targetOf(wire.ProtocolWebSocket, "wss", server, path, c.WebSocket, s.heartbeat))
	}
	if len(s.targets) == 0 {
		return settings{}, errors.New("modules.edgeHub.websocket.server: it is empty; want the cloud's host:port")
	}
	return s, nil
}

func targetOf(protocol, scheme, server, path string, t v1alpha2.Transport, heartbeat time.Duration) target {
	handshake := 30 * time.Second
	if t.HandshakeTimeout > 0 {
		handshake = time.Duration(t.HandshakeTimeout) * time.Second
	}
	return target{
		protocol:  protocol,
		server:    server,
		url:       scheme + "://" + server + path,
		handshake: handshake,
		limits: wire.Limits{
			ReadTimeout: silence(heartbeat), WriteTimeout: time.Duration(t.WriteDeadline) * time.Second,
		},
	}
}

// webSocketServer returns the configured WebSocket server. If only a QUIC server was configured, its host is used.
func webSocketServer(c v1alpha2.EdgeHub) string {
	if !c.Quic.Enable || c.WebSocket.Enable {
		return c.WebSocket.Server
	}
	host, port, err := net.SplitHostPort(c.WebSocket.Server)
	if ip := net.ParseIP(host); err == nil && (ip == nil || !ip.IsLoopback()) {
		return c.WebSocket.Server
	}
	quicHost, _, quicErr := net.SplitHostPort(c.Quic.Server)
	if err != nil || quicErr != nil {
		return c.WebSocket.Server
	}
	return net.JoinHostPort(quicHost, port)
}
