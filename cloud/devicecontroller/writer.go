package devicecontroller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/apihealth"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/ratelimit"
)

const (
	writeWorkers = 8
	writeTimeout = 15 * time.Second
	minRetry     = 200 * time.Millisecond
	maxRetry     = time.Minute
	// burstSeconds is how many seconds' worth of a node's writes may come at once.
	burstSeconds = 5
	// maxAsks is how many reports of one device may wait for their answer. The nodes send the others again.
	maxAsks = 32
	// probePeriod is how often a cluster without DeviceStatus is checked for it.
	probePeriod = 5 * time.Minute
)

// writerNeeds is what the writer needs from the controller.
type writerNeeds struct {
	// Device returns a device of the cache, or nil.
	Device func(namespace, name string) *devices.Device
	// Answer answers a node's report; problem is why it was not written, or not all of it.
	Answer func(node string, h head, problem error)
	// Repeats reports whether a node sends a report again that was answered with an error. One that does not gets an
	// answer only when its report was written, or never will be.
	Repeats func(node string) bool
	// StateChanged is called after another state, or another message of it, was written; before is the previous one.
	StateChanged func(d *devices.Device, before shownState, s *devices.Status)
	// Refused is called when the API server refuses a write for good.
	Refused func(d *devices.Device, err error)
	Metrics *metrics
}

// writer writes what nodes report: each device's newest report, at most once per interval. What waits to be written is
// bounded by the specs of the devices that are bound to the nodes.
type writer struct {
	objects  dynamic.Interface
	needs    writerNeeds
	interval time.Duration
	limits   *ratelimit.Limiter[string] // by node
	queue    workqueue.TypedDelayingInterface[types.NamespacedName]
	backoff  workqueue.TypedRateLimiter[types.NamespacedName] // of writes that failed

	// noStatuses is when the API server was last found to have no DeviceStatus, in nanoseconds since 1970.
	noStatuses atomic.Int64

	mu      sync.Mutex
	pending map[types.NamespacedName]*pending
	known   map[types.NamespacedName]*written
	// paused are the devices whose writes failed. They wait, whatever their nodes report meanwhile.
	paused map[types.NamespacedName]pause
}

// pause is the pause of a device whose writes failed.
type pause struct {
	until time.Time
	// refusal is the error with which the API server has refused the device more than a few times; nil is none. Then
	// reports are answered with it at once: a node has few places for reports that wait for their answer.
	refusal error
}

// pending is what waits to be written of a device.
type pending struct {
	node string
	report
	asks []ask // to be answered then
}

// ask is a report that waits for its answer.
type ask struct {
	head head
	// late is set if something in it was older than what waited to be written already.
	late error
}

// written is what the API server has of a device, as of the last write.
type written struct {
	at time.Time // of the last write
	// device is the UID of the device whose status it is.
	device types.UID
	// exists is set if there is an object that has the status; uid and version are that object's.
	exists  bool
	uid     types.UID
	version string
	status  devices.Status
	// unshown is set from the write of another state until it is in the Device, too; before is the state before.
	unshown bool
	before  shownState
}

// shownState is what of a status is also in the Device, and in its events.
type shownState struct{ state, message string }

func shownOf(s *devices.Status) shownState {
	return shownState{s.State, extension(s.Extensions, extensionStateMessage)}
}

func newWriter(o Options, needs writerNeeds) *writer {
	return &writer{
		objects:  o.Objects,
		needs:    needs,
		interval: o.WriteInterval,
		limits:   ratelimit.New[string](rate.Limit(o.NodeWrites), max(1, int(o.NodeWrites*burstSeconds))),
		queue:    workqueue.NewTypedDelayingQueue[types.NamespacedName](),
		backoff:  workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](minRetry, maxRetry),
		pending:  map[types.NamespacedName]*pending{},
		known:    map[types.NamespacedName]*written{},
		paused:   map[types.NamespacedName]pause{},
	}
}

// run writes until ctx ends.
func (w *writer) run(ctx context.Context) {
	var wg sync.WaitGroup
	for range writeWorkers {
		wg.Go(func() {
			for {
				name, stop := w.queue.Get()
				if stop {
					return
				}
				w.next(ctx, name)
				w.queue.Done(name)
			}
		})
	}
	<-ctx.Done()
	w.queue.ShutDown()
	wg.Wait()
}

