package outbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/answer"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

const (
	// reportTimeout is how long the cloud gets to answer a report.
	reportTimeout = 20 * time.Second
	// A cloud of KubeEdge answers no event. One has arrived when the link lives on for eventGrace after it was sent: a
	// link that is dead is noticed sooner.
	eventGrace = 45 * time.Second
)

// errRefused is the error of a report that the cloud has refused, and that stays in the outbox.
var errRefused = errors.New("refused by the cloud")

// sendQueue sends the reports of one queue in order. One that fails is tried again later, also after a panic. One that
// is refused does not hold up those behind it.
func (o *Outbox) sendQueue(ctx context.Context, l *queue) {
	var r waitingReport
	var err error
	defer func() {
		wait := o.queues.finish(l, r, time.Now())
		if err != nil && wait > 0 {
			klog.V(2).InfoS("Report not accepted by the cloud; trying again", "report", r.key, "in", wait, "err", err)
		}
	}()
	for {
		next, ok := o.queues.dequeue(l, time.Now())
		if r = next; !ok {
			return
		}
		if err = o.sendReport(ctx, r.key); errors.Is(err, errRefused) {
			wait := o.queues.refused(l, r, time.Now())
			klog.V(1).InfoS("Report refused by the cloud; trying again", "report", r.key, "in", wait, "err", err)
			err = nil
		}
		if err != nil {
			return
		}
	}
}

// sendReport sends the newest report of a key. It returns nil when that is done with, and errRefused if the cloud has
// refused it and may take it later.
func (o *Outbox) sendReport(ctx context.Context, key string) error {
	r, err := o.store.OutboxGet(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil // sent meanwhile, or dropped
	}
	if err != nil {
		return err
	}
	if o.acks.answered(r) {
		return nil
	}
	var msg model.Message
	about, err := decodeReport(r, &msg)
	if err != nil {
		klog.ErrorS(err, "Report is invalid; dropped", "report", r.Key)
		return o.store.Apply(ctx, store.OutboxAck(r.Key, r.Seq))
	}
	if about.Type == resource.TypeEvent && !o.answersEvents.Load() {
		err = o.deliverUnanswered(ctx, &msg)
	} else {
		err = o.deliver(ctx, about, &msg)
	}
	if err != nil {
		return err
	}
	o.acknowledged(ctx, r)
	return nil
}

// deliverUnanswered sends a report that the cloud does not acknowledge. Edgehub returns an error if the link ends
// meanwhile. A cloud of ours answers, if the link has just been replaced by one to it.
func (o *Outbox) deliverUnanswered(ctx context.Context, msg *model.Message) error {
	_, err := o.request(ctx, msg, o.grace)
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, beehive.ErrFull) && ctx.Err() == nil {
		return nil
	}
	return err
}

// deliver sends a report and waits for what the cloud says of it.
func (o *Outbox) deliver(ctx context.Context, key resource.Key, msg *model.Message) error {
	failure, err := o.request(ctx, msg, reportTimeout)
	if err != nil {
		return err
	}
	o.noteRefused(ctx, key, failure)
	switch {
	case failure == nil:
		return nil
	case !o.final(ctx, key, msg, failure):
		return fmt.Errorf("%w: %s: %s", errRefused, failure.Reason, failure.Message)
	}
	klog.V(1).InfoS("Report refused by the cloud; dropped", "resource", key.String(), "operation", msg.Route.Operation,
		"reason", failure.Reason, "message", failure.Message)
	return nil
}

// request sends a report, and waits for the answer. The failure that it returns is one that lasts; others are errors.
func (o *Outbox) request(ctx context.Context, msg *model.Message, limit time.Duration) (*metav1.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	fresh := *msg
	fresh.Header.ID = model.NewID() // an answer to an earlier try is not one to this
	got, err := o.bus.SendSync(ctx, model.ModuleEdgeHub, &fresh)
	if err != nil {
		return nil, err
	}
	data := got.ContentData()
	if got.Route.Operation == model.OpError {
		return nil, fmt.Errorf("%.200s", data)
	}
	failure := answer.Failure(data)
	if failure != nil && answer.Again(failure) {
		return nil, fmt.Errorf("%s: %s", failure.Reason, failure.Message)
	}
	return failure, nil
}

// final reports whether a refusal of a report is the last word on it. For a report on a pod that is stored here, only
// the API server's word that the pod is gone, or another, is.
func (o *Outbox) final(ctx context.Context, key resource.Key, msg *model.Message, failure *metav1.Status) bool {
	if key.Type != resource.TypePod && key.Type != resource.TypePodPatch {
		return true
	}
	switch failure.Code {
	case http.StatusNotFound, http.StatusGone, http.StatusConflict:
		return true
	}
	return !o.stillWanted(ctx, key, Read(key, msg).UID)
}

// stillWanted reports whether the pod that a report is about is stored here. As long as it is, a refusal is not the
// last word: an API server that has just started knows neither the rights of cloudcore nor the pods of nodes, and
// admission may deny today what it allows tomorrow.
func (o *Outbox) stillWanted(ctx context.Context, key resource.Key, uid string) bool {
	stored, err := o.opts.StoredUID(ctx, resource.Key{Namespace: key.Namespace, Type: resource.TypePod, Name: key.Name})
	return err != nil && !errors.Is(err, store.ErrNotFound) || err == nil && (uid == "" || stored == uid)
}
