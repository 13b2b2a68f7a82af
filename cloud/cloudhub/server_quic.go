package cloudhub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/sourceaddr"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// ListenQUIC listens on a UDP address for our edgecores. KubeEdge's QUIC predates the IETF's, and cannot connect
// (docs/wire.md, QUIC).
func (h *Hub) ListenQUIC(addr string, config *tls.Config) (*wire.QUICListener, error) {
	return wire.ListenQUIC(addr, config, h.limits(), h.opts.Memory, func(c wire.Caller) (wire.AcceptOptions, error) {
		node, why := h.admit(c.Header, c.Chain)
		if why == nil {
			why = h.checkGate(context.Background(), node, c.Chain[0], sourceaddr.Of(c.Remote))
		}
		if why == nil {
			why = h.unique(context.Background(), caller{
				node: node, instance: wire.ParseInstance(c.Header), holder: certs.HolderOf(c.Chain[0]),
				remote: c.Remote.String(), accepted: c.Since,
			})
		}
		if err := h.quicBarred(node); why == nil && err != nil {
			return wire.AcceptOptions{}, err
		}
		if why != nil {
			h.refused.logRefusal(c.Remote.String(), clip(c.Header.Get(wire.HeaderNodeID), 64), why)
			return wire.AcceptOptions{}, why
		}
		return wire.AcceptOptions{Limits: h.limits(), Features: h.opts.Features}, nil
	})
}

// ServeQUIC serves the edges of a listener of ListenQUIC until the context ends, then ends their sessions.
func (h *Hub) ServeQUIC(ctx context.Context, l *wire.QUICListener) error {
	var sessions group
	var guard sync.WaitGroup
	guarded, stop := context.WithCancel(ctx)
	guard.Go(func() { h.guardQUIC(guarded, l) })
	h.listening(1)
	defer func() {
		h.listening(-1)
		sessions.wait()
		stop()
		guard.Wait()
		_ = l.Close() // after the sessions: they say good-bye over it
	}()
	for {
		conn, header, chain, err := l.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("serve QUIC on %s: %w", l.Addr(), err)
		case err != nil:
			continue
		}
		// Check again: there may be less room by now.
		node, why := h.admit(header, chain)
		if why != nil {
			_ = conn.Close(wire.CloseTryLater, why.text)
			continue
		}
		if !sessions.run(func() {
			if s := h.open(ctx, node, chain[0].NotAfter, identified{
				conn, chain[0], wire.ParseInstance(header),
			}); s != nil {
				s.recheck()
				s.run()
			}
		}) {
			_ = conn.Close(wire.CloseGoingAway, "cloudcore stops")
		}
	}
}
