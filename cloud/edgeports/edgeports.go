// Package edgeports opens the ports that nodes reach and connects them with what serves them.
//
// It owns the choice of ports in the configuration and their order. It promises that either all of them are open or
// none is, and that nobody is served before Serve is called.
package edgeports

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Hub serves the link; see cloudhub.Hub.
type Hub interface {
	ServeWebSocket(ctx context.Context, l net.Listener, config *tls.Config) error
	ListenQUIC(address string, config *tls.Config) (*wire.QUICListener, error)
	ServeQUIC(ctx context.Context, l *wire.QUICListener) error
	ServeUnix(ctx context.Context, l net.Listener) error
	ServeStreams(ctx context.Context, l net.Listener, config *tls.Config) error
}

// Options are what serves the ports.
type Options struct {
	Hub Hub
	// TLS returns the TLS configuration of a port of the link.
	TLS func() *tls.Config
	// StreamPort is where KubeEdge's nodes open stream tunnels, at the address of the WebSocket; 0 is nowhere.
	StreamPort int32
	// ServeHTTPS serves certificates until ctx ends.
	ServeHTTPS func(ctx context.Context, l net.Listener) error
}

// Port is an open port.
type Port struct {
	// Key is that of the configuration.
	Key  string
	Addr net.Addr
	// Serve serves the port until ctx ends, and closes it.
	Serve func(ctx context.Context) error

	close func() error
}

// Open opens the ports of a configuration, all or none. The error names the key of the port that cannot be opened.
func Open(ctx context.Context, config *v1alpha1.CloudHub, o Options) ([]Port, error) {
	var ports []Port
	for _, p := range []struct {
		key     string
		enabled bool
		open    func(context.Context, *v1alpha1.CloudHub) (Port, error)
	}{
		{"modules.cloudHub.websocket.port", config.WebSocket.Enable, o.openWebSocket},
		{"modules.cloudHub.quic.port", config.Quic.Enable, o.openQUIC},
		{"modules.cloudHub.https.port", config.HTTPS.Enable, o.openHTTPS},
		{"modules.cloudStream.tunnelPort", o.StreamPort != 0, o.openStreams},
		{"modules.cloudHub.unixsocket.address", config.UnixSocket.Enable, o.openUnix},
	} {
		if !p.enabled {
			continue
		}
		port, err := p.open(ctx, config)
		if err != nil {
			for _, other := range ports {
				_ = other.close() // nobody was served yet
			}
			return nil,
				fmt.Errorf("%s: %w; free it, name another one in the configuration, or set enable: false beside it",
					p.key, err)
		}
		port.Key = p.key
		ports = append(ports, port)
	}
	return ports, nil
}

func (o *Options) openWebSocket(ctx context.Context, config *v1alpha1.CloudHub) (Port, error) {
	l, err := listenTCP(ctx, &config.WebSocket)
	if err != nil {
		return Port{}, err
	}
	serve := func(ctx context.Context) error { return o.Hub.ServeWebSocket(ctx, l, o.TLS()) }
	return Port{Addr: l.Addr(), Serve: serve, close: l.Close}, nil
}

func (o *Options) openQUIC(_ context.Context, config *v1alpha1.CloudHub) (Port, error) {
	l, err := o.Hub.ListenQUIC(Address(&config.Quic.Listener), o.TLS())
	if err != nil {
		return Port{}, err
	}
	serve := func(ctx context.Context) error { return o.Hub.ServeQUIC(ctx, l) }
	return Port{Addr: l.Addr(), Serve: serve, close: l.Close}, nil
}

func (o *Options) openHTTPS(ctx context.Context, config *v1alpha1.CloudHub) (Port, error) {
	l, err := listenTCP(ctx, &config.HTTPS)
	if err != nil {
		return Port{}, err
	}
	serve := func(ctx context.Context) error { return o.ServeHTTPS(ctx, l) }
	return Port{Addr: l.Addr(), Serve: serve, close: l.Close}, nil
}

func (o *Options) openStreams(ctx context.Context, config *v1alpha1.CloudHub) (Port, error) {
	l, err := listenTCP(ctx, &v1alpha1.Listener{Address: config.WebSocket.Address, Port: o.StreamPort})
	if err != nil {
		return Port{}, err
	}
	serve := func(ctx context.Context) error { return o.Hub.ServeStreams(ctx, l, o.TLS()) }
	return Port{Addr: l.Addr(), Serve: serve, close: l.Close}, nil
}

func (o *Options) openUnix(_ context.Context, config *v1alpha1.CloudHub) (Port, error) {
	l, err := cloudhub.ListenUnix(config.UnixSocket.Address)
	if err != nil {
		return Port{}, err
	}
	serve := func(ctx context.Context) error { return o.Hub.ServeUnix(ctx, l) }
	return Port{Addr: l.Addr(), Serve: serve, close: l.Close}, nil
}

func listenTCP(ctx context.Context, l *v1alpha1.Listener) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", Address(l))
}

// Address returns where a listener of the configuration listens, as HOST:PORT.
func Address(l *v1alpha1.Listener) string {
	return net.JoinHostPort(l.Address, strconv.Itoa(int(l.Port)))
}
