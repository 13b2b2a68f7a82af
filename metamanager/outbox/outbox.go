// Package outbox holds what the cloud has not heard of yet: the newest report on each object, on the disk. It sends
// them while there is a link:
//
//   - reports that belong together (a pod's status and its end) one after another, others side by side. Two pods of one
//     name do not belong together: a late report on the one neither replaces nor delays that on the other;
//   - the ends of pods are sent first, then their statuses; an event is sent if no other report waits, or after
//     many other reports;
//   - what a report says is read when there is a place for it, so that one that was replaced meanwhile is not sent;
//   - a report leaves the outbox when the cloud has answered it, and only if no newer one took its place
//     meanwhile: that one is sent next. Reports that are answered at about the same time leave it in one commit;
//   - a report on a pod that the cloud refuses stays for as long as the pod is stored here, and is sent again at
//     growing intervals: what denied it (an admission policy or webhook, rights, a bound of size) may change at any
//     time, and nothing else makes up for a pod's end. Final is only that the pod is gone, or another. Other reports
//     that are refused leave the outbox;
//   - whatever else goes wrong is tried again, at growing intervals, and at once over a new link.
package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/retry"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Store is what the outbox needs of the store; see package store.
type Store interface {
	OutboxKeys(ctx context.Context) ([]store.Report, error)
	OutboxGet(ctx context.Context, key string) (store.Report, error)
	Apply(ctx context.Context, ops ...store.Op) error
}

// Bus is what the outbox needs of beehive.
type Bus interface {
	SendSync(ctx context.Context, module string, m *model.Message) (*model.Message, error)
}

// Options are what the outbox needs of metamanager. All are required.
type Options struct {
	// Write writes to the store what has to be there before a report on an object is acknowledged.
	Write func(ctx context.Context, object resource.Key, ops ...store.Op) error
	// StoredUID returns the UID of a stored object. The error is store.ErrNotFound where there is none.
	StoredUID func(ctx context.Context, object resource.Key) (string, error)
	// Refused is called when the cloud refuses a report on an object, such as default/pod/web, for good because it is
	// too large, with the cloud's error; and with nil when that is over.
	Refused func(object string, err error)
}

// Outbox keeps reports, and sends them while Run runs. Its methods may be called from any goroutine.
type Outbox struct {
	bus   Bus
	store Store
	opts  Options
	// grace is how long the link must stay up after an event that is sent without an answer.
	grace  time.Duration
	queues *queues
	// answersEvents: the cloud of the newest link answers events.
	answersEvents atomic.Bool
	acks          acks
	events        events
	tooLarge      tooLarge
	wg            sync.WaitGroup
}

// New makes an outbox without a link.
func New(bus Bus, s Store, opts Options) *Outbox {
	return &Outbox{bus: bus, store: s, opts: opts, grace: eventGrace, queues: newQueues()}
}

// Add writes a report to the disk, in place of an older one on the same object, and has it sent. ops are done with it.
func (o *Outbox) Add(ctx context.Context, r *Report, ops ...store.Op) error {
	return o.add(ctx, r, false, ops)
}

// AddUrgent is Add for what has to leave the node for room to return on a full disk: the end of a pod that is being
// deleted.
func (o *Outbox) AddUrgent(ctx context.Context, r *Report, ops ...store.Op) error {
	return o.add(ctx, r, true, ops)
}

func (o *Outbox) add(ctx context.Context, r *Report, urgent bool, ops []store.Op) error {
	value, err := json.Marshal(r.msg)
	if err != nil {
		return fmt.Errorf("%s: content is not JSON: %w", r.Object, err)
	}
	row := r.key()
	if ops = append(ops, store.OutboxPut(row, value)); urgent {
		ops = store.Urgent(ops...)
	}
	if err := o.opts.Write(ctx, r.Object, ops...); err != nil {
		return err
	}
	o.queues.add(queueOf(row, ""), row)
	return nil
}

// LinkUp sends what waits over a new link.
func (o *Outbox) LinkUp(features wire.Features) {
	o.answersEvents.Store(features.Inventory)
	switch {
	case !features.Inventory:
		o.queues.restart(unansweredMax)
	case features.Batch:
		o.queues.restart(wire.BatchMax)
	default:
		o.queues.restart(eventSendersMax)
	}
}

// LinkDown keeps what comes until there is a link again.
func (o *Outbox) LinkDown() {
	o.answersEvents.Store(false)
	o.queues.down()
}

