package broker

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/mochi-mqtt/server/v2/listeners"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"
)

// listener accepts connections for the server, in bounded number and rate. Its Close returns when no client is left.
type listener struct {
	net    net.Listener
	broker *Broker
	slots  chan struct{}

	ctx    context.Context
	cancel context.CancelFunc
	all    sync.WaitGroup
	mu     sync.Mutex
	conns  map[*conn]struct{}
}

func newListener(n net.Listener, b *Broker) *listener {
	ctx, cancel := context.WithCancel(context.Background())
	return &listener{
		net:    n,
		broker: b,
		// A few more than may have a session, so that the clients beyond the limit are told so.
		slots:  make(chan struct{}, b.limits.Clients+8),
		ctx:    ctx,
		cancel: cancel,
		conns:  map[*conn]struct{}{},
	}
}

func (l *listener) ID() string              { return "tcp" }
func (l *listener) Protocol() string        { return "tcp" }
func (l *listener) Address() string         { return l.net.Addr().String() }
func (l *listener) Init(*slog.Logger) error { return nil }

// Serve accepts connections until Close.
func (l *listener) Serve(establish listeners.EstablishFn) {
	l.mu.Lock()
	if l.ctx.Err() != nil {
		l.mu.Unlock()
		return
	}
	l.all.Add(1)
	l.mu.Unlock()
	defer l.all.Done()
	pace := rate.NewLimiter(connectsPerSecond, connectBurst)
	for pace.Wait(l.ctx) == nil {
		c, err := l.net.Accept()
		if err != nil {
			if l.ctx.Err() == nil { // such as too many open files
				klog.ErrorS(err, "MQTT broker cannot accept a connection", "address", l.net.Addr())
				select {
				case <-l.ctx.Done():
				case <-time.After(time.Second):
				}
			}
			continue
		}
		select {
		case l.slots <- struct{}{}:
			l.all.Go(func() {
				defer func() { <-l.slots }()
				l.serve(c, establish)
			})
		default:
			l.broker.count.drop(dropClients)
			_ = c.Close()
		}
	}
}

func (l *listener) serve(raw net.Conn, establish listeners.EstablishFn) {
	if t := l.broker.options.TLS; t != nil {
		raw = tls.Server(raw, t)
	}
	c := newConn(raw, l.broker.queue, l.broker.limits, &l.broker.count)
	l.mu.Lock()
	if l.ctx.Err() != nil {
		l.mu.Unlock()
		_ = raw.Close()
		return
	}
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	var writer sync.WaitGroup
	writer.Go(c.run)
	defer func() {
		if p := recover(); p != nil { // one client's packets must not end the agent
			l.broker.count.drop(dropPanic)
			klog.ErrorS(fmt.Errorf("%v", p), "MQTT broker failed on a packet; the client is disconnected",
				"client", raw.RemoteAddr(), "stack", string(debug.Stack()))
			l.broker.hook.forgetConn(c)
		}
		_ = c.Close()
		l.broker.hook.sweep()
		writer.Wait()
		l.mu.Lock()
		delete(l.conns, c)
		l.mu.Unlock()
	}()
	if err := establish(l.ID(), c); err != nil && l.broker.log.Allow() {
		if cause := c.why(); cause != nil {
			err = cause
		}
		klog.V(2).InfoS("MQTT client disconnected", "client", raw.RemoteAddr(), "reason", err)
	}
}

// Close disconnects all clients and waits until their goroutines have returned.
func (l *listener) Close(listeners.CloseFn) {
	l.mu.Lock()
	l.cancel()
	for c := range l.conns {
		_ = c.Close()
	}
	l.mu.Unlock()
	_ = l.net.Close()
	l.all.Wait()
}
