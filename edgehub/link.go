package edgehub

import (
	"context"
	"errors"
	"net"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/retry"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// networkDebounce is how long to wait for the remaining changes of a network that just changed (address, route).
const networkDebounce = 200 * time.Millisecond

// keepLink dials, serves, and dials again until ctx ends.
func (m *Module) keepLink(ctx context.Context) {
	b := retry.NewSpread(m.set.backoffMin, m.set.backoffMax)
	for ctx.Err() == nil {
		// The dial satisfies earlier requests.
		drop(m.reconnect)
		drop(m.networkChanged)
		m.applyConfig()
		conn, err := m.dial(ctx)
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close(wire.CloseGoingAway, "")
			}
			return
		}
		if err != nil {
			m.failed(err)
			m.wait(ctx, b)
			continue
		}
		began := time.Now()
		err = m.serve(ctx, conn)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errReconnect) {
			klog.V(1).InfoS("A new connection replaces the link")
			continue
		}
		// Back off from a cloud that accepts connections only to close them.
		if time.Since(began) >= m.set.heartbeat && conn.Stats().LastReceived.After(began) {
			b.Reset()
		}
		m.wait(ctx, b)
	}
}

// withoutPorts removes ports from a network error: they differ with each connection.
func withoutPorts(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// wait waits for the next dial. A network change, or a request for a new connection, ends the wait and resets the
// backoff.
func (m *Module) wait(ctx context.Context, b *retry.Spread) {
	timer := time.NewTimer(b.Next())
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-m.reconnect:
		b.Reset()
	case <-m.networkChanged:
		b.Reset()
		retry.Sleep(ctx, networkDebounce)
	}
}

func drop(ch chan struct{}) {
	select {
	case <-ch:
	default:
	}
}

// dial tries the targets in order.
func (m *Module) dial(ctx context.Context) (wire.Conn, error) {
	var failures []error
	for _, t := range m.set.targets {
		conn, err := m.dialOne(ctx, t)
		if ctx.Err() != nil {
			return conn, err
		}
		if err == nil {
			m.fellBack(t, failures)
			return conn, nil
		}
		failures = append(failures, err)
	}
	return nil, joinFailures(failures)
}

// joinFailures combines the failures of all targets into one.
func joinFailures(failures []error) error {
	last := failures[len(failures)-1]
	var of *failure
	if len(failures) == 1 || !errors.As(last, &of) {
		return last
	}
	all := *of
	for _, err := range failures[:len(failures)-1] {
		if err.Error() != of.text { // the same files are missing for both, say
			all.text += "; and by QUIC: " + err.Error()
		}
		var f *failure
		all.expired = all.expired || errors.As(err, &f) && f.expired
	}
	return &all
}

// fellBack reports whether QUIC was configured but WebSocket is used.
func (m *Module) fellBack(t target, failures []error) {
	if len(failures) > 0 {
		m.health.Set(health.QUICUnavailable, "", failures[0].Error())
	} else if t.protocol == wire.ProtocolQUIC {
		m.health.Clear(health.QUICUnavailable, "")
	}
}

// dialOne dials one target. Its error is a *failure.
func (m *Module) dialOne(ctx context.Context, t target) (wire.Conn, error) {
	config, own, err := m.set.files.load()
	if err != nil {
		return nil, m.dialFailure(ctx, t, own, err)
	}
	noticeCA(config, m.newCA)
	o := wire.DialOptions{
		URL: t.url, TLS: config, Header: m.set.header, Proxy: m.proxy, Limits: t.limits, Dial: m.dialer,
		HandshakeTimeout: t.handshake, Features: m.set.features, Instance: m.instance,
	}
	connect := wire.DialWebSocket
	if t.protocol == wire.ProtocolQUIC {
		connect = wire.DialQUIC
	}
	conn, err := connect(ctx, o)
	if err != nil {
		return nil, m.dialFailure(ctx, t, own, err)
	}
	return conn, nil
}
