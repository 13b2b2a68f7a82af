// Package tunnel is the node's end of tunnels (package pkg/tunnel): on request of the cloud it connects to the cloud,
// and joins each stream with a connection to the node's own kubelet API. If the link is QUIC and both ends agreed on
// its streams (wire.Streams), the cloud opens those, and asks for a tunnel only when the link has
// none free.
//
// It promises:
//
//   - Nothing is open without a request of the cloud. A tunnel that has had no stream for some minutes is closed.
//   - Tunnels and streams only reach the kubelet API that they were made for.
//   - Requests beyond a few a second, and tunnels beyond a few, are dropped; the log says so.
//
// Run owns all goroutines, and ends with its context.
package tunnel

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/retry"
	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

const (
	// defaultIdle is how long a tunnel without a stream is kept. The cloud closes it sooner.
	defaultIdle = 6 * time.Minute
	// dialTimeout is how long connecting to the cloud may take, with all attempts; connectTimeout is the same for the
	// kubelet API.
	dialTimeout    = 20 * time.Second
	connectTimeout = 5 * time.Second
	// requestRate and requestBurst limit the requests that are acted on in a second. tunnelsMax limits the tunnels that
	// exist at a time: one for each cloudcore, and old ones that have not ended yet.
	requestRate  = 1
	requestBurst = 5
	tunnelsMax   = 8
	// streamsMax is how many streams a tunnel may have.
	streamsMax = 1024
)

// Options configures a Keeper. Dial and Backend are required.
type Options struct {
	// Dial connects to the cloud with the token of a request.
	Dial func(ctx context.Context, token string) (net.Conn, error)
	// Backend connects to the kubelet API.
	Backend func(ctx context.Context) (net.Conn, error)
	// ReachedAt is called with the IP address at which the cloud's callers reach the kubelet API; it may be nil. It
	// must not block.
	ReachedAt func(address string)
	// Idle is how long a tunnel without a stream is kept; 0 is 6 minutes.
	Idle time.Duration
}

// Keeper opens and serves tunnels.
type Keeper struct {
	opts     Options
	limit    *rate.Limiter
	requests chan tunnel.Request

	mu    sync.Mutex
	state State
}

// State is the state of tunnels that the status command and the metrics show. Package stream uses it for the tunnel to
// KubeEdge's cloudcore.
type State struct {
	// Tunnels and Streams are how many are open. LinkStreams are those of Streams that the link itself carries.
	Tunnels, Streams, LinkStreams int
	// Opened counts tunnels, Failed those that could not be opened, and Carried the streams. Refused counts streams of
	// the link whose first bytes were invalid or did not arrive in time.
	Opened, Failed, Carried, Refused int64
	// BytesIn and BytesOut count what came from the cloud's callers and what was sent to them.
	BytesIn, BytesOut int64
	// Reason is why the last tunnel could not be opened; "" if it could.
	Reason string
}

// Plus returns the sum of two states.
func (s State) Plus(o State) State {
	return State{
		Tunnels: s.Tunnels + o.Tunnels, Streams: s.Streams + o.Streams, LinkStreams: s.LinkStreams + o.LinkStreams,
		Opened: s.Opened + o.Opened, Failed: s.Failed + o.Failed, Carried: s.Carried + o.Carried,
		Refused: s.Refused + o.Refused, BytesIn: s.BytesIn + o.BytesIn, BytesOut: s.BytesOut + o.BytesOut,
		Reason: cmp.Or(o.Reason, s.Reason),
	}
}

// New makes a keeper without tunnels.
func New(o Options) *Keeper {
	if o.Idle == 0 {
		o.Idle = defaultIdle
	}
	if o.ReachedAt == nil {
		o.ReachedAt = func(string) {}
	}
	return &Keeper{
		opts:     o,
		limit:    rate.NewLimiter(requestRate, requestBurst),
		requests: make(chan tunnel.Request, requestBurst),
	}
}

// Open asks Run for a tunnel. It does not block.
func (k *Keeper) Open(r tunnel.Request) {
	if !k.limit.Allow() {
		klog.V(2).InfoS("Request for a tunnel dropped: the cloud asks too often")
		return
	}
	if r.Address != "" {
		k.opts.ReachedAt(r.Address)
	}
	select {
	case k.requests <- r:
	default:
	}
}

// State returns the current state.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}

func (k *Keeper) update(f func(s *State)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(&k.state)
}

// Run opens and serves tunnels until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	var tunnels sync.WaitGroup
	defer tunnels.Wait()
	places := make(chan struct{}, tunnelsMax)
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-k.requests:
			select {
			case places <- struct{}{}:
			default:
				klog.InfoS("Request for a tunnel dropped: too many tunnels", "limit", tunnelsMax)
				continue
			}
			tunnels.Go(func() {
				defer func() { <-places }()
				k.serve(ctx, r)
			})
		}
	}
}

