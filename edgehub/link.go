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

// networkDebounce is how long a network that has just changed is given for the rest of its changes (address, route).
const networkDebounce = 200 * time.Millisecond

// keepLink dials, serves, and dials again until ctx ends.
func (m *Module) keepLink(ctx context.Context) {
	b := retry.NewSpread(m.set.backoffMin, m.set.backoffMax)
	for ctx.Err() == nil {
		// What was asked for before the dial, the dial does.
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
			klog.V(1).InfoS("Link is replaced by a new one")
			continue
		}
		// A cloud that takes a connection only to end it is to be asked less and less.
		if time.Since(began) >= m.set.heartbeat && conn.Stats().Heard.After(began) {
			b.Reset()
		}
		m.wait(ctx, b)
	}
}

// withoutPorts takes from an error of the network what is another with each connection: the ports.
func withoutPorts(err error) error {
	if op, ok := err.(*net.OpError); ok {
		return op.Err
	}
	return err
}

// wait waits for the next dial. A change of the network, or a request for a new connection, ends the wait and
// makes earlier failures count for nothing.
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

// dial tries the ways to the cloud in their order.
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

// joinFailures makes one reason of those of all ways.
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

// fellBack says whether QUIC was wanted and WebSocket is what there is.
func (m *Module) fellBack(t target, failures []error) {
	if len(failures) > 0 {
		m.health.Set(health.QUICUnavailable, "", failures[0].Error())
	} else if t.protocol == wire.ProtocolQUIC {
		m.health.Clear(health.QUICUnavailable, "")
	}
}

// dialOne tries one way. Its error is a *failure.
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
