package mapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	dmi "github.com/edgecore-io/edgecore/pkg/dmi/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// States of a device.
const (
	online    = "online"
	offline   = "offline"
	unhealthy = "unhealthy" // it answers, but refuses a property
)

// messageInterval is the shortest time between two reports of a state that stays the same with another message.
const messageInterval = time.Minute

const (
	// defaultCycle is how often a property without a collectCycle is read, leastCycle how often one can be.
	defaultCycle = time.Second
	leastCycle   = 10 * time.Millisecond
	// mostCycle bounds all cycles: more milliseconds than a time.Duration has would otherwise be a short cycle.
	mostCycle = 365 * 24 * time.Hour
)

// cycle returns a cycle of a Device, which is in milliseconds; 0 if it has none.
func cycle(ms int64) time.Duration {
	return time.Duration(min(max(ms, 0), mostCycle.Milliseconds())) * time.Millisecond
}

// worker serves one device in one goroutine.
type worker struct {
	m               *mapper
	namespace, name string
	stop            context.CancelFunc
	changed         notify.Signal
	// ended is closed when run has returned.
	ended chan struct{}

	mu    sync.Mutex
	spec  *dmi.Device
	model *dmi.DeviceModel
	again bool // edgecore may have forgotten what was reported
	// sets counts the calls of set; endWrite ends the write of the round, if there is one.
	sets     int
	endWrite context.CancelFunc

	// What follows belongs to run.
	conn    Conn
	backoff *retry.Backoff
	// reports is the pause between reports that edgecore does not take, retryAt the end of that pause.
	reports *retry.Backoff
	retryAt time.Time
	points  map[string]*point
	now     condition
	sent    condition // what edgecore has
	sentAt  time.Time
	values  map[string]reading
}

// condition is the state of a device; message says why it is not online.
type condition struct{ state, message string }

// point is a property with its cycles.
type point struct {
	Property
	spec     *dmi.DeviceProperty
	collect  time.Duration
	report   time.Duration // 0 is none
	next     time.Time     // of the next read
	reported time.Time
	value    string
	known    bool // value has been read on this connection
	written  *string
	// refused is the desired value that the device has refused to take, nil if there is none; writes is the pause
	// between the tries to write it, and writeAt the end of that pause.
	refused *string
	writes  *retry.Backoff
	writeAt time.Time
	problem string
}

// reading is a value that edgecore does not have yet.
type reading struct {
	value, kind string
	at          time.Time
}

func newWorker(m *mapper, namespace, name string, stop context.CancelFunc) *worker {
	return &worker{
		m: m, namespace: namespace, name: name, stop: stop, changed: notify.NewSignal(), ended: make(chan struct{}),
		endWrite: func() {},
		backoff:  retry.NewBackoff(firstRetry, lastRetry), reports: retry.NewBackoff(firstRetry, lastRetry),
		points: map[string]*point{}, values: map[string]reading{},
	}
}

// set replaces the device. No desired value of the one before is written after it returns, but for a write that has
// begun.
func (w *worker) set(d *dmi.Device, model *dmi.DeviceModel) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spec, w.model = d, model
	w.sets++
	w.endWrite()
	w.changed.Notify()
}

// startWrite returns the context of a write of a round, which ends with the next set; sets is what the round began
// with. ok is false if the worker was stopped or its device set since. done must be called.
func (w *worker) startWrite(ctx context.Context, sets int) (_ context.Context, done func(), ok bool) {
	ctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endWrite = cancel
	return ctx, cancel, w.sets == sets && ctx.Err() == nil
}

// registered has everything reported again.
func (w *worker) registered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.again = true
	w.changed.Notify()
}

func (w *worker) reportAgain() {
	w.sent = condition{}
	for name, p := range w.points {
		if _, newer := w.values[name]; p.known && !newer {
			w.values[name] = reading{p.value, p.Type, p.reported}
		}
	}
}

func (w *worker) device() *dmi.Device {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spec
}

// run serves the device until ctx ends.
func (w *worker) run(ctx context.Context) {
	defer close(w.ended)
	defer w.close()
	var have *dmi.Device
	var haveModel *dmi.DeviceModel
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
		case <-timer.C:
		}
		w.mu.Lock()
		d, model, again, sets := w.spec, w.model, w.again, w.sets
		w.again = false
		w.mu.Unlock()
		if d != have || model != haveModel {
			if have != nil && !proto.Equal(have.GetSpec().GetProtocol(), d.GetSpec().GetProtocol()) {
				w.close()
				w.backoff.Reset()
			}
			w.configure(d, model)
			have, haveModel = d, model
			w.retryNow() // edgecore has the device now
		}
		if again {
			w.retryNow()
			w.reportAgain()
		}
		wait := w.round(ctx, d, sets)
		wait = min(wait, w.deliver(ctx))
		timer.Reset(wait)
	}
}

