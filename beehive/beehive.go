// Package beehive is the message bus between the modules of one process, and keeps the modules running. A Bus is a
// value: a process may have several.
//
// # Modules
//
// A module has a name, a group and a Run function. Run is called in its own goroutine, and again with a growing delay
// when it fails or panics, while the others keep running. When it returns nil, the module leaves the bus as if by
// Remove. A module has an inbox from when it is added until it leaves, so messages sent to it survive its restart.
//
// A bus made WithWatch also restarts a stuck module: one that takes no message while some wait, or, if it is a Prober,
// does not answer in time. If a module cannot even be stopped, Alive returns an error.
//
// When the bus stops, modules stop one by one, the last added first: a module that sends to another while stopping
// (edged its last reports to metamanager) still finds it if it was added after it.
//
// # Order and delivery
//
//   - A module receives the messages of one sender in the order in which they were sent. Messages to a group keep that
//     order at each member.
//   - A send that returns nil has put the message into the inbox; whether and when it is handled is up to the module.
//     On a full inbox Send waits until its context (or the default timeout) expires, and then fails with ErrFull:
//     nothing is dropped silently and nobody blocks forever.
//   - An answer finds its request by the parent id. The waiter is registered before the request is sent, so the answer
//     cannot be missed; an answer without a waiter is ErrNoWaiter.
//
// # What a receiver must do
//
// Receive in a loop, do not block the loop for long, and answer SendSync requests with SendResp, also if they fail.
// Messages are shared: never modify one. When Receive returns ErrRemoved or the context's error, Run must return;
// another module of the same name may already be on the bus.
//
// # Debugging
//
// Stats returns the length of each inbox and the restarts of each module. A module that does not keep up causes
// ErrFull, with its name, at its senders.
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
	// Name is unique on a bus; it is the address for messages.
	Name() string
	// Group is shared by several modules; a message may be sent to all of them.
	Group() string
	// Run does the module's work until ctx ends. After an error or panic it is called again.
	Run(ctx context.Context) error
}

// Errors of sends.
var (
	ErrNoModule = errors.New("no such module")
	ErrNoGroup  = errors.New("no module in the group")
	ErrFull     = errors.New("inbox is full")
	ErrNoWaiter = errors.New("no caller waits for this answer")
	// ErrRemoved: the module left the bus, by Remove or because it ended; its inbox is lost.
	ErrRemoved = errors.New("module has left the bus")
	// ErrStopped: the bus has stopped, or is about to.
	ErrStopped = errors.New("the bus has stopped")
)

const (
	// defaultInbox is the size of an inbox: it absorbs bursts. What must wait longer belongs into the store.
	defaultInbox = 256
	// defaultTimeout limits sends whose context has no deadline.
	defaultTimeout = 30 * time.Second
)

// Option configures a Bus.
type Option func(*Bus)

// WithInbox sets the size of inboxes.
func WithInbox(size int) Option { return func(b *Bus) { b.inboxSize = size } }

// WithStarted sets a function that is called once all modules run; it must not block.
func WithStarted(f func()) Option { return func(b *Bus) { b.started = f } }

// WithFailures sets a function that is called with the error of each module that fails or panics, before it is run
// again, and with nil when it has run for a minute since, or has left the bus. It must not block.
func WithFailures(f func(module string, err error)) Option { return func(b *Bus) { b.failed = f } }

// WithTimeout sets the timeout of sends whose context has no deadline.
func WithTimeout(d time.Duration) Option { return func(b *Bus) { b.timeout = d } }

// Bus carries messages and runs modules.
type Bus struct {
	inboxSize int
	timeout   time.Duration
	// watch is how often modules are checked; zero is never.
	watch   time.Duration
	started func() // may be nil
	failed  func(module string, err error)

	mu      sync.RWMutex
	modules map[string]*member
	groups  map[string][]*member
	// order is the order in which the modules were added.
	order []*member
	// running is the parent of the modules' contexts once Run was called; it does not end by itself.
	running  context.Context
	stopping bool

	waiters waiters
	wg      sync.WaitGroup
}

// member is a module on the bus.
type member struct {
	module   Module
	inbox    chan *model.Message
	removed  chan struct{}      // closed when the module leaves the bus
	cancel   context.CancelFunc // set once it runs
	ended    chan struct{}      // closed when the module has stopped
	restarts int
	taken    atomic.Uint64 // messages taken from its inbox
	liveness liveness
}

// New makes a bus.
func New(opts ...Option) *Bus {
	b := &Bus{
		inboxSize: defaultInbox,
		timeout:   defaultTimeout,
		failed:    func(string, error) {},
		modules:   map[string]*member{},
		groups:    map[string][]*member{},
	}
	b.waiters.byID = map[string]*waiter{}
	for _, o := range opts {
		o(b)
	}
	return b
}

// Add gives a module an inbox, and starts it if the bus is running.
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

// Remove stops a module and takes it and its inbox off the bus. Callers that wait for its answer learn so at once.
// Remove does not wait for the module's Run to return; the bus's Run does.
func (b *Bus) Remove(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if mem := b.modules[name]; mem != nil {
		b.drop(mem)
	}
}

// drop takes a module off the bus if it is still on it; b.mu is held.
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
	return b.deliver(ctx, mem, m)
}

// deliver adds a message to an inbox, and waits only if the inbox is full.
func (b *Bus) deliver(ctx context.Context, mem *member, m *model.Message) error {
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

// Receive returns the next message of a module; it waits for one until ctx ends.
func (b *Bus) Receive(ctx context.Context, module string) (*model.Message, error) {
	// A message taken now could no longer be handled.
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

// SendToGroup puts a message into the inbox of each module of a group, in the order in which they were added. A full
// inbox does not keep the others from getting it.
func (b *Bus) SendToGroup(ctx context.Context, group string, m *model.Message) error {
	members, err := b.group(group)
	if err != nil {
		return err
	}
	var errs []error
	for _, mem := range members {
		if err := b.deliver(ctx, mem, m); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (b *Bus) group(name string) ([]*member, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if g := b.groups[name]; len(g) > 0 {
		return g, nil // never modified
	}
	return nil, fmt.Errorf("%w: %q", ErrNoGroup, name)
}

// Stats is the state of one module.
type Stats struct {
	Module, Group string
	// Waiting is the number of messages in the inbox.
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
