// Package metamanager is the edge's source of truth: it keeps what the cloud wants in the store, hands it
// to edged, and keeps what edged reports until the cloud has it. What it can answer from the store it answers
// without a link; what only the cloud can answer fails at once while there is none.
//
// Promises:
//
//   - An object is acknowledged only after it is on the disk. A failure is answered with the operation
//     "error", and the sender tries again.
//   - Messages about one object are handled in the order in which they came; those about different objects
//     side by side, so that they share the store's transactions.
//   - A cloud of ours sends in order, and what it sends is taken, also if its resourceVersion is lower than the stored
//     one: the API server's database may have been restored from a backup. With KubeEdge's cloud, an object that is
//     older than the stored one (by resourceVersion, of the same UID) changes nothing, and is acknowledged.
//   - A message that was carried out before changes nothing, and is acknowledged.
//   - A delete removes the UID that it names and no other.
//   - Pods, configmaps and secrets are handed to edged after they are on the disk and before they are acknowledged.
//   - A report replaces an older one on the same object; an unchanged one writes nothing. It stays on the disk until
//     the cloud has answered it. Pods are distinguished by UID.
//   - A stored object that the cloud cannot be asked for is used however old it is. What the cloud answers is stored in
//     the turn of its object, unless something newer came since it was asked; that it has no such object removes a
//     stored answer.
package metamanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/outbox"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/metamanager/tokens"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Store is what the module needs of its store; see package store.
type Store interface {
	Get(ctx context.Context, key string) (store.Meta, error)
	List(ctx context.Context, typ string) ([]store.Meta, error)
	Each(ctx context.Context, typ string, do func(store.Meta) error) error
	outbox.Store
}

// Bus is what the module needs of beehive.
type Bus interface {
	Receive(ctx context.Context, module string) (*model.Message, error)
	Send(ctx context.Context, module string, m *model.Message) error
	SendSync(ctx context.Context, module string, m *model.Message) (*model.Message, error)
	SendResp(ctx context.Context, m *model.Message) error
	SendToGroup(ctx context.Context, group string, m *model.Message) error
}

// Options change a module; zero values are the defaults.
type Options struct {
	// Health is called with the result of each write to the store; nil is success.
	Health func(error)
	// Refused is called when the cloud refuses a report on an object, such as default/pod/web, for good because it is
	// too large, with the cloud's error; and with nil when that is over.
	Refused func(object string, err error)
	// NoRoom is called when an object of the cloud, such as default/configmap/web, or its newest version does not fit
	// on the node, with the reason; and with nil when that is over.
	NoRoom func(object string, err error)
	// Memory is the memory of the device, in bytes. The limits of what is stored are parts of it.
	Memory int64
	// Connected is called when there is a new link to the cloud.
	Connected func(context.Context)
	// Synced is called when the cloud has sent all that differed from the store.
	Synced func(context.Context)
	// RemoteTimeout is how long the cloud gets to answer a request: 60 s.
	RemoteTimeout time.Duration
	// Now is the wall clock, by which tokens are renewed.
	Now func() time.Time
}

const defaultRemoteTimeout = time.Minute

// Module is the beehive module.
type Module struct {
	bus       Bus
	store     Store
	opts      Options
	link      linkState
	queues    *keyedExecutor
	outbox    *outbox.Outbox
	rooms     rooms
	tokens    *tokens.Tokens
	questions questions
	// carried are the messages of the cloud that were carried out.
	carried wire.Recent
	// ordered: the newest link is to a cloud of ours, over which objects come in the order of their changes.
	ordered atomic.Bool
	// asking bounds the requests that wait for the cloud.
	asking chan struct{}
	// tokensChanged: the store may have other tokens.
	tokensChanged notify.Signal
	wg            sync.WaitGroup
}

// asksMax is the most requests that wait for the cloud; more are refused as if there were no link.
const asksMax = 256