// configure takes the properties of a device; what is known of those that stay is kept.
func (w *worker) configure(d *dmi.Device, model *dmi.DeviceModel) {
	rules := map[string]*dmi.ModelProperty{}
	for _, p := range model.GetSpec().GetProperties() {
		rules[p.GetName()] = p
	}
	points := map[string]*point{}
	for _, p := range d.GetSpec().GetProperties() {
		at := w.points[p.GetName()]
		if at == nil || !proto.Equal(at.spec.GetVisitors(), p.GetVisitors()) {
			at = &point{}
		}
		if m := ignoredPush(p.GetPushMethod()); m != "" && m != ignoredPush(at.spec.GetPushMethod()) {
			w.m.opts.Log.Warn("pushMethod of a property is ignored: this mapper pushes to mqtt only", "device",
				id(w.namespace, w.name), "property", p.GetName(), "pushMethod", m)
		}
		at.spec = p
		rule := rules[p.GetName()]
		at.Property = Property{
			Name:    p.GetName(),
			Type:    rule.GetType(),
			Minimum: rule.GetMinimum(),
			Maximum: rule.GetMaximum(),
			Visitor: configOf(p.GetVisitors().GetConfigData()),
		}
		at.collect = defaultCycle
		if collect := cycle(p.GetCollectCycle()); collect > 0 {
			at.collect = max(collect, leastCycle)
		}
		at.report = cycle(p.GetReportCycle())
		points[at.Name] = at
	}
	w.points = points
	maps.DeleteFunc(w.values, func(name string, _ reading) bool { return points[name] == nil })
}

// round reads what is due and writes desired values. It returns how long nothing is due.
func (w *worker) round(ctx context.Context, d *dmi.Device, sets int) time.Duration {
	if w.conn == nil {
		conn, err := w.m.opts.Driver.Open(ctx, w.namespace, configOf(d.GetSpec().GetProtocol().GetConfigData()))
		if err != nil {
			return w.failed(err)
		}
		w.conn = conn
	}
	problems, problem := 0, ""
	wait := time.Hour
	for _, name := range slices.Sorted(maps.Keys(w.points)) {
		p := w.points[name]
		if ctx.Err() != nil {
			return 0
		}
		if p.needsWrite() || !time.Now().Before(p.next) {
			p.next = time.Now().Add(p.collect)
			if err := w.serve(ctx, p, sets); err != nil {
				var refused Refusal
				if ctx.Err() != nil {
					return 0
				}
				if !errors.As(err, &refused) {
					return w.failed(err)
				}
				if text := textOf(err); text != p.problem {
					p.problem = text
					w.m.opts.Log.Warn("Device refuses a property", "device", id(w.namespace, w.name), "property", name,
						"err", err)
				}
			} else if !p.refuses() {
				p.problem, p.refused = "", nil
			}
		}
		if p.problem != "" {
			problems++
			problem = cmp.Or(problem, name+": "+p.problem)
		}
		wait = min(wait, time.Until(p.next))
		if p.refuses() {
			wait = min(wait, time.Until(p.writeAt))
		}
	}
	w.backoff.Reset()
	switch problems {
	case 0:
		w.now = condition{state: online}
	case 1:
		w.now = condition{unhealthy, devices.CleanMessage(problem)}
	default:
		w.now = condition{unhealthy, devices.CleanMessage(fmt.Sprintf("%d properties; %s", problems, problem))}
	}
	return max(wait, 0)
}

// desired returns the desired value, also of a nil point; "" is none.
func (p *point) desired() string {
	if p == nil {
		return ""
	}
	return p.spec.GetDesired().GetValue()
}

// needsWrite reports whether a desired value must be written.
func (p *point) needsWrite() bool {
	desired := p.spec.GetDesired()
	if desired == nil || desired.GetValue() == "" && len(desired.GetMetadata()) == 0 {
		p.written = nil
		return false
	}
	return p.known && desired.GetValue() != p.value && (p.written == nil || *p.written != desired.GetValue()) &&
		(!p.refuses() || !time.Now().Before(p.writeAt))
}

// refuses reports whether the device has refused the desired value, and does not have it.
func (p *point) refuses() bool {
	return p.refused != nil && *p.refused == p.desired() && p.known && *p.refused != p.value
}

// refuse schedules another write of a desired value that the device refused: it may be busy, or in a mode in which it
// accepts none.
func (p *point) refuse(value string) {
	if p.refused == nil || *p.refused != value {
		p.refused, p.writes = &value, retry.NewBackoff(firstRetry, lastRetry)
	}
	p.writeAt = time.Now().Add(p.writes.Next())
}

// serve reads a property, and writes its desired value if that is another one and still desired: reading takes as long
// as the device likes. sets is that of the round.
func (w *worker) serve(ctx context.Context, p *point, sets int) error {
	if err := w.read(ctx, p); err != nil || !p.needsWrite() {
		return err
	}
	writing, done, ok := w.startWrite(ctx, sets)
	defer done()
	if !ok {
		return nil
	}
	want := p.spec.GetDesired().GetValue()
	if err := w.conn.Write(writing, &p.Property, want); err != nil {
		switch {
		case !errors.As(err, new(Refusal)):
		case writing.Err() != nil:
			return nil // the driver did not write it
		default:
			p.refuse(want)
		}
		return err
	}
	p.written, p.refused = &want, nil
	return w.read(ctx, p)
}

