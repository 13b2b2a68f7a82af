package devicetwin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/devicetwin/twin"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// refreshAfter is how often the cloud hears of a value that stays the same while its mapper reports it.
	refreshAfter = 5 * time.Minute
	// sendInterval is the shortest time between two reports on one device.
	sendInterval = time.Second
	// sendsMax is how many devices are reported on at a time. A namespace has half of them at most: see mayTake.
	sendsMax = 32
	// refusedMax is the longest pause after the cloud refused a report. A refusal may be over soon: kube-apiserver
	// refuses what it would accept until its caches are filled, and a cloudcore may not know yet that a device is bound
	// here.
	refusedMax = 5 * time.Minute
	// confirmTimeout is how long the cloud may take to confirm. It writes first, and at its own pace.
	confirmTimeout = 2 * time.Minute
)

// reporting is what the cloud has to hear of a device.
type reporting struct {
	// values and state are what it has not confirmed.
	values map[string]bool
	state  bool
	// outdated are values that the API has in a newer version: an earlier run of the agent sent it and did not store
	// it. outdatedState is the same for the state. They get a new version when they are reported again.
	outdated      map[string]bool
	outdatedState bool
	// sent is when each value was last sent.
	sent map[string]time.Time
	// sending: a report is on its way. next is the earliest time of the next one.
	sending bool
	next    time.Time
	// hold is until when desired values of the cloud, and nothing else, wait.
	hold    time.Time
	backoff *retry.Backoff
	// refused are the kinds of reports that the cloud refuses. What it refuses of one kind delays no other.
	refused map[devicemsg.Kind]*refusal
}

// refusal is the pause after the cloud refused a kind of report. It grows to refusedMax.
type refusal struct {
	backoff *retry.Backoff
	until   time.Time
}

// refuse delays reports of a kind that the cloud refused. It reports whether the cloud accepted that kind before.
func (r *reporting) refuse(kind devicemsg.Kind, now time.Time) (first bool) {
	if r.refused == nil {
		r.refused = map[devicemsg.Kind]*refusal{}
	}
	pause := r.refused[kind]
	if pause == nil {
		pause = &refusal{backoff: retry.NewBackoff(sendInterval, refusedMax)}
		r.refused[kind], first = pause, true
	}
	pause.until = now.Add(pause.backoff.Next())
	return first
}

// received marks desired values that came from the cloud to be sent. It knows them, so they wait for the reported
// values that usually follow, and go with them: sent at once, they would delay those by sendInterval.
func (r *reporting) received(now time.Time, names ...string) {
	hold := r.hold
	if !r.due() {
		hold = now.Add(sendInterval)
	}
	r.changed(names...)
	r.hold = hold
}

// changed marks values to be sent.
func (r *reporting) changed(names ...string) {
	if len(names) > 0 {
		r.hold = time.Time{}
	}
	if r.values == nil {
		r.values = map[string]bool{}
	}
	for _, name := range names {
		r.values[name] = true
	}
}

// everything marks the whole twin to be sent.
func (r *reporting) everything(t *twin.Twin) {
	for name := range t.Properties {
		r.changed(name)
	}
	r.state = t.State != ""
}

// refresh marks values to be sent that were last sent refreshAfter ago or earlier. It reports whether there are any.
func (r *reporting) refresh(reports []twin.Report, now time.Time) (due bool) {
	for _, v := range reports {
		if at, was := r.sent[v.Name]; was && now.Sub(at) >= refreshAfter {
			r.changed(v.Name)
			due = true
		}
	}
	return due
}

// stateChanged marks the state to be sent.
func (r *reporting) stateChanged() { r.state, r.hold = true, time.Time{} }

func (r *reporting) due() bool { return len(r.values) > 0 || r.state }

// pending are the kinds of reports that are due.
func (r *reporting) pending() (kinds []devicemsg.Kind) {
	if len(r.values) > 0 {
		kinds = append(kinds, devicemsg.KindTwin)
	}
	if r.state {
		kinds = append(kinds, devicemsg.KindState)
	}
	return kinds
}

// pausedUntil is the end of the pause of a kind of report, in the past if there is none.
func (r *reporting) pausedUntil(kind devicemsg.Kind) (until time.Time) {
	if pause := r.refused[kind]; pause != nil {
		until = pause.until
	}
	return until
}

// earliest is when the next report may be sent.
func (r *reporting) earliest() (first time.Time) {
	for i, kind := range r.pending() {
		at := r.pausedUntil(kind)
		if i == 0 || at.Before(first) {
			first = at
		}
	}
	for _, at := range []time.Time{r.next, r.hold} {
		if at.After(first) {
			first = at
		}
	}
	return first
}

// uplink sends reports to the cloud.
type uplink struct {
	m    *Module
	wake notify.Signal
	// sends counts the reports that are on their way, by namespace. It is guarded by mu of the module.
	sends map[string]int
}

func newUplink(m *Module) *uplink {
	return &uplink{m: m, wake: notify.NewSignal(), sends: map[string]int{}}
}

