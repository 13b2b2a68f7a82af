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

// server is one that edges reach.
type server struct {
	key   string // of the configuration
	addr  net.Addr
	serve func(context.Context) error
	close func() error
}

// listen opens the ports of the configuration, all or none.
func (c *cloud) listen(ctx context.Context) (servers []server, err error) {
	defer func() {
		if err != nil {
			for _, s := range servers {
				_ = s.close() // nobody was served yet
			}
			servers = nil
		}
	}()
	hub := &c.cfg.Modules.CloudHub
	edges := cloudhub.TLSConfig(c.authority.ServerTLS(tls.RequireAndVerifyClientCert).GetCertificate, c.authority.Pool())
	for _, s := range []struct {
		key   string
		on    bool
		open  func(key string) (net.Listener, error)
		serve func(context.Context, net.Listener) error
	}{
		{"modules.cloudHub.websocket.port", hub.WebSocket.Enable,
			func(key string) (net.Listener, error) { return listen(ctx, key, address(&hub.WebSocket)) },
			func(ctx context.Context, l net.Listener) error { return c.hub.ServeWebSocket(ctx, l, edges) }},
		{"modules.cloudHub.https.port", hub.HTTPS.Enable,
			func(key string) (net.Listener, error) { return listen(ctx, key, address(&hub.HTTPS)) },
			func(ctx context.Context, l net.Listener) error {
				return c.authority.Serve(ctx, l, c.api.client.CoreV1().Nodes())
			}},
		{"modules.cloudHub.unixsocket.address", hub.UnixSocket.Enable,
			func(key string) (net.Listener, error) { return listenUnix(key, hub.UnixSocket.Address) }, c.hub.ServeUnix},
	} {
		if !s.on {
			continue
		}
		l, err := s.open(s.key)
		if err != nil {
			return servers, err
		}
		servers = append(servers, server{s.key, l.Addr(), func(ctx context.Context) error { return s.serve(ctx, l) }, l.Close})
	}
	return servers, nil
}

func listenUnix(key, addr string) (net.Listener, error) {
	l, err := cloudhub.ListenUnix(addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; name a path that cloudcore may write, or set enable: false beside it", key, err)
	}
	return l, nil
}

// listen opens a TCP port; key names it in the error.
func listen(ctx context.Context, key, addr string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; free the port, or change it in the configuration", key, err)
	}
	return l, nil
}

func address(l *v1alpha1.Listener) string {
	return net.JoinHostPort(l.Address, strconv.Itoa(int(l.Port)))
}