func (w *worker) read(ctx context.Context, p *point) error {
	value, err := w.conn.Read(ctx, &p.Property)
	if err != nil {
		return err
	}
	now := time.Now()
	due := p.report > 0 && now.Sub(p.reported) >= p.report
	if !p.known || value != p.value || due {
		p.reported = now
		w.values[p.Name] = reading{value, p.Type, now}
		w.m.push.push(w.namespace, w.name, p.Name, value, now, p.spec.GetPushMethod().GetMqtt())
	}
	p.value, p.known = value, true
	return nil
}

// failed closes the connection, and returns how long to wait before the next one.
func (w *worker) failed(err error) time.Duration {
	w.close()
	wait := w.backoff.Next()
	if w.now.state != offline {
		w.m.opts.Log.Warn("Device does not answer; trying again", "device", id(w.namespace, w.name), "err", err,
			"retryIn", wait)
	}
	w.now = condition{offline, devices.CleanMessage(textOf(err))}
	return wait
}

// textOf returns the text of an error without the port that this end of a connection had: it is another one each time,
// and would make the same trouble look like a new one.
func textOf(err error) string {
	text := err.Error()
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Source != nil {
		plain := *op
		plain.Source = nil
		text = strings.Replace(text, op.Error(), plain.Error(), 1)
	}
	return text
}

func (w *worker) close() {
	if w.conn != nil {
		_ = w.conn.Close() // it is not used any more
	}
	w.conn = nil
	for _, p := range w.points {
		p.known, p.written, p.refused = false, nil, nil
		p.next = time.Time{}
	}
}

// report reports the values of properties.
func (w *worker) report(ctx context.Context, names []string) error {
	r := &dmi.ReportDeviceStatusRequest{
		DeviceName: w.name, DeviceNamespace: w.namespace, ReportedDevice: &dmi.DeviceStatus{},
	}
	for _, name := range names {
		v := w.values[name]
		r.ReportedDevice.Twins = append(r.ReportedDevice.Twins, &dmi.Twin{
			PropertyName: name,
			Reported: &dmi.TwinProperty{Value: v.value, Metadata: map[string]string{
				"timestamp": strconv.FormatInt(v.at.UnixMilli(), 10), "type": v.kind,
			}},
			// KubeEdge's edgecore ends if it is missing.
			ObservedDesired: &dmi.TwinProperty{Value: w.points[name].desired()},
		})
	}
	_, err := w.m.agent.ReportDeviceStatus(ctx, r)
	return err
}

// deliver reports values and state to edgecore. What it does not accept now is kept; it returns when to try again.
func (w *worker) deliver(ctx context.Context) time.Duration {
	if pause := time.Until(w.retryAt); pause > 0 {
		return pause
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if names := slices.Sorted(maps.Keys(w.values)); len(names) > 0 {
		err := w.report(ctx, names)
		if status.Code(err) == codes.InvalidArgument { // because of one of them: it must not hold up the others
			for _, name := range names {
				if err = w.report(ctx, []string{name}); status.Code(err) == codes.InvalidArgument {
					w.m.opts.Log.Warn("edgecore refuses a value", "device", id(w.namespace, w.name), "property", name,
						"err", err)
					err = nil
				}
				if err != nil {
					break
				}
			}
		}
		if err != nil {
			return w.undelivered(ctx, err)
		}
		clear(w.values)
	}
	if w.untilState() <= 0 {
		r := &dmi.ReportDeviceStatesRequest{DeviceName: w.name, DeviceNamespace: w.namespace, State: w.now.state}
		if _, err := w.m.agent.ReportDeviceStates(dmi.WithStateMessage(ctx, w.now.message), r); err != nil {
			return w.undelivered(ctx, err)
		}
		if w.now.state != w.sent.state {
			w.m.opts.Log.Info("State of a device", "device", id(w.namespace, w.name), "state", w.now.state)
		}
		w.sent, w.sentAt = w.now, time.Now()
	}
	w.retryNow()
	return w.untilState()
}

// untilState returns when to report the state: at once if it changed, later if only its message did.
func (w *worker) untilState() time.Duration {
	switch {
	case w.now == w.sent:
		return time.Hour
	case w.now.state != w.sent.state:
		return 0
	}
	return time.Until(w.sentAt.Add(messageInterval))
}

// retryNow ends the pause between reports.
func (w *worker) retryNow() {
	w.reports.Reset()
	w.retryAt = time.Time{}
}

// undelivered returns how long to wait after a report that edgecore did not take. The mapper registers again only if
// edgecore does not know it: a full disk or a limit would be hit harder by the values that follow a registration.
func (w *worker) undelivered(ctx context.Context, err error) time.Duration {
	pause := w.reports.Next()
	w.retryAt = time.Now().Add(pause)
	if ctx.Err() == nil {
		w.m.opts.Log.Warn("edgecore does not take a report; trying again", "device", id(w.namespace, w.name),
			"err", err, "retryIn", pause)
	}
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.PermissionDenied: // it has no mapper of this protocol, or another one
		w.m.lost.Notify()
	}
	return pause
}