// add puts a report on top of what waits to be written. h is answered after the write.
func (w *writer) add(namespace, name, node string, r report, h head) {
	id := types.NamespacedName{Namespace: namespace, Name: name}
	repeats := w.needs.Repeats(node)
	w.mu.Lock()
	p := w.pending[id]
	if p == nil || p.node != node {
		p = &pending{node: node}
		w.pending[id] = p
	}
	late := p.add(r)
	refusal := w.paused[id].refusal
	if !repeats {
		refusal = nil
	}
	if refusal == nil && len(p.asks) < maxAsks {
		p.asks = append(p.asks, ask{h, late.err(id.String())})
	}
	w.queue.AddAfter(id, w.wait(id, time.Now()))
	w.mu.Unlock()
	if refusal != nil {
		w.needs.Answer(node, h, refusal)
	}
}

// wait returns how long a device waits for its next write; mu is held.
func (w *writer) wait(id types.NamespacedName, now time.Time) time.Duration {
	wait := w.paused[id].until.Sub(now)
	if k := w.known[id]; k != nil {
		wait = max(wait, k.at.Add(w.interval).Sub(now))
	}
	return max(wait, 0)
}

// forget drops everything about a device that was deleted.
func (w *writer) forget(namespace, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := types.NamespacedName{Namespace: namespace, Name: name}
	delete(w.pending, id)
	delete(w.known, id)
	w.resume(id)
}

// backOff delays the next write of a device after one that failed with err, longer each time. It returns how many
// writes failed before that one.
func (w *writer) backOff(id types.NamespacedName, err error) (failures int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	failures = w.backoff.NumRequeues(id)
	wait := w.backoff.When(id)
	p := pause{until: time.Now().Add(wait)}
	if failures >= fewTries && forNow(err) {
		p.refusal = err
	}
	w.paused[id] = p
	w.queue.AddAfter(id, wait)
	return failures
}

// resume ends the pauses of a device; mu is held.
func (w *writer) resume(id types.NamespacedName) {
	w.backoff.Forget(id)
	delete(w.paused, id)
}

// disconnected frees the memory for a node's devices. keep is whether what waits may still be written: a node without
// versions sends it again, perhaps to another cloudcore, which may write something newer before this one does.
func (w *writer) disconnected(node string, keep bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, p := range w.pending {
		if p.node == node && !keep {
			delete(w.pending, id)
		}
	}
	for id := range w.known {
		if d := w.needs.Device(id.Namespace, id.Name); (d == nil || d.Spec.NodeName == node) && w.pending[id] == nil {
			delete(w.known, id)
		}
	}
}

// takeDue returns what is to be written of a device now, or nil.
func (w *writer) takeDue(id types.NamespacedName, now time.Time) *pending {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pending[id]
	if p == nil {
		return nil
	}
	if wait := w.wait(id, now); wait > 0 {
		w.queue.AddAfter(id, wait)
		return nil
	}
	if r := w.limits.Of(p.node, now).ReserveN(now, 1); r.DelayFrom(now) > 0 {
		wait := r.DelayFrom(now)
		r.CancelAt(now)
		w.needs.Metrics.delayed.Inc()
		w.queue.AddAfter(id, wait)
		return nil
	}
	delete(w.pending, id)
	return p
}

// putBack keeps what could not be written, below what came meanwhile.
func (w *writer) putBack(id types.NamespacedName, p *pending) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if newer := w.pending[id]; newer != nil {
		if newer.node != p.node {
			return // the device was moved to another node meanwhile
		}
		late := p.add(newer.report)
		for _, a := range newer.asks {
			if a.late == nil {
				a.late = late.err(id.String())
			}
			p.asks = append(p.asks, a)
		}
		p.asks = p.asks[:min(len(p.asks), maxAsks)]
	}
	w.pending[id] = p
}

// next writes what waits of one device.
func (w *writer) next(ctx context.Context, id types.NamespacedName) {
	p := w.takeDue(id, time.Now())
	if p == nil {
		return
	}
	d := w.needs.Device(id.Namespace, id.Name)
	if d == nil || d.Spec.NodeName != p.node {
		w.resumeDevice(id)
		w.answerAll(p, fmt.Errorf("device %s is not bound to node %s", id, p.node))
		return
	}
	wctx, cancel := context.WithTimeout(ctx, writeTimeout)
	late, err := w.write(wctx, d, &p.report)
	cancel()
	switch {
	case err == nil:
		w.resumeDevice(id)
		w.answerAll(p, late.err(id.String()))
	case forGood(err):
		w.resumeDevice(id)
		w.needs.Metrics.failures.Inc()
		w.needs.Refused(d, err)
		w.answerAll(p, err)
	default:
		if ctx.Err() != nil {
			return // the node gets no answer, and reports again to the next cloudcore
		}
		w.needs.Metrics.failures.Inc()
		failures := w.backOff(id, err)
		if failures >= fewTries && forNow(err) && w.needs.Repeats(p.node) {
			w.answerAll(p, err)
			p.asks = nil
		}
		w.putBack(id, p)
		if failures == fewTries {
			if forNow(err) {
				w.needs.Refused(d, err)
			}
			klog.InfoS("Status of a device cannot be written; trying again", "device", id.String(), "err", err)
		}
	}
}

