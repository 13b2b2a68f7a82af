package metamanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/outbox"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// The outbox holds what the cloud has not heard of yet: the newest report on each object, on the disk. Its drain
// sends them while there is a link:
//
//   - reports that belong together (a pod's status and its end) one after another, others side by side. Two pods of one
//     name do not belong together: a late report on the one neither replaces nor delays that on the other;
//   - the ends of pods are sent first, then their statuses; an event is sent if no other report waits, or after
//     many other reports (see package outbox);
//   - what a report says is read when there is a place for it, so that one that was replaced meanwhile is not sent;
//   - a report leaves the outbox when the cloud has answered it, and only if no newer one took its place
//     meanwhile: that one is sent next. Reports that are answered at about the same time leave it in one commit;
//   - a report on a pod that the cloud refuses stays for as long as the pod is stored here, and is sent again at
//     growing intervals: what denied it (an admission policy or webhook, rights, a bound of size) may change at any
//     time, and nothing else makes up for a pod's end. Final is only that the pod is gone, or another. Other reports
//     that are refused leave the outbox;
//   - whatever else goes wrong is tried again, at growing intervals, and at once over a new link.

const (
	// reportTimeout is how long the cloud gets to answer a report.
	reportTimeout = 20 * time.Second
	// syncFirst is how long it gets to send all that differs before it is told again what is here, which may have been
	// lost on the way; each time it gets twice as long, up to syncTimeout.
	syncFirst, syncTimeout = time.Minute, 10 * time.Minute
	// A cloud of KubeEdge answers no event. One has arrived when the link lives on for eventGrace after it was sent: a
	// link that is dead is noticed sooner.
	eventGrace = 45 * time.Second
)

// runDrain sends reports until ctx ends.
func (m *Module) runDrain(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.drain.Woken:
		case <-timer.C:
		}
		wait, err := m.readOutbox(ctx)
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Outbox not read; trying again", "in", wait)
		}
		for {
			l, later := m.drain.Next(time.Now())
			if l == nil {
				if wait == 0 || later > 0 && later < wait {
					wait = later
				}
				break
			}
			m.background(ctx, func(ctx context.Context) { m.sendLane(ctx, l) })
		}
		if wait > 0 {
			timer.Reset(wait)
		}
	}
}

// readOutbox notes what waits in the outbox when a link has come up. After a failure it is to be called again in a
// while.
func (m *Module) readOutbox(ctx context.Context) (again time.Duration, err error) {
	if !m.drain.ToRead() {
		return 0, nil
	}
	read := false
	defer func() {
		if !read {
			m.drain.ReadAgain()
		}
	}()
	reports, err := m.store.OutboxKeys(ctx)
	if err != nil {
		return outbox.RetryFirst, err
	}
	for _, r := range reports {
		if m.acks.has(r) {
			continue
		}
		uid := ""
		if outbox.OfOlderVersion(r.Key) {
			var msg model.Message
			old, err := m.store.OutboxGet(ctx, r.Key)
			if err == nil && json.Unmarshal(old.Value, &msg) == nil {
				uid = outbox.PodUID(&msg)
			}
			if uid != "" {
				// what this version has queued is newer
				if _, err := m.store.OutboxGet(ctx, outbox.Key(&msg)); err == nil {
					if err := m.store.Apply(ctx, store.OutboxAck(old.Key, old.Seq)); err != nil {
						return outbox.RetryFirst, err
					}
					continue
				}
			}
		}
		m.drain.Add(outbox.QueueOf(r.Key, uid), r.Key)
	}
	read = true
	return 0, nil
}

// errRefused is the error of a report that the cloud has refused, and that stays in the outbox.
var errRefused = errors.New("refused by the cloud")

// sendLane sends the reports of one queue in order. One that fails is tried again later, also after a panic. One that
// is refused does not hold up those behind it.
func (m *Module) sendLane(ctx context.Context, l *outbox.Queue) {
	var r outbox.Report
	var err error
	defer func() {
		wait := m.drain.Done(l, r, time.Now())
		if err != nil && wait > 0 {
			klog.V(2).InfoS("Report not accepted by the cloud; trying again", "report", r.Key, "in", wait, "err", err)
		}
	}()
	for {
		next, ok := m.drain.Take(l, time.Now())
		if r = next; !ok {
			return
		}
		if err = m.sendReport(ctx, r.Key); errors.Is(err, errRefused) {
			wait := m.drain.Refused(l, r, time.Now())
			klog.V(1).InfoS("Report refused by the cloud; trying again", "report", r.Key, "in", wait, "err", err)
			err = nil
		}
		if err != nil {
			return
		}
	}
}

// sendReport sends the newest report of a key. It returns nil when that is done with, and errRefused if the cloud has
// refused it and may take it later.
func (m *Module) sendReport(ctx context.Context, key string) error {
	r, err := m.store.OutboxGet(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil // sent meanwhile, or dropped
	}
	if err != nil {
		return err
	}
	if m.acks.has(r) {
		return nil
	}
	var msg model.Message
	about, err := decodeReport(r, &msg)
	if err != nil {
		klog.ErrorS(err, "Report is invalid; dropped", "report", r.Key)
		return m.store.Apply(ctx, store.OutboxAck(r.Key, r.Seq))
	}
	send := m.deliver
	if about.Type == resource.TypeEvent && !m.link.get().Features.Inventory {
		send = m.deliverUnanswered
	}
	if err := send(ctx, about, &msg); err != nil {
		return err
	}
	m.acknowledged(ctx, r)
	return nil
}