// New makes the module.
func New(bus Bus, s Store, opts Options) *Module {
	if opts.Health == nil {
		opts.Health = func(error) {}
	}
	if opts.Refused == nil {
		opts.Refused = func(string, error) {}
	}
	if opts.NoRoom == nil {
		opts.NoRoom = func(string, error) {}
	}
	if opts.Connected == nil {
		opts.Connected = func(context.Context) {}
	}
	if opts.Synced == nil {
		opts.Synced = func(context.Context) {}
	}
	if opts.RemoteTimeout <= 0 {
		opts.RemoteTimeout = defaultRemoteTimeout
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	m := &Module{
		bus:           bus,
		store:         s,
		opts:          opts,
		queues:        newKeyedExecutor(),
		asking:        make(chan struct{}, asksMax),
		tokensChanged: notify.NewSignal(),
	}
	m.outbox = outbox.New(bus, s, outbox.Options{
		Write:     m.apply,
		StoredUID: m.storedUID,
		Refused:   opts.Refused,
	})
	m.tokens = tokens.New(m.askCloud)
	m.rooms.init(opts.Memory)
	return m
}

// Name implements beehive.Module.
func (m *Module) Name() string { return model.ModuleMetaManager }

// Group implements beehive.Module.
func (m *Module) Group() string { return model.GroupMeta }

// Run implements beehive.Module: it takes messages until ctx ends, and answers those that it took.
func (m *Module) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer m.queues.wait() // for what the background has put
	defer m.wg.Wait()
	defer cancel()
	defer m.queues.wait()
	m.background(ctx, m.outbox.Run)
	for {
		msg, err := m.bus.Receive(ctx, m.Name())
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		m.noteLink(msg)
		m.queues.enqueue(outbox.ObjectOf(msg.Route.Resource), func() { m.handle(ctx, msg) })
	}
}

// background runs something that ends with ctx, and that Run waits for.
func (m *Module) background(ctx context.Context, f func(context.Context)) {
	m.wg.Go(func() { guard(ctx, f) })
}

// guard runs something, and reports whether it returned: false is after a panic.
func guard(ctx context.Context, f func(context.Context)) (returned bool) {
	defer func() {
		if r := recover(); r != nil {
			klog.ErrorS(nil, "metamanager panicked", "panic", r, "stack", string(debug.Stack()))
		}
	}()
	f(ctx)
	return true
}

// handle does one message and answers it. One that needs the cloud does not hold up those behind it.
func (m *Module) handle(ctx context.Context, msg *model.Message) {
	key, err := resource.Parse(msg.Route.Resource)
	if err != nil || msg.Route.Source != model.ModuleEdged || routeOfMessage(key, msg) == here {
		m.serve(ctx, msg, m.executeOnce)
		return
	}
	select {
	case m.asking <- struct{}{}:
	default:
		m.respond(ctx,
			msg.RespondError(m.Name(), fmt.Errorf("%s %s: %d requests wait for the cloud already", msg.Route.Operation,
				key, asksMax)))
		return
	}
	m.background(ctx, func(ctx context.Context) {
		defer func() { <-m.asking }()
		m.serve(ctx, msg, func(ctx context.Context, msg *model.Message) (json.RawMessage, error) {
			return m.remote(ctx, routeOfMessage(key, msg), key, msg)
		})
	})
}

// serve does one message and answers it. A panic is this message's own.
func (m *Module) serve(
	ctx context.Context, msg *model.Message, do func(context.Context, *model.Message) (json.RawMessage, error),
) {
	defer func() {
		if r := recover(); r != nil {
			klog.ErrorS(nil, "Message made metamanager panic", "resource", msg.Route.Resource,
				"operation", msg.Route.Operation, "panic", r, "stack", string(debug.Stack()))
			m.respond(ctx,
				msg.RespondError(m.Name(), fmt.Errorf("%s %s: internal error", msg.Route.Operation,
					msg.Route.Resource)))
		}
	}()
	content, err := do(ctx, msg)
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, errOffline) {
			klog.ErrorS(err, "Message failed", "resource", msg.Route.Resource,
				"operation", msg.Route.Operation, "source", msg.Route.Source)
		}
		m.respond(ctx, msg.RespondError(m.Name(), err))
		return
	}
	m.respond(ctx, msg.Respond(content))
}

// respond sends an answer to the caller: on this device, or over the link. An answer without a waiter is dropped; it is
// not an error.
func (m *Module) respond(ctx context.Context, msg *model.Message) {
	err := m.bus.SendResp(ctx, msg)
	if errors.Is(err, beehive.ErrNoWaiter) && msg.Route.Group == model.GroupResource {
		err = m.bus.Send(ctx, model.ModuleEdgeHub, msg)
	}
	if err != nil {
		klog.V(4).InfoS("Answer not delivered", "resource", msg.Route.Resource, "err", err)
	}
}

// executeOnce executes a message, and returns the content of the answer. A message of the cloud that was executed
// before changes nothing: a network that repeats it must not bring back what was deleted since.
func (m *Module) executeOnce(ctx context.Context, msg *model.Message) (json.RawMessage, error) {
	key, err := resource.Parse(msg.Route.Resource)
	if err != nil {
		return nil, err
	}
	if msg.Route.Source == model.ModuleEdged {
		return m.execute(ctx, key, msg, false)
	}
	if m.carried.Has(msg.Header.ID) {
		return model.OK, nil
	}
	content, err := m.execute(ctx, key, msg, true)
	if err == nil {
		m.carried.Add(msg.Header.ID)
	}
	return content, err
}