// Pending returns the queues (PodQueue) of the pods whose status waits to be sent. One of a version that stored it
// without the UID is pending for any pod of the name.
func (o *Outbox) Pending(ctx context.Context) (map[string]bool, error) {
	reports, err := o.store.OutboxKeys(ctx)
	if err != nil {
		return nil, err
	}
	pending := map[string]bool{}
	for _, r := range reports {
		if classOf(r.Key) == classStatus && !o.acks.answered(r) {
			pending[queueOf(r.Key, "")] = true
		}
	}
	return pending, nil
}

// Waits reports whether a report on the same object waits to be sent, also one of a version that stored it without the
// UID.
func (o *Outbox) Waits(ctx context.Context, r *Report) (bool, error) {
	for _, key := range []string{r.key(), keyOf(r.msg.Route.Operation, "", r.msg.Route.Resource)} {
		waiting, err := o.store.OutboxGet(ctx, key)
		if err == nil && o.acks.answered(waiting) || errors.Is(err, store.ErrNotFound) {
			continue
		}
		return err == nil, err
	}
	return false, nil
}

// Queues returns how many queues wait or are on their way.
func (o *Outbox) Queues() int { return o.queues.count() }

// Run sends reports until ctx ends, and returns when nothing of it runs any more.
func (o *Outbox) Run(ctx context.Context) {
	defer o.wg.Wait()
	for backoff := retry.NewBackoff(RetryFirst, RetryMax); !guard(ctx, o.send); {
		if !backoff.Wait(ctx) {
			return
		}
	}
}

// background runs something that ends with ctx, and that Run waits for.
func (o *Outbox) background(ctx context.Context, f func(context.Context)) {
	o.wg.Go(func() { guard(ctx, f) })
}

// guard runs something, and reports whether it returned: false is after a panic.
func guard(ctx context.Context, f func(context.Context)) (returned bool) {
	defer func() {
		if r := recover(); r != nil {
			klog.ErrorS(nil, "Outbox panicked", "panic", r, "stack", string(debug.Stack()))
		}
	}()
	f(ctx)
	return true
}

// send has the reports of each queue sent until ctx ends.
func (o *Outbox) send(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.queues.woken:
		case <-timer.C:
		}
		wait, err := o.read(ctx)
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Outbox not read; trying again", "in", wait)
		}
		for {
			l, later := o.queues.next(time.Now())
			if l == nil {
				if wait == 0 || later > 0 && later < wait {
					wait = later
				}
				break
			}
			o.background(ctx, func(ctx context.Context) { o.sendQueue(ctx, l) })
		}
		if wait > 0 {
			timer.Reset(wait)
		}
	}
}

// read notes what waits in the outbox when a link has come up. After a failure it is to be called again in a while.
func (o *Outbox) read(ctx context.Context) (again time.Duration, err error) {
	if !o.queues.toRead() {
		return 0, nil
	}
	read := false
	defer func() {
		if !read {
			o.queues.readAgain()
		}
	}()
	reports, err := o.store.OutboxKeys(ctx)
	if err != nil {
		return RetryFirst, err
	}
	for _, r := range reports {
		if o.acks.answered(r) {
			continue
		}
		uid := ""
		if ofOlderVersion(r.Key) {
			var replaced bool
			if uid, replaced, err = o.readOlder(ctx, r.Key); err != nil {
				return RetryFirst, err
			}
			if replaced {
				continue
			}
		}
		o.queues.add(queueOf(r.Key, uid), r.Key)
	}
	read = true
	return 0, nil
}

// readOlder returns the UID of the pod that a report of an older version is about. If this version has a report on the
// same pod, which is newer, it removes the old one.
func (o *Outbox) readOlder(ctx context.Context, key string) (uid string, replaced bool, err error) {
	old, err := o.store.OutboxGet(ctx, key)
	if err != nil {
		return "", false, nil // sendReport reads it again
	}
	var msg model.Message
	object, err := decodeReport(old, &msg)
	if err != nil {
		return "", false, nil
	}
	r := Read(object, &msg)
	if r.UID == "" {
		return "", false, nil
	}
	if _, err := o.store.OutboxGet(ctx, r.key()); err != nil {
		return r.UID, false, nil
	}
	return r.UID, true, o.store.Apply(ctx, store.OutboxAck(old.Key, old.Seq))
}

func decodeReport(r store.Report, msg *model.Message) (resource.Key, error) {
	if err := json.Unmarshal(r.Value, msg); err != nil {
		return resource.Key{}, err
	}
	return resource.Parse(msg.Route.Resource)
}
