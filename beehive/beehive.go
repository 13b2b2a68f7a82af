// Package beehive is the bus over which the modules of one process talk, and what keeps the modules
// running. A Bus is a value: there may be any number of them in a process.
//
// # Modules
//
// A module has a name, a group and a Run function. Run is called in a goroutine of its own, and again with
// a growing delay when it fails or panics, while the others run on. When it returns nil, the module is taken
// off the bus as if by Remove. A module has an inbox from the moment it is added to the moment it is taken
// off, so that what was sent to it survives its restart.
//
// A bus that is made WithWatch also ends and runs again a module that is stuck: one that takes no message though some
// wait, or, where it is a Prober, does not say in time that it lives. What does not even end is told by Alive.
//
// When the bus ends, modules end one by one, the last added first: one that tells another something at its
// end (edged its last reports to metamanager) still finds it if it was added after it.
//
// # Order and delivery
//
//   - Messages of one sender to one module are received in the order in which they were sent. Messages to
//     a group keep that order at each member.
//   - A send that returns nil has put the message into the inbox; whether and when it is acted upon is the
//     module's business. A full inbox makes Send wait until its context (or the default limit) ends, and
//     then fail with ErrFull: nothing is dropped in silence and nobody is blocked for ever.
//   - An answer finds its request by the parent id. The place for it is there before the request is sent,
//     so that it cannot be missed; an answer that nobody waits for any more is ErrNoWaiter.
//
// # What a receiver must do
//
// Receive in a loop, do not hold the loop up for long, and answer what came by SendSync with SendResp,
// also when it cannot be done. Messages are shared: never change one. A Run that got ErrRemoved or the end of
// its context from Receive is to return; one of the same name may be on the bus already.
//
// # Debugging
//
// Stats gives the length of each inbox and the restarts of each module. A module that does not keep up
// shows as ErrFull at those who send to it, with its name.
package beehive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// Module is a part of the process.
type Module interface {
	// Name is unique on a bus; it is where messages are sent to.
	Name() string
	// Group is what the module shares with others; messages may be sent to all of a group.
	Group() string
	// Run does the module's work until ctx ends. An error or a panic makes it run again.
	Run(ctx context.Context) error
}

// Errors of sends.
var (
	ErrNoModule = errors.New("no such module")
	ErrNoGroup  = errors.New("no module in the group")
	ErrFull     = errors.New("inbox is full")
	ErrNoWaiter = errors.New("no caller waits for this answer")
	// ErrRemoved: the module left the bus, by Remove or because it ended, with what was in its inbox.
	ErrRemoved = errors.New("module has left the bus")
	// ErrStopped: the bus has ended, or is about to.
	ErrStopped = errors.New("the bus has ended")
)

const (
	// defaultInbox is how many messages an inbox holds: it evens out bursts. What has to wait
	// longer belongs into the store.
	defaultInbox = 256
	// defaultTimeout bounds sends whose context has no deadline.
	defaultTimeout = 30 * time.Second
)

// Option changes a Bus.
type Option func(*Bus)

// WithInbox sets how many messages an inbox holds.
func WithInbox(size int) Option { return func(b *Bus) { b.inboxSize = size } }

// WithStarted has a function called once all modules run; it must not block.
func WithStarted(f func()) Option { return func(b *Bus) { b.started = f } }

// WithTimeout sets the bound of sends whose context has no deadline.
func WithTimeout(d time.Duration) Option { return func(b *Bus) { b.timeout = d } }

// Bus carries messages and runs modules.
type Bus struct {
	inboxSize int
	timeout   time.Duration
	// watch is how often modules are looked at; zero is never.
	watch   time.Duration
	started func() // may be nil

	mu      sync.RWMutex
	modules map[string]*member
	groups  map[string][]*member
	// order is that in which the modules were added.
	order []*member
	// running is what the contexts of modules are made from, once Run was called; it does not end by itself.
	running  context.Context
	stopping bool

	waiters waiters
	wg      sync.WaitGroup
}

// member is a module on the bus.
type member struct {
	module   Module
	inbox    chan *model.Message
	removed  chan struct{}      // closed when it leaves the bus
	cancel   context.CancelFunc // set once it runs
	ended    chan struct{}      // closed when it runs no more
	restarts int
	taken    atomic.Uint64 // messages, from its inbox
	vitals   vitals
}

// New makes a bus.
func New(opts ...Option) *Bus {
	b := &Bus{
		inboxSize: defaultInbox,
		timeout:   defaultTimeout,
		modules:   map[string]*member{},
		groups:    map[string][]*member{},
	}
	b.waiters.byID = map[string]*waiter{}
	for _, o := range opts {
		o(b)
	}
	return b
}