func (w *writer) resumeDevice(id types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resume(id)
}

func (w *writer) answerAll(p *pending, problem error) {
	for _, a := range p.asks {
		w.needs.Answer(p.node, a.head, cmp.Or(problem, a.late))
	}
}

// fewTries is after how many tries a write that fails is more than a passing trouble.
const fewTries = 3

// forGood reports whether the same write would fail again. Forbidden is not for good: kube-apiserver answers it until
// its caches of roles are filled, and policies change. A bad request is not either: a webhook that fails may answer it.
func forGood(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// forNow reports whether the API server refuses a write that it may accept another time.
func forNow(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) }

// errNoStatuses means that the API server has no DeviceStatus, as KubeEdge before v1.23.
var errNoStatuses = errors.New("the API server has no DeviceStatus")

// conflicts is how often a write is tried again at once because someone else has written.
const conflicts = 3

// write writes a report: into the DeviceStatus, or where there are none into the status of the Device. A state also
// goes into the Device, for `kubectl get devices`.
func (w *writer) write(ctx context.Context, d *devices.Device, r *report) (late outdated, err error) {
	for range conflicts {
		if late, err = w.writeOnce(ctx, d, r); !apierrors.IsConflict(err) {
			break
		}
		w.forgetKnown(d)
	}
	return late, err
}

func (w *writer) forgetKnown(d *devices.Device) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if k := w.known[nameOf(d)]; k != nil {
		k.exists = false
	}
}

func nameOf(d *devices.Device) types.NamespacedName {
	return types.NamespacedName{Namespace: d.Namespace, Name: d.Name}
}

func (w *writer) writeOnce(ctx context.Context, d *devices.Device, r *report) (late outdated, err error) {
	ctx = apihealth.ForNode(ctx, d.Spec.NodeName)
	have, err := w.storedStatus(ctx, d)
	if err != nil {
		return late, err
	}
	next, changed, late := r.apply(d, have.status)
	before, after := shownOf(&have.status), shownOf(&next)
	if have.unshown {
		before = have.before
	}
	unshown := have.unshown || before != after
	if changed {
		if have, err = w.store(ctx, d, have, next); err != nil {
			return late, err
		}
		w.needs.Metrics.writes.Inc()
		have.at = time.Now()
	}
	have.unshown, have.before = unshown, before
	w.mu.Lock()
	w.known[nameOf(d)] = have
	w.mu.Unlock()
	differs := (changed || next.State != "") && (d.Status == nil || shownOf(d.Status).differs(after))
	if !w.inDevice() && (unshown || differs) {
		if err := w.showState(ctx, d, before, &next); err != nil {
			return late, err
		}
	}
	if unshown && before != after {
		w.needs.StateChanged(d, before, &next)
	}
	w.mu.Lock()
	have.unshown = false
	w.mu.Unlock()
	return late, nil
}

// differs reports whether a Device shows another state than it should. A Device without a message does not: the API
// server keeps none with CRDs that do not have it.
func (s shownState) differs(from shownState) bool {
	return s.state != from.state || s.message != "" && s.message != from.message
}

// inDevice reports whether statuses are in the Devices, as the API server has no DeviceStatus.
func (w *writer) inDevice() bool {
	at := w.noStatuses.Load()
	return at != 0 && time.Since(time.Unix(0, at)) < probePeriod
}

// storedStatus returns what the API server has of a device's status.
func (w *writer) storedStatus(ctx context.Context, d *devices.Device) (*written, error) {
	w.mu.Lock()
	k := w.known[nameOf(d)]
	w.mu.Unlock()
	if k != nil && k.exists && k.device == d.UID {
		return k, nil
	}
	have := &written{device: d.UID}
	if k != nil {
		have.at, have.unshown, have.before = k.at, k.unshown && k.device == d.UID, k.before
	}
	if w.inDevice() {
		now, err := read[devices.Device](ctx, w.objects, devices.Devices, d.Namespace, d.Name)
		if err != nil || now == nil {
			return have, err
		}
		have.exists, have.uid, have.version = true, now.UID, now.ResourceVersion
		if now.Status != nil {
			have.status = *now.Status
		}
		return have, nil
	}
	now, err := read[devices.DeviceStatus](ctx, w.objects, devices.DeviceStatuses, d.Namespace, d.Name)
	if err != nil || now == nil {
		return have, err
	}
	have.exists, have.uid, have.version = true, now.UID, now.ResourceVersion
	if owner := metav1.GetControllerOfNoCopy(&now.ObjectMeta); owner == nil || owner.UID == d.UID {
		have.status = now.Status // otherwise it is of an earlier device of that name
	}
	return have, nil
}