// serve opens a tunnel, and serves it until it ends or is idle.
func (k *Keeper) serve(ctx context.Context, r tunnel.Request) {
	conn, err := k.dial(ctx, r.Token)
	var a *tunnel.Acceptor
	if err == nil {
		if a, err = tunnel.NewAcceptor(conn); err != nil {
			_ = conn.Close()
		}
	}
	if err != nil {
		if ctx.Err() == nil {
			k.update(func(s *State) { s.Failed++; s.Reason = err.Error() })
			klog.InfoS("Tunnel that the cloud asked for not opened; kubectl logs, exec and the like do not reach this "+
				"node", "err", err)
		}
		return
	}
	k.update(func(s *State) { s.Tunnels++; s.Opened++; s.Reason = "" })
	klog.V(2).InfoS("Tunnel opened")
	began := time.Now()
	defer func() {
		k.update(func(s *State) { s.Tunnels-- })
		klog.V(2).InfoS("Tunnel closed", "after", time.Since(began).Round(time.Second))
	}()
	defer context.AfterFunc(ctx, func() { _ = a.Close() })()
	defer a.Close()
	var streams sync.WaitGroup
	defer streams.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	idle := k.closeIdle(a)
	defer idle.stop()
	for {
		stream, err := a.Accept()
		if err != nil {
			return
		}
		if !idle.addStream() {
			_ = stream.Close()
			continue
		}
		streams.Go(func() {
			defer idle.removeStream()
			k.carryStream(ctx, stream)
		})
	}
}

// ServeLink serves the streams of a link until the link ends. ctx must end with the link.
func (k *Keeper) ServeLink(ctx context.Context, streams *wire.Streams) {
	var open sync.WaitGroup
	defer open.Wait()
	for {
		stream, err := streams.Accept(ctx)
		if err != nil {
			return
		}
		open.Go(func() { k.carryLink(ctx, stream) })
	}
}

// carryLink joins a stream of the link with the kubelet API.
func (k *Keeper) carryLink(ctx context.Context, stream *wire.Stream) {
	address, err := stream.Opener()
	if err != nil {
		if ctx.Err() == nil {
			k.update(func(s *State) { s.Refused++ })
			klog.V(2).InfoS("Stream of the cloud refused", "err", err)
		}
		return
	}
	if address.IsValid() {
		k.opts.ReachedAt(address.String())
	}
	k.update(func(s *State) { s.LinkStreams++ })
	defer k.update(func(s *State) { s.LinkStreams-- })
	k.carryStream(ctx, stream)
}

// dial connects to the cloud. Several cloudcores may share an address. One that has not asked for the tunnel refuses
// the token with status 421; dial then tries again, and may reach the right one.
func (k *Keeper) dial(ctx context.Context, token string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	b := retry.NewSpread(20*time.Millisecond, time.Second)
	for {
		conn, err := k.opts.Dial(ctx, token)
		var refused *wire.Refused
		if err == nil || !errors.As(err, &refused) || refused.Status != http.StatusMisdirectedRequest {
			return conn, err
		}
		if !retry.Sleep(ctx, b.Next()) {
			return nil, err
		}
	}
}

// carryStream joins a stream with the kubelet API. ctx must end with the tunnel or link: while a stream is half closed,
// the only end of it that Join would notice is the kubelet API's.
func (k *Keeper) carryStream(ctx context.Context, stream net.Conn) {
	k.update(func(s *State) { s.Streams++; s.Carried++ })
	defer k.update(func(s *State) { s.Streams-- })
	backend, err := k.connect(ctx)
	if err != nil {
		_ = stream.Close()
		if ctx.Err() == nil {
			klog.InfoS("Connection through a tunnel failed: the kubelet API of this node does not answer", "err", err)
		}
		return
	}
	defer context.AfterFunc(ctx, func() { _ = backend.Close() })()
	tunnel.Join(stream, backend,
		func(n int) { k.update(func(s *State) { s.BytesIn += int64(n) }) },
		func(n int) { k.update(func(s *State) { s.BytesOut += int64(n) }) })
}

// connect connects to the kubelet API.
func (k *Keeper) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return k.opts.Backend(ctx)
}

// idler closes a tunnel that has had no stream for a time.
type idler struct {
	mu      sync.Mutex
	streams int
	after   time.Duration
	timer   *time.Timer
}

func (k *Keeper) closeIdle(a *tunnel.Acceptor) *idler {
	return &idler{after: k.opts.Idle, timer: time.AfterFunc(k.opts.Idle, func() { _ = a.Close() })}
}

// addStream counts a stream; it returns false if there are too many.
func (i *idler) addStream() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.streams >= streamsMax {
		return false
	}
	i.streams++
	i.timer.Stop()
	return true
}

func (i *idler) removeStream() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.streams--; i.streams == 0 {
		i.timer.Reset(i.after)
	}
}

func (i *idler) stop() { i.timer.Stop() }
