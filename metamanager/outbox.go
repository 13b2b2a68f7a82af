package metamanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// The outbox holds what the cloud has not heard of yet: the newest report on each object, on the disk. Its drain
// sends them while there is a link:
//
//   - reports that belong together (a pod's status and its end) one after another, others side by side. Two pods of one
//     name do not belong together: a late report on the one neither replaces nor delays that on the other;
//   - a report leaves the outbox when the cloud has answered it, and only if no newer one took its place
//     meanwhile: that one is sent next;
//   - a report that the cloud refuses for good (the object is gone, or another) leaves it too;
//   - whatever else goes wrong is tried again, at growing intervals, and at once over a new link.

const (
	retryFirst = time.Second
	retryMax   = time.Minute
	// reportTimeout is how long the cloud gets to answer a report.
	reportTimeout = 20 * time.Second
	// syncFirst is how long it gets to send all that differs before it is told again what is here, which may have been
	// lost on the way; each time it gets twice as long, up to syncTimeout.
	syncFirst, syncTimeout = time.Minute, 10 * time.Minute
	// sendersMax bounds the reports in flight.
	sendersMax = 16
	// A cloud of KubeEdge answers no event. One has arrived when the link lives on for eventGrace after it was sent: a
	// link that is dead is noticed sooner. eventSendersMax may wait for that.
	eventGrace      = 45 * time.Second
	eventSendersMax = 64
)

// drain keeps track of what is on its way. Its zero value is not ready; see newDrain.
type drain struct {
	woken chan struct{}
	slots chan struct{}
	// eventSlots are for events that nobody answers, grace is how long the link has to live on after one.
	eventSlots chan struct{}
	grace      time.Duration

	mu sync.Mutex
	// busy are the lanes of which a report is on its way, or that wait to try again.
	busy map[string]bool
	// waits are how long lanes waited last, of those that fail.
	waits map[string]time.Duration
}

func newDrain() *drain {
	return &drain{woken: make(chan struct{}, 1), slots: make(chan struct{}, sendersMax), eventSlots: make(chan struct{}, eventSendersMax), grace: eventGrace, busy: map[string]bool{}, waits: map[string]time.Duration{}}
}

// wake has the outbox looked at again.
func (d *drain) wake() {
	select {
	case d.woken <- struct{}{}:
	default:
	}
}

// underWay returns the lanes that are busy now.
func (d *drain) underWay() map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.busy)
}

func (d *drain) take(lane string) {
	d.mu.Lock()
	d.busy[lane] = true
	d.mu.Unlock()
}

func (d *drain) release(lane string) {
	d.mu.Lock()
	delete(d.busy, lane)
	d.mu.Unlock()
}

// backoff returns how long a lane that failed is to wait.
func (d *drain) backoff(lane string) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waits[lane] = min(max(2*d.waits[lane], retryFirst), retryMax)
	return d.waits[lane]
}

// worked forgets that a lane failed.
func (d *drain) worked(lane string) {
	d.mu.Lock()
	delete(d.waits, lane)
	d.mu.Unlock()
}

// runDrain sends reports until ctx ends.
func (m *Module) runDrain(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.drain.woken:
		}
		if !m.link.get().Connected {
			continue // a link wakes it
		}
		// Of a lane that ends while the outbox is read, this would send again what has just arrived. It wakes us itself.
		busy := m.drain.underWay()
		reports, err := m.store.Outbox(ctx)
		if err != nil {
			if ctx.Err() == nil {
				klog.ErrorS(err, "Outbox not read")
			}
			continue
		}
		lanes := map[string][]store.Report{}
		for _, r := range reports {
			lane := reportLane(r)
			lanes[lane] = append(lanes[lane], r)
		}
		for _, lane := range slices.Sorted(maps.Keys(lanes)) {
			if !busy[lane] {
				m.drain.take(lane)
				m.background(ctx, func(ctx context.Context) { m.sendLane(ctx, lane, lanes[lane]) })
			}
		}
	}
}