// store writes a status, and returns what the API server has afterwards.
func (w *writer) store(ctx context.Context, d *devices.Device, have *written, next devices.Status) (*written, error) {
	gvr, name := devices.DeviceStatuses, d.Name
	if w.inDevice() {
		gvr = devices.Devices
	}
	out := &written{device: d.UID, status: next}
	client := w.objects.Resource(gvr).Namespace(d.Namespace)
	var stored *unstructured.Unstructured
	var err error
	switch {
	case !have.exists && gvr == devices.DeviceStatuses:
		var object *unstructured.Unstructured
		if object, err = statusObject(d, next); err != nil {
			return nil, err
		}
		stored, err = client.Create(ctx, object, metav1.CreateOptions{})
		if noSuchKind(err) {
			w.noStatuses.Store(time.Now().UnixNano())
			klog.InfoS("The API server has no DeviceStatus; writing what devices report into their Device. Apply "+
				"deploy/cloudcore/crds to change that", "checkedAgainIn", probePeriod)
			return nil, apierrors.NewConflict(devices.DeviceStatuses.GroupResource(), name, errNoStatuses)
		}
		if apierrors.IsAlreadyExists(err) {
			return nil, apierrors.NewConflict(gvr.GroupResource(), name, err)
		}
	default:
		var patch []byte
		if patch, err = statusPatch(d, have, next, gvr == devices.DeviceStatuses); err != nil {
			return nil, err
		}
		stored, err = client.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		if apierrors.IsNotFound(err) { // it was deleted
			return nil, apierrors.NewConflict(gvr.GroupResource(), name, err)
		}
	}
	if err != nil {
		return nil, err
	}
	out.exists, out.uid, out.version = true, stored.GetUID(), stored.GetResourceVersion()
	return out, nil
}

// noSuchKind reports whether an object could not be created because the API server does not have its kind.
func noSuchKind(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return false
	}
	details := status.Status().Details
	return details == nil || details.Kind != "namespaces"
}

// statusObject returns a new DeviceStatus, which its Device owns.
func statusObject(d *devices.Device, s devices.Status) (*unstructured.Unstructured, error) {
	return toUnstructured(&devices.DeviceStatus{
		TypeMeta: metav1.TypeMeta{APIVersion: devices.APIVersion, Kind: devices.KindDeviceStatus},
		ObjectMeta: metav1.ObjectMeta{
			Name:            d.Name,
			Namespace:       d.Namespace,
			OwnerReferences: []metav1.OwnerReference{ownedBy(d)},
		},
		Status: s,
	})
}

func ownedBy(d *devices.Device) metav1.OwnerReference {
	controller := true
	return metav1.OwnerReference{
		APIVersion: devices.APIVersion, Kind: devices.KindDevice, Name: d.Name, UID: d.UID, Controller: &controller,
	}
}

func toUnstructured(obj any) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	return u, u.UnmarshalJSON(data)
}

// statusPatch returns the merge patch that writes a status into the object whose known status is have, if the object
// has not changed since.
func statusPatch(d *devices.Device, have *written, next devices.Status, own bool) ([]byte, error) {
	meta := map[string]any{"uid": have.uid, "resourceVersion": have.version}
	if own {
		meta["ownerReferences"] = []metav1.OwnerReference{ownedBy(d)}
	}
	if len(next.Extensions) > 0 {
		extensions := decodeExtensions(next.Extensions)
		for key := range decodeExtensions(have.status.Extensions) {
			if extensions[key] == nil {
				extensions[key] = json.RawMessage("null") // a merge patch keeps what it does not mention
			}
		}
		next.Extensions = mustEncode(extensions)
	}
	return json.Marshal(map[string]any{"metadata": meta, "status": next})
}

// showState writes the state of a device into its Device, which may show the one before.
func (w *writer) showState(ctx context.Context, d *devices.Device, before shownState, s *devices.Status) error {
	shown := map[string]any{"state": s.State, "lastOnlineTime": s.LastOnlineTime}
	message := shownOf(s).message
	switch {
	case message != "":
		shown["extensions"] = map[string]any{extensionStateMessage: message}
	case before.message != "" || d.Status != nil && shownOf(d.Status).message != "":
		shown["extensions"] = map[string]any{extensionStateMessage: nil}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": d.UID}, "status": shown})
	if err != nil {
		return err
	}
	_, err = w.objects.Resource(devices.Devices).Namespace(d.Namespace).Patch(ctx, d.Name, types.MergePatchType, patch,
		metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil // it is being deleted
	}
	w.needs.Metrics.writes.Inc()
	return err
}