// mayTake reports whether a namespace that has some places may take one more of those that are free. It leaves as many
// free as it has: reports that the cloud does not answer keep their places for minutes, and those of one namespace must
// not keep those of others away. n such namespaces leave 1/(n+1) of all places free.
func mayTake(has, free int) bool { return has < free }

// run sends what is due until ctx ends.
func (u *uplink) run(ctx context.Context) {
	var sends sync.WaitGroup
	defer sends.Wait()
	slots := make(chan struct{}, sendsMax)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		for _, e := range u.ready(&timer, cap(slots)-len(slots)) {
			slots <- struct{}{}
			sends.Go(func() {
				u.send(ctx, e)
				<-slots
				u.wake.Notify()
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-u.wake:
		case <-timer.C:
		}
	}
}

// ready returns up to most entries to report on now, and sets the timer for the next.
func (u *uplink) ready(timer **time.Timer, most int) []*entry {
	u.m.mu.Lock()
	defer u.m.mu.Unlock()
	now := u.m.opts.Now()
	wait := u.m.applyMessages(now)
	(*timer).Reset(wait)
	if !u.m.linked || !u.m.numbers.maySend() {
		return nil
	}
	var out []*entry
	for _, e := range u.m.devices {
		r := &e.report
		switch {
		case e.device == nil || r.sending || !r.due():
		case r.earliest().After(now):
			wait = min(wait, r.earliest().Sub(now))
		case mayTake(u.sends[e.namespace()], most-len(out)):
			r.sending = true
			u.sends[e.namespace()]++
			out = append(out, e)
		}
	}
	(*timer).Reset(wait)
	return out
}

// batch is what one report has: the versions tell what changed while it was on its way.
type batch struct {
	device   *devices.Device
	versions map[string][2]int64 // of the reported and the desired value
	state    int64
	messages map[devicemsg.Kind]*model.Message
}

// send reports on a device, and returns when the cloud has confirmed or refused that, or does not answer.
func (u *uplink) send(ctx context.Context, e *entry) {
	b, err := u.batch(e)
	var outdated []*devicemsg.Outdated
	refused := map[devicemsg.Kind]error{}
	for _, kind := range []devicemsg.Kind{devicemsg.KindTwin, devicemsg.KindState} {
		if err != nil || b.messages[kind] == nil {
			continue
		}
		var o *devicemsg.Outdated
		o, err = u.deliver(ctx, b.messages[kind])
		if errors.As(err, new(*refusedError)) {
			refused[kind], err = err, nil
		}
		if o != nil {
			outdated = append(outdated, o)
		}
	}
	u.m.mu.Lock()
	defer u.m.mu.Unlock()
	r := &e.report
	if u.sends[e.namespace()]--; u.sends[e.namespace()] == 0 {
		delete(u.sends, e.namespace())
	}
	now := u.m.opts.Now()
	r.sending, r.next = false, now.Add(sendInterval)
	for kind, cause := range refused {
		if r.refuse(kind, now) {
			klog.InfoS("The cloud refuses a report on a device; trying again with a growing pause", "device", e.id,
				"report", kind, "err", cause)
		}
	}
	if err != nil {
		if r.backoff == nil {
			r.backoff = retry.NewBackoff(sendInterval, time.Minute)
		}
		r.next = now.Add(r.backoff.Next())
		klog.V(2).InfoS("Report on a device not confirmed; trying again", "device", e.id, "err", err)
		return
	}
	r.backoff = nil
	for kind := range b.messages {
		if refused[kind] == nil && r.refused[kind] != nil {
			klog.InfoS("The cloud accepts reports on a device again", "device", e.id, "report", kind)
			delete(r.refused, kind)
		}
	}
	if u.m.outdated(e, &b, outdated) {
		return
	}
	if refused[devicemsg.KindTwin] != nil {
		clear(b.versions) // they are not confirmed
	}
	if r.sent == nil {
		r.sent = map[string]time.Time{}
	}
	for name, v := range b.versions {
		again := r.sent[name].IsZero() && u.m.twice
		r.sent[name] = now
		if !again && versionsOf(e.twin.Properties[name]) == v {
			delete(r.values, name)
		}
	}
	if r.state && e.twin.StateVersion == b.state && refused[devicemsg.KindState] == nil {
		r.state = false
	}
}

// outdated applies what the cloud says about values of a report that it did not write, as the API has a newer version
// of them. It reports whether the report must be sent again. mu is held.
//
// Usually an earlier run of the agent sent that version and ended before it was stored. If the API has a number that
// was never given out, the store has lost its numbers, or is an older copy: then it gets a new epoch.
func (m *Module) outdated(e *entry, b *batch, list []*devicemsg.Outdated) (again bool) {
	r := &e.report
	for _, o := range list {
		if m.numbers.fellBehind(o) {
			klog.InfoS("The API has values of a device with higher versions than this store has given out: the store "+
				"lost rows, or is an older copy. Numbering versions again, and reporting again", "device", e.id)
			m.numbers.renew()
			m.persist.wake.Notify()
			return true
		}
		for name := range o.Values {
			if _, sent := b.versions[name]; !sent {
				continue
			}
			if r.outdated == nil {
				r.outdated = map[string]bool{}
			}
			r.outdated[name] = true
		}
		for name := range o.Desired { // what the twin desires now is the newest decision
			if _, sent := b.versions[name]; sent && e.twin.RenewDesired(name, &m.numbers.Counter) {
				m.persist.mark(e.id)
				again = true
			}
		}
		r.outdatedState = r.outdatedState || o.State != ""
	}
	return again
}

func versionsOf(p twin.Property) (v [2]int64) {
	if p.Reported != nil {
		v[0] = p.Reported.Version
	}
	if p.Desired != nil {
		v[1] = p.Desired.Version
	}
	return v
}

// batch makes the messages of a report.
func (u *uplink) batch(e *entry) (batch, error) {
	u.m.mu.Lock()
	defer u.m.mu.Unlock()
	b := batch{
		device:   e.device,
		versions: map[string][2]int64{},
		state:    -1,
		messages: map[devicemsg.Kind]*model.Message{},
	}
	update := devicemsg.TwinUpdate{
		EventID: uuid.NewString(), Timestamp: u.m.nowMillis(), Twin: map[string]*devicemsg.Twin{},
		Epoch: u.m.numbers.epoch,
	}
	now := u.m.opts.Now()
	for name := range e.report.values {
		if e.report.pausedUntil(devicemsg.KindTwin).After(now) {
			break
		}
		p := e.twin.Properties[name]
		b.versions[name] = versionsOf(p)
		spec, has := e.device.Property(name)
		if has {
			if t := Message(p, spec.ReportToCloud); t != nil {
				update.Twin[name] = t
			}
		}
	}
	if len(update.Twin) > 0 {
		msg, err := report(devicemsg.KindTwin, e.device, update)
		if err != nil {
			return b, err
		}
		b.messages[devicemsg.KindTwin] = msg
	}
	if e.report.state && !e.report.pausedUntil(devicemsg.KindState).After(now) {
		b.state = e.twin.StateVersion
		state := devicemsg.StateUpdate{
			EventID:   uuid.NewString(),
			Timestamp: u.m.nowMillis(),
			Epoch:     u.m.numbers.epoch,
			Version:   e.twin.StateVersion,
		}
		state.Device.Name, state.Device.State, state.Message = e.device.Name, e.twin.State, e.twin.StateMessage
		if at := e.twin.LastOnline; at != 0 {
			state.Device.LastOnlineTime = time.UnixMilli(at).UTC().Format(time.RFC3339)
		}
		text, err := json.Marshal(state)
		if err != nil {
			return b, err
		}
		msg, err := report(devicemsg.KindState, e.device, string(text)) // a string, as KubeEdge sends it
		if err != nil {
			return b, err
		}
		b.messages[devicemsg.KindState] = msg
	}
	return b, nil
}

// Message returns a property as it is sent; nil if it has no value to send. reported is whether the reported value is
// wanted.
func Message(p twin.Property, reported bool) *devicemsg.Twin {
	t := &devicemsg.Twin{}
	if v := p.Reported; v != nil && reported {
		t.Actual, t.ActualVersion = devicemsg.NewValue(v.Value, v.At), &devicemsg.Version{Edge: v.Version}
		if v.Type != "" {
			t.Metadata = &devicemsg.TypeMetadata{Type: v.Type}
		}
	}
	if v := p.Desired; v != nil {
		t.Expected, t.ExpectedVersion = devicemsg.NewValue(v.Value, v.At), &devicemsg.Version{Edge: v.Version}
		if t.Metadata == nil && v.Type != "" {
			t.Metadata = &devicemsg.TypeMetadata{Type: v.Type}
		}
	}
	if t.Actual == nil && t.Expected == nil {
		return nil
	}
	return t
}

func report(kind devicemsg.Kind, d *devices.Device, content any) (*model.Message, error) {
	data, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	about := devicemsg.Report{Kind: kind, Namespace: d.Namespace, Name: d.Name}
	return model.New(devicemsg.Source, model.GroupResource, model.OpUpdate, about.Resource(), data), nil
}

// refusedError is the cloud's refusal of a report.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

// deliver sends a message, and waits for its confirmation. The cloud may confirm with what it did not write because the
// API has a newer version. A refusal is a refusedError.
func (u *uplink) deliver(ctx context.Context, msg *model.Message) (*devicemsg.Outdated, error) {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	answer, err := u.m.opts.Bus.SendSync(ctx, model.ModuleEdgeHub, msg)
	switch {
	case err != nil:
		return nil, err
	case answer.Route.Operation != model.OpError:
		return nil, nil
	case answer.Route.Source == devicemsg.SourceCloud:
		if o := devicemsg.DecodeOutdated(answer.ContentData()); o != nil {
			return o, nil
		}
		return nil, &refusedError{fmt.Sprintf("%.500s", answer.ContentData())}
	}
	return nil, fmt.Errorf("%.200s", answer.ContentData())
}