// Add gives a module an inbox, and runs it if the bus runs.
func (b *Bus) Add(m Module) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopping {
		return fmt.Errorf("add module %q: %w", m.Name(), ErrStopped)
	}
	if b.modules[m.Name()] != nil {
		return fmt.Errorf("add module %q: there is one of this name", m.Name())
	}
	mem := &member{
		module:  m,
		inbox:   make(chan *model.Message, b.inboxSize),
		removed: make(chan struct{}),
		ended:   make(chan struct{}),
	}
	b.modules[m.Name()] = mem
	b.groups[m.Group()] = append(slices.Clone(b.groups[m.Group()]), mem)
	b.order = append(b.order, mem)
	if b.running != nil {
		b.start(mem)
	}
	return nil
}

// Remove ends a module and takes it off the bus with what is in its inbox. Who waits for an answer of it
// learns so at once. Remove does not wait for the module's Run to return; the bus's Run does.
func (b *Bus) Remove(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if mem := b.modules[name]; mem != nil {
		b.drop(mem)
	}
}

// drop takes a module off the bus, unless it is off already; b.mu is held.
func (b *Bus) drop(mem *member) {
	name, group := mem.module.Name(), mem.module.Group()
	if b.modules[name] != mem {
		return
	}
	is := func(m *member) bool { return m == mem }
	delete(b.modules, name)
	b.order = slices.DeleteFunc(b.order, is)
	if rest := slices.DeleteFunc(slices.Clone(b.groups[group]), is); len(rest) > 0 {
		b.groups[group] = rest
	} else {
		delete(b.groups, group)
	}
	if mem.cancel != nil {
		mem.cancel()
	}
	close(mem.removed)
}

// member returns a module by name.
func (b *Bus) member(name string) (*member, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if mem := b.modules[name]; mem != nil {
		return mem, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrNoModule, name)
}

// Send puts a message into the inbox of a module.
func (b *Bus) Send(ctx context.Context, module string, m *model.Message) error {
	mem, err := b.member(module)
	if err != nil {
		return err
	}
	return b.put(ctx, mem, m)
}

// put waits for room only where there is none.
func (b *Bus) put(ctx context.Context, mem *member, m *model.Message) error {
	select {
	case mem.inbox <- m:
		return nil
	default:
	}
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	select {
	case mem.inbox <- m:
		return nil
	case <-mem.removed:
		return fmt.Errorf("send %s %s to %q: %w", m.Route.Operation, m.Route.Resource, mem.module.Name(), ErrRemoved)
	case <-ctx.Done():
		return fmt.Errorf("send %s %s to %q: %w (%w)", m.Route.Operation, m.Route.Resource, mem.module.Name(), ErrFull,
			ctx.Err())
	}
}

// bounded gives a context a deadline if it has none.
func (b *Bus) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, b.timeout)
}

// Receive returns the next message of a module, and waits for one as long as ctx lasts.
func (b *Bus) Receive(ctx context.Context, module string) (*model.Message, error) {
	// What would be taken now could not be acted upon any more.
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	mem, err := b.member(module)
	if err != nil {
		return nil, err
	}
	select {
	case m := <-mem.inbox:
		mem.taken.Add(1)
		return m, nil
	default:
	}
	select {
	case m := <-mem.inbox:
		mem.taken.Add(1)
		return m, nil
	case <-mem.removed:
		return nil, fmt.Errorf("receive of %q: %w", module, ErrRemoved)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// SendToGroup puts a message into the inbox of each module of a group, in the order in which they were
// added. Those that have room get it even if another has none.
func (b *Bus) SendToGroup(ctx context.Context, group string, m *model.Message) error {
	members, err := b.group(group)
	if err != nil {
		return err
	}
	var errs []error
	for _, mem := range members {
		if err := b.put(ctx, mem, m); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (b *Bus) group(name string) ([]*member, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if g := b.groups[name]; len(g) > 0 {
		return g, nil // never changed in place
	}
	return nil, fmt.Errorf("%w: %q", ErrNoGroup, name)
}

// Stats is the state of one module.
type Stats struct {
	Module, Group string
	// Waiting messages are in the inbox.
	Waiting  int
	Restarts int
}

// Stats returns the state of all modules by name.
func (b *Bus) Stats() []Stats {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var all []Stats
	for name, mem := range b.modules {
		all = append(all, Stats{name, mem.module.Group(), len(mem.inbox), mem.restarts})
	}
	slices.SortFunc(all, func(x, y Stats) int { return strings.Compare(x.Module, y.Module) })
	return all
}