// execute executes a message, and returns the content of the answer.
func (m *Module) execute(
	ctx context.Context, key resource.Key, msg *model.Message, fromCloud bool,
) (json.RawMessage, error) {
	if !fromCloud {
		if taken, err := m.takeReport(ctx, key, msg); taken {
			return model.OK, err
		}
	}
	switch msg.Route.Operation {
	case model.OpQuery:
		return m.query(ctx, key, msg)
	case model.OpPatch:
		return model.OK, m.report(ctx, key, msg)
	case model.OpInsert, model.OpUpdate:
		return model.OK, m.upsert(ctx, key, msg, fromCloud)
	case model.OpDelete:
		return model.OK, m.remove(ctx, key, msg, fromCloud)
	case model.OpResponse:
		return model.OK, m.upsertLate(ctx, key, msg)
	case wire.OpConnect:
		return model.OK, m.linkChanged(ctx, msg)
	case wire.OpReport:
		return model.OK, m.reportRequested(ctx, msg)
	}
	return nil, fmt.Errorf("%s %s: metamanager does not support the operation %q", msg.Route.Operation, key,
		msg.Route.Operation)
}

// apply writes to the store, and reports the result to Options.Health.
func (m *Module) apply(ctx context.Context, key resource.Key, ops ...store.Op) error {
	err := m.store.Apply(ctx, ops...)
	if ctx.Err() == nil {
		m.opts.Health(err)
	}
	if err != nil {
		return fmt.Errorf("%s: not stored: %w", key, err)
	}
	if key.Type == resource.TypeServiceAccountToken || key.Type == resource.TypePod { // whose tokens go with it
		m.tokensChanged.Notify()
	}
	return nil
}

// query answers from the store.
func (m *Module) query(ctx context.Context, key resource.Key, msg *model.Message) (json.RawMessage, error) {
	switch {
	case key.Type == resource.TypePodPatchList:
		return m.statuses(ctx)
	case key.Type == resource.TypePodList:
		if err := m.loadRooms(ctx); err != nil {
			return nil, err
		}
		return m.list(ctx, resource.TypePod, "")
	case key.Name == "":
		return m.list(ctx, key.Type, key.Namespace+"/")
	}
	where, err := rowKey(key, msg.ContentData())
	if err != nil {
		return nil, err
	}
	row, err := m.store.Get(ctx, where)
	if errors.Is(err, store.ErrNotFound) {
		return notFound(key)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	if !json.Valid(row.Value) {
		return nil, fmt.Errorf("%s: the stored value is not JSON", key)
	}
	if err := checkElements(key, row.Value); err != nil {
		return nil, err
	}
	if answer, err := m.stubAnswer(ctx, key, row.Value); answer != nil || err != nil {
		return answer, err
	}
	return row.Value, nil
}

// list returns the rows of a type as a JSON array; rows that are no JSON are left out.
func (m *Module) list(ctx context.Context, typ, prefix string) (json.RawMessage, error) {
	rows, err := m.store.List(ctx, typ)
	if err != nil {
		return nil, err
	}
	size := 2
	for _, row := range rows {
		size += len(row.Value) + 1
	}
	out := append(make([]byte, 0, size), '[')
	for _, row := range rows {
		if len(row.Key) < len(prefix) || row.Key[:len(prefix)] != prefix {
			continue
		}
		if !json.Valid(row.Value) {
			klog.ErrorS(nil, "Stored object is not JSON; left out", "key", row.Key)
			continue
		}
		if err := checkElements(resource.Key{Type: typ, Name: row.Key}, row.Value); err != nil {
			klog.ErrorS(err, "Stored object left out", "key", row.Key)
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, row.Value...)
	}
	return append(out, ']'), nil
}

// statuses returns the stored reports on pods, as edged asks for them at its start.
func (m *Module) statuses(ctx context.Context) (json.RawMessage, error) {
	rows, err := m.store.List(ctx, resource.TypePodPatch)
	if err != nil {
		return nil, err
	}
	type row struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	list := make([]row, 0, len(rows))
	for _, r := range rows {
		if err := checkElements(resource.Key{Type: r.Type, Name: r.Key}, r.Value); err != nil {
			klog.ErrorS(err, "Stored status left out", "key", r.Key)
			continue
		}
		list = append(list, row{r.Key, string(r.Value)})
	}
	return json.Marshal(list)
}

// notFound is the answer about an object that there is not.
func notFound(key resource.Key) (json.RawMessage, error) {
	return json.Marshal(map[string]metav1.Status{"ErrStatus": {
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
		Message: fmt.Sprintf("%s %q not found", key.Type, key.Name),
		Details: &metav1.StatusDetails{Name: key.Name, Kind: key.Type},
	}})
}
