package devicecontroller

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	"github.com/edgecore-io/edgecore/cloud/apihealth"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/ratelimit"
)

const (
	// eventsMax is how many events may wait; more are dropped. once drops repeats within repeatAfter.
	eventsMax   = 1024
	repeatAfter = time.Hour
	repeatsMax  = 4096
	// eventRate limits the events a second, eventBurst those at once.
	eventRate  = 10
	eventBurst = 100
	// nodeRate and nodeBurst limit the events about the devices of one node.
	nodeRate     = 1
	nodeBurst    = 50
	eventTimeout = 15 * time.Second
	// messageMax is the most that the API accepts as an event's message.
	messageMax = 1024
)

// events records events about devices. It never blocks its callers.
type events struct {
	client kubernetes.Interface
	queue  chan queuedEvent
	recent *lru.Cache // of repeat; the value is when it was recorded
	nodes  *ratelimit.Limiter[string]
}

// queuedEvent is an event about a device of a node; "" if it is about no device.
type queuedEvent struct {
	event *v1.Event
	node  string
}

// repeat identifies an event that says the same again.
type repeat struct{ uid, reason, message string }

func newEvents(client kubernetes.Interface) *events {
	return &events{
		client: client,
		queue:  make(chan queuedEvent, eventsMax),
		recent: lru.New(repeatsMax),
		nodes:  ratelimit.New[string](nodeRate, nodeBurst),
	}
}

// once records an event, unless the same was recorded within the last hour.
func (e *events) once(d *devices.Device, kind, reason, message string) {
	if e.isNew(d.UID, reason, message) {
		e.add(d, kind, reason, message)
	}
}

// onceModel is once for a model.
func (e *events) onceModel(m *devices.DeviceModel, kind, reason, message string) {
	if e.isNew(m.UID, reason, message) {
		e.record(devices.KindDeviceModel, &m.ObjectMeta, "", kind, reason, message)
	}
}

// isNew reports whether an event was not recorded within the last hour, and remembers it.
func (e *events) isNew(uid types.UID, reason, message string) bool {
	id := repeat{string(uid), reason, message}
	if at, ok := e.recent.Get(id); ok && time.Since(at.(time.Time)) < repeatAfter {
		return false
	}
	e.recent.Add(id, time.Now())
	return true
}

// add records an event. Events beyond the rate of the device's node are dropped.
func (e *events) add(d *devices.Device, kind, reason, message string) {
	e.record(devices.KindDevice, &d.ObjectMeta, d.Spec.NodeName, kind, reason, message)
}

// record records an event about an object; node is whose rate limit it counts in, "" for all objects without a node.
func (e *events) record(object string, d *metav1.ObjectMeta, node, kind, reason, message string) {
	if now := time.Now(); !e.nodes.Of(node, now).AllowN(now, 1) {
		return
	}
	if len(message) > messageMax {
		message = strings.ToValidUTF8(message[:messageMax-3], "") + "..."
	}
	now := metav1.Now()
	event := &v1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", d.Name, now.UnixNano()), Namespace: d.Namespace},
		InvolvedObject: v1.ObjectReference{
			APIVersion:      devices.APIVersion,
			Kind:            object,
			Namespace:       d.Namespace,
			Name:            d.Name,
			UID:             d.UID,
			ResourceVersion: d.ResourceVersion,
		},
		Type:           kind,
		Reason:         reason,
		Message:        message,
		Count:          1,
		FirstTimestamp: now,
		LastTimestamp:  now,
		Source:         v1.EventSource{Component: "devicecontroller"},
	}
	select {
	case e.queue <- queuedEvent{event, node}:
	default:
		klog.V(2).InfoS("Event of a device dropped: too many are waiting", "device", klog.KRef(d.Namespace, d.Name),
			"reason", reason)
	}
}

// run sends events until ctx ends.
func (e *events) run(ctx context.Context) {
	limit := rate.NewLimiter(eventRate, eventBurst)
	for {
		select {
		case <-ctx.Done():
			return
		case queued := <-e.queue:
			event := queued.event
			if limit.Wait(ctx) != nil {
				return
			}
			ectx, cancel := context.WithTimeout(apihealth.ForNode(ctx, queued.node), eventTimeout)
			_, err := e.client.CoreV1().Events(event.Namespace).Create(ectx, event, metav1.CreateOptions{})
			cancel()
			if err != nil && ctx.Err() == nil && !apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause) {
				klog.InfoS("Event of a device not recorded", "device", klog.KRef(event.Namespace,
					event.InvolvedObject.Name), "reason", event.Reason, "err", err)
			}
		}
	}
}