func decodeReport(r store.Report, msg *model.Message) (resource.Key, error) {
	if err := json.Unmarshal(r.Value, msg); err != nil {
		return resource.Key{}, err
	}
	return resource.Parse(msg.Route.Resource)
}

// deliverUnanswered sends a report that the cloud does not acknowledge. Edgehub returns an error if the link ends
// meanwhile.
func (m *Module) deliverUnanswered(ctx context.Context, _ resource.Key, msg *model.Message) error {
	grace, cancel := context.WithTimeout(ctx, m.grace)
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
	// A cloud of ours answers, if the link has just been replaced by one to it.
	if failure, failed := readFailure(answer.ContentData()); failed && again(failure) {
		return fmt.Errorf("%s: %s", failure.Reason, failure.Message)
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
		m.noteRefused(ctx, key, nil)
		return nil
	}
	if again(failure) {
		return fmt.Errorf("%s: %s", failure.Reason, failure.Message)
	}
	m.noteRefused(ctx, key, &failure)
	if !m.final(ctx, key, msg, failure) {
		return fmt.Errorf("%w: %s: %s", errRefused, failure.Reason, failure.Message)
	}
	klog.V(1).InfoS("Report refused by the cloud; dropped", "resource", key.String(), "operation", msg.Route.Operation,
		"reason", failure.Reason, "message", failure.Message)
	return nil
}

// final reports whether a refusal of a report is the last word on it. For a report on a pod that is stored here, only
// the API server's word that the pod is gone, or another, is.
func (m *Module) final(ctx context.Context, key resource.Key, msg *model.Message, failure metav1.Status) bool {
	if key.Type != resource.TypePod && key.Type != resource.TypePodPatch {
		return true
	}
	switch failure.Code {
	case http.StatusNotFound, http.StatusGone, http.StatusConflict:
		return true
	}
	return !m.stillWanted(ctx, key, outbox.PodUID(msg))
}

// tooLarge are the objects whose last report the cloud refused because it is too large.
type tooLarge struct {
	mu      sync.Mutex
	objects map[string]bool
}

// tooLargeMax bounds them.
const tooLargeMax = 100

// noteRefused tells Options.Refused what became of a report on an object; failure is nil when the cloud took it. Events
// are left out: each is an object of its own, and a later one does not make up for it. So are pods that are not stored:
// they are gone, and no later report makes up for the last one.
func (m *Module) noteRefused(ctx context.Context, key resource.Key, failure *metav1.Status) {
	switch key.Type {
	case resource.TypeEvent:
		return
	case resource.TypePodPatch, resource.TypePodStatus:
		key.Type = resource.TypePod
	}
	object := key.String()
	m.tooLarge.mu.Lock()
	defer m.tooLarge.mu.Unlock()
	known := m.tooLarge.objects[object]
	refused := failure != nil && failure.Code == http.StatusRequestEntityTooLarge
	if refused && key.Type == resource.TypePod {
		_, err := m.storedUID(ctx, key)
		refused = !errors.Is(err, store.ErrNotFound)
	}
	switch {
	case refused && (known || len(m.tooLarge.objects) < tooLargeMax):
		if m.tooLarge.objects == nil {
			m.tooLarge.objects = map[string]bool{}
		}
		m.tooLarge.objects[object] = true
		m.opts.Refused(object, errors.New(failure.Message))
	case !refused && known:
		delete(m.tooLarge.objects, object)
		m.opts.Refused(object, nil)
	}
}

// forgetRefused ends what noteRefused told of an object that is gone. It is called when the object is not stored any
// more.
func (m *Module) forgetRefused(key resource.Key) {
	object := key.String()
	m.tooLarge.mu.Lock()
	defer m.tooLarge.mu.Unlock()
	if m.tooLarge.objects[object] {
		delete(m.tooLarge.objects, object)
		m.opts.Refused(object, nil)
	}
}

// stillWanted reports whether the pod that a report is about is stored here. As long as it is, a refusal is not the
// last word: an API server that has just started knows neither the rights of cloudcore nor the pods of nodes, and
// admission may deny today what it allows tomorrow.
func (m *Module) stillWanted(ctx context.Context, key resource.Key, uid string) bool {
	stored, err := m.storedUID(ctx, resource.Key{Namespace: key.Namespace, Type: resource.TypePod, Name: key.Name})
	return err != nil && !errors.Is(err, store.ErrNotFound) || err == nil && (uid == "" || stored == uid)
}

// again reports whether the same report may be taken another time.
func again(failure metav1.Status) bool {
	switch {
	case failure.Code == http.StatusTooManyRequests, failure.Code == http.StatusRequestTimeout,
		failure.Code == http.StatusUnauthorized:
		return true
	}
	return failure.Code < 400 || failure.Code >= 500
}
