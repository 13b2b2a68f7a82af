package edgehub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// session is one established connection.
type session struct {
	// ctx ends with it.
	ctx      context.Context
	conn     wire.Conn
	limit    *rate.Limiter
	requests requests
}

// errReconnect ends a session because a new one was requested.
var errReconnect = errors.New("a new connection was asked for")

// probeTimeout is how long the cloud may take to answer after the network changed.
const probeTimeout = 5 * time.Second

// mayWrite waits while modules exceed the link's rate limit. An error means that the link has ended.
func (s *session) mayWrite() error {
	if s.limit.Wait(s.ctx) != nil {
		return errNotConnected
	}
	return nil
}

// write sends messages of modules, several of them in batches. It calls failed for each that was not sent.
func (s *session) write(msgs []*model.Message, failed func(*model.Message, error)) {
	msgs = slices.DeleteFunc(msgs, func(msg *model.Message) bool {
		if msg.IsResponse() || s.requests.add(msg) {
			return false
		}
		failed(msg, errNotConnected)
		return true
	})
	for _, p := range wire.Pack(model.ModuleEdgeHub, msgs) {
		err := s.conn.Write(p.Message)
		if err == nil {
			continue
		}
		for _, msg := range p.Carried {
			s.requests.forget(msg.Header.ID)
			failed(msg, sendError(err))
		}
	}
}

// rateOf returns the limit for modules' messages over a link. Our own cloud needs no limit: it reads no faster than it
// can serve the node, and metamanager's outbox sends only a few reports at a time.
func (m *Module) rateOf(f wire.Features) *rate.Limiter {
	if f.Inventory {
		return rate.NewLimiter(rate.Inf, 1)
	}
	return rate.NewLimiter(m.set.rate, m.set.burst)
}

// sendError says why a message was not sent: the link is gone, or the message cannot be sent at all.
func sendError(err error) error {
	var large *wire.TooLarge
	var coding *wire.Unsendable
	if errors.As(err, &large) || errors.As(err, &coding) {
		return err
	}
	return fmt.Errorf("%w: %w", errNotConnected, err)
}

// serve carries messages over a connection until it ends, and returns why it did: errReconnect if a new one was
// asked for, nil if ctx ended.
func (m *Module) serve(ctx context.Context, conn wire.Conn) error {
	inner, cancel := context.WithCancelCause(ctx)
	s := &session{ctx: inner, conn: conn, limit: m.rateOf(conn.Features())}
	var parts sync.WaitGroup
	beats := []func() error{conn.Ping}
	if !conn.Features().Lease {
		beats = append(beats, s.keepAlive)
	}
	for _, beat := range slices.Backward(beats) {
		if beat() == nil { // reading fails as well
			parts.Go(func() { every(inner, m.set.heartbeat, beat) })
		}
	}
	parts.Go(func() { m.watchSession(s, cancel) })

	if m.stream != nil && conn.Features() == (wire.Features{}) { // the cloud is KubeEdge's
		parts.Go(func() { m.stream.Run(inner) })
	}
	if streams := conn.Streams(); m.tunnels != nil && streams != nil {
		parts.Go(func() { m.tunnels.ServeLink(inner, streams) })
	}
	m.recordLinkUp(s)
	told := m.announce(inner, wire.LinkState{Connected: true, Features: conn.Features()})
	err := m.read(s)
	if cause := context.Cause(inner); cause != nil {
		err = cause // why this end closed it
	}
	_ = conn.Close(wire.CloseCode(err)) // before watchSession does, which knows no reason
	cancel(err)
	parts.Wait()
	m.recordLinkDown(s)
	for _, msg := range s.requests.drain() {
		m.refuse(ctx, msg, linkLost(nil))
	}
	if ctx.Err() != nil {
		return nil
	}
	if !errors.Is(err, errReconnect) {
		m.failed(fmt.Errorf("the link was lost: %w", withoutPorts(err)))
	}
	if told {
		m.announce(ctx, wire.LinkState{})
	}
	return err
}

// read dispatches messages until the link ends.
func (m *Module) read(s *session) error {
	for {
		msg, err := s.conn.Read()
		if err != nil {
			return err
		}
		for _, msg := range s.unpack(msg) {
			if msg.IsResponse() {
				s.requests.forget(msg.Header.ParentID)
			}
			m.dispatch(s.ctx, msg)
			if err := context.Cause(s.ctx); err != nil {
				return err
			}
		}
	}
}

// unpack returns the messages that one carries, if batches were agreed, or else the message itself.
func (s *session) unpack(msg *model.Message) []*model.Message {
	if !s.conn.Features().Batch || !wire.IsBatch(msg) {
		return []*model.Message{msg}
	}
	msgs, err := wire.Unpack(msg)
	if err != nil {
		klog.ErrorS(err, "Messages from the cloud dropped")
	}
	return msgs
}

// keepAlive sends the keepalive that KubeEdge's cloud expects (docs/wire.md, Keepalive), right after connecting and
// with each heartbeat. It may have to wait behind a large message; pings, sent at the same times, do not.
func (s *session) keepAlive() error {
	return s.conn.Write(model.New(model.ModuleEdgeHub, model.GroupResource, model.OpKeepalive, "node",
		json.RawMessage(`"ping"`)))
}

// every calls do once per period, until ctx ends or do fails. A connection whose writes fail also ends its reads, so
// nothing needs to be signalled.
func every(ctx context.Context, period time.Duration, do func() error) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if do() != nil {
				return
			}
		}
	}
}

// watchSession ends the connection when requested, and probes it when the network has changed.
func (m *Module) watchSession(s *session, cancel context.CancelCauseFunc) {
	var late <-chan time.Time
	var asked time.Time
	for {
		select {
		case <-s.ctx.Done():
			_ = s.conn.Close(wire.CloseGoingAway, "")
			return
		case <-m.reconnect:
			cancel(errReconnect)
		case <-m.networkChanged:
			if late == nil && s.conn.Ping() == nil {
				asked, late = time.Now(), time.After(min(probeTimeout, m.set.heartbeat))
			}
		case <-late:
			late = nil
			if s.conn.Stats().LastReceived.Before(asked) {
				cancel(fmt.Errorf("the network changed, and after that %w", wire.ErrSilent))
			}
		}
	}
}

// announce sends the link's state to the groups that depend on it, retrying until it is delivered. It returns false if
// ctx ends first.
func (m *Module) announce(ctx context.Context, state wire.LinkState) bool {
	content, err := json.Marshal(state)
	if err != nil {
		klog.ErrorS(err, "State of the link not reported")
		return false
	}
	for _, group := range []string{model.GroupMeta, devicemsg.Group} {
		msg := model.New(m.Name(), group, wire.OpConnect, wire.ResourceLink, content)
		for {
			if ctx.Err() != nil {
				return false
			}
			if err := m.bus.SendToGroup(ctx, group, msg); !errors.Is(err, beehive.ErrFull) {
				break // no members, nothing to announce
			}
		}
	}
	return true
}
