package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Options say what a fleet is.
type Options struct {
	// Servers are the hosts and ports of the cloud's WebSockets. Nodes are distributed over them in turn; each stays at
	// its server.
	Servers []string
	Issuer  *Issuer
	// Nodes is how many edges there are.
	Nodes int
	// Heartbeat is the time between an edge's pings; 0: 15 s, as edgecore has it.
	Heartbeat time.Duration
	// Report is the time between reports of a status that does not change; 0: 5 minutes.
	Report time.Duration
	// Arrived is called for each object that comes, after its ack was sent, in the goroutine that reads the link.
	Arrived func(node string, m *model.Message, at time.Time)
	// Failed is told of the first dial or link that fails though nobody wanted it.
	Failed func(error)
}

// Fleet is the edges. Make it with New.
type Fleet struct {
	opts   Options
	edges  []*edge
	places semaphore
	cancel context.CancelFunc
	wg     sync.WaitGroup

	connected, synced, registered, reported atomic.Int64
	// cutting is set while links end because the test wants them to.
	cutting atomic.Bool

	mu       sync.Mutex
	failures int
	failure  error
}

// rampUp is how many edges of a new fleet dial at the same time.
const rampUp = 16

// New makes a fleet, with the certificates of all its edges. Nothing connects before Start.
func New(opts Options) (*Fleet, error) {
	if opts.Heartbeat <= 0 {
		opts.Heartbeat = 15 * time.Second
	}
	if opts.Report <= 0 {
		opts.Report = 5 * time.Minute
	}
	f := &Fleet{
		opts:   opts,
		places: semaphore{taken: make(chan struct{}, rampUp)},
		cancel: func() {},
	}
	for i := range opts.Nodes {
		config, err := opts.Issuer.TLS(NodeName(i))
		if err != nil {
			return nil, err
		}
		f.edges = append(f.edges, &edge{
			fleet:    f,
			server:   opts.Servers[i%len(opts.Servers)],
			node:     NodeName(i),
			tls:      config,
			instance: wire.NewInstance(),
			held:     map[string]wire.Held{},
		})
	}
	return f, nil
}

// Start lets the edges connect, register, and stay connected until Stop. It is called once.
func (f *Fleet) Start(ctx context.Context) {
	ctx, f.cancel = context.WithCancel(ctx)
	for _, e := range f.edges {
		f.wg.Go(func() { e.run(ctx) })
	}
	f.wg.Go(func() { f.beat(ctx) })
}

// NodeName is the name of a fleet's node.
func NodeName(i int) string { return fmt.Sprintf("load-%05d", i) }

// Stop ends all links.
func (f *Fleet) Stop() {
	f.cancel()
	f.wg.Wait()
}

// State is how many edges are connected, have an answered inventory, have ever registered, and have ever had an answer
// to a status.
type State struct{ Connected, Synced, Registered, Reported int }

// State counts.
func (f *Fleet) State() State {
	return State{int(f.connected.Load()), int(f.synced.Load()), int(f.registered.Load()), int(f.reported.Load())}
}

// Settled reports whether every edge is connected, registered and has all that it is to have.
func (f *Fleet) Settled() bool {
	n, s := len(f.edges), f.State()
	return s.Connected == n && s.Synced == n && s.Registered == n
}

// Failures are the dials and links that failed so far though nobody wanted it, and the last one's error.
func (f *Fleet) Failures() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failures, f.failure
}

func (f *Fleet) failed(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures++
	f.failure = err
	if f.failures == 1 && f.opts.Failed != nil {
		f.opts.Failed(err)
	}
}

// Cut ends all links as a network does that goes away: without a word.
func (f *Fleet) Cut() {
	for _, conn := range f.old() {
		if conn != nil {
			_ = conn.socket.Close()
		}
	}
}

// Storm ends all links by cut, which is to end them all, and from then on lets every edge dial when it wants to. It
// returns when the last link has ended.
func (f *Fleet) Storm(ctx context.Context, cut func()) error {
	f.places.free.Store(true)
	f.cutting.Store(true)
	defer f.cutting.Store(false)
	before := f.old()
	cut()
	return Until(ctx, func() (bool, error) {
		for i, conn := range before {
			if conn != nil && f.edges[i].conn.Load() == conn {
				return false, nil
			}
		}
		return true, nil
	})
}

// old is the connection of each edge.
func (f *Fleet) old() []*connection {
	list := make([]*connection, len(f.edges))
	for i, e := range f.edges {
		list[i] = e.conn.Load()
	}
	return list
}

// Until asks again and again until it is told yes, or an error.
func Until(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// beat lets every edge ping once in each heartbeat, one after the other.
func (f *Fleet) beat(ctx context.Context) {
	const steps = 100
	tick := time.NewTicker(max(f.opts.Heartbeat/steps, time.Millisecond))
	defer tick.Stop()
	for step := 0; ; step = (step + 1) % steps {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for i := step; i < len(f.edges); i += steps {
				f.edges[i].beat(now)
			}
		}
	}
}

// semaphore bound how many edges dial at the same time, until they are opened.
type semaphore struct {
	taken chan struct{}
	free  atomic.Bool
}

// enter waits for a place; leave gives it back.
func (p *semaphore) enter(ctx context.Context) (leave func(), ok bool) {
	if p.free.Load() {
		return func() {}, ctx.Err() == nil
	}
	select {
	case p.taken <- struct{}{}:
		return func() { <-p.taken }, true
	case <-ctx.Done():
		return nil, false
	}
}