// sendLane sends the reports of one lane in order. After a failure it waits; the outbox is read anew then.
func (m *Module) sendLane(ctx context.Context, lane string, reports []store.Report) {
	defer func() {
		m.drain.release(lane)
		m.drain.wake() // a newer report may have come meanwhile
	}()
	ended := m.link.ending()
	for _, r := range reports {
		err := m.sendReport(ctx, r)
		if err == nil {
			continue
		}
		if ctx.Err() != nil || !m.link.get().Connected {
			return
		}
		wait := m.drain.backoff(lane)
		klog.V(2).InfoS("Report not taken by the cloud; trying again", "report", r.Key, "in", wait, "err", err)
		sleep(ctx, wait, ended)
		return
	}
	m.drain.worked(lane)
}

// sendReport returns nil when a report is done with.
func (m *Module) sendReport(ctx context.Context, r store.Report) error {
	var msg model.Message
	key, err := decodeReport(r, &msg)
	if err != nil {
		klog.ErrorS(err, "Report is of no use; dropped", "report", r.Key)
		return m.store.Apply(ctx, store.OutboxAck(r.Key, r.Seq))
	}
	slots, send := m.drain.slots, m.deliver
	if key.Type == resource.TypeEvent && !m.link.get().Features.Inventory {
		slots, send = m.drain.eventSlots, m.deliverUnanswered
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := send(ctx, key, &msg); err != nil {
		return err
	}
	return m.store.Apply(ctx, store.OutboxAck(r.Key, r.Seq))
}

func decodeReport(r store.Report, msg *model.Message) (resource.Key, error) {
	if err := json.Unmarshal(r.Value, msg); err != nil {
		return resource.Key{}, err
	}
	return resource.Parse(msg.Route.Resource)
}

// deliverUnanswered sends a report of which the cloud will not say that it has it. Edgehub says so when the link ends.
func (m *Module) deliverUnanswered(ctx context.Context, _ resource.Key, msg *model.Message) error {
	grace, cancel := context.WithTimeout(ctx, m.drain.grace)
	defer cancel()
	fresh := *msg
	fresh.Header.ID = model.NewID()
	answer, err := m.bus.SendSync(grace, model.ModuleEdgeHub, &fresh)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, beehive.ErrFull) && ctx.Err() == nil:
		return nil
	case err != nil:
		return err
	case answer.Route.Operation == model.OpError:
		return fmt.Errorf("%.200s", answer.ContentData())
	}
	return nil
}

// deliver sends a report and waits for what the cloud says of it.
func (m *Module) deliver(ctx context.Context, key resource.Key, msg *model.Message) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	fresh := *msg
	fresh.Header.ID = model.NewID() // an answer to an earlier try is not one to this
	answer, err := m.bus.SendSync(ctx, model.ModuleEdgeHub, &fresh)
	if err != nil {
		return err
	}
	data := answer.ContentData()
	if answer.Route.Operation == model.OpError {
		return fmt.Errorf("%.200s", data)
	}
	failure, failed := readFailure(data)
	if !failed {
		return nil
	}
	if again(failure) || failure.Code == http.StatusForbidden && m.stillWanted(ctx, key, reportedUID(msg)) {
		return fmt.Errorf("%s: %s", failure.Reason, failure.Message)
	}
	klog.V(1).InfoS("Report refused by the cloud; dropped", "resource", key.String(), "operation", msg.Route.Operation, "reason", failure.Reason, "message", failure.Message)
	return nil
}

// stillWanted reports whether the pod that a report is about is stored here. As long as it is, a refusal is not the
// last word: an API server that has just started knows neither the rights of cloudcore nor the pods of nodes.
func (m *Module) stillWanted(ctx context.Context, key resource.Key, uid string) bool {
	stored, err := m.storedUID(ctx, resource.Key{Namespace: key.Namespace, Type: resource.TypePod, Name: key.Name})
	return err != nil && !errors.Is(err, store.ErrNotFound) || err == nil && (uid == "" || stored == uid)
}

// again tells whether the same report may be taken another time.
func again(failure metav1.Status) bool {
	switch {
	case failure.Code == http.StatusTooManyRequests, failure.Code == http.StatusRequestTimeout, failure.Code == http.StatusUnauthorized:
		return true
	}
	return failure.Code < 400 || failure.Code >= 500
}

// sleep waits, or until one of two things ends; it returns false when ctx does.
func sleep(ctx context.Context, d time.Duration, ended <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-ended:
	case <-t.C:
	}
	return true
}
