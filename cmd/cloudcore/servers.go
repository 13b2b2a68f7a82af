package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
)

// server is one that edges reach, with its port open.
type server struct {
	key   string // of the configuration
	addr  net.Addr
	serve func(context.Context) error
	close func() error
}

// listen opens the ports of the configuration, all or none.
func (c *cloud) listen(ctx context.Context) ([]server, error) {
	hub := &c.cfg.Modules.CloudHub
	var servers []server
	for _, s := range []struct {
		key  string
		on   bool
		open func(context.Context) (server, error)
	}{
		{"modules.cloudHub.websocket.port", hub.WebSocket.Enable, c.openWebSocket},
		{"modules.cloudHub.quic.port", hub.Quic.Enable, c.openQUIC},
		{"modules.cloudHub.https.port", hub.HTTPS.Enable, c.openHTTPS},
		{"modules.cloudHub.unixsocket.address", hub.UnixSocket.Enable, c.openUnix},
	} {
		if !s.on {
			continue
		}
		opened, err := s.open(ctx)
		if err != nil {
			for _, other := range servers {
				_ = other.close() // nobody was served yet
			}
			return nil, fmt.Errorf("%s: %w; free it, name another one in the configuration, or set enable: false beside it", s.key, err)
		}
		opened.key = s.key
		servers = append(servers, opened)
	}
	return servers, nil
}

// edgeTLS lets in who has a certificate of a CA that the link trusts at that moment.
func (c *cloud) edgeTLS() *tls.Config {
	config := cloudhub.TLSConfig(c.authority.ServerTLS(tls.RequireAndVerifyClientCert).GetCertificate, c.authority.Pool())
	c.authority.VerifyClients(config)
	return config
}

func (c *cloud) openWebSocket(ctx context.Context) (server, error) {
	l, err := listenTCP(ctx, address(&c.cfg.Modules.CloudHub.WebSocket))
	if err != nil {
		return server{}, err
	}
	return server{addr: l.Addr(), close: l.Close, serve: func(ctx context.Context) error { return c.hub.ServeWebSocket(ctx, l, c.edgeTLS()) }}, nil
}

func (c *cloud) openQUIC(context.Context) (server, error) {
	l, err := c.hub.ListenQUIC(address(&c.cfg.Modules.CloudHub.Quic.Listener), c.edgeTLS())
	if err != nil {
		return server{}, err
	}
	return server{addr: l.Addr(), close: l.Close, serve: func(ctx context.Context) error { return c.hub.ServeQUIC(ctx, l) }}, nil
}

func (c *cloud) openHTTPS(ctx context.Context) (server, error) {
	l, err := listenTCP(ctx, address(&c.cfg.Modules.CloudHub.HTTPS))
	if err != nil {
		return server{}, err
	}
	nodes := c.api.Client.CoreV1().Nodes()
	return server{addr: l.Addr(), close: l.Close, serve: func(ctx context.Context) error { return c.authority.Serve(ctx, l, nodes) }}, nil
}

func (c *cloud) openUnix(context.Context) (server, error) {
	l, err := cloudhub.ListenUnix(c.cfg.Modules.CloudHub.UnixSocket.Address)
	if err != nil {
		return server{}, err
	}
	return server{addr: l.Addr(), close: l.Close, serve: func(ctx context.Context) error { return c.hub.ServeUnix(ctx, l) }}, nil
}

func listenTCP(ctx context.Context, addr string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
}

func address(l *v1alpha1.Listener) string {
	return net.JoinHostPort(l.Address, strconv.Itoa(int(l.Port)))
}
