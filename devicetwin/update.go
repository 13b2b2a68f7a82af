package devicetwin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/devicetwin/twin"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
)

// Stored waits until a change is on the disk, or ctx ends. It may be called once.
type Stored func(ctx context.Context) error

// Change is a change of a device's twin.
type Change struct {
	Namespace, Name string
	// Before and After are the properties with new values, by name. They must not be modified.
	Before, After map[string]twin.Property
	// Bound is set for a device that is new on the node, Gone for one that has left it. Both are set when a device has
	// left and another one of its name is there.
	Bound, Gone bool
}

// addChanged adds the properties that changed.
func (c *Change) addChanged(before, after *twin.Twin, names []string) {
	if len(names) == 0 {
		return
	}
	c.Before, c.After = make(map[string]twin.Property, len(names)), make(map[string]twin.Property, len(names))
	for _, name := range names {
		c.Before[name], c.After[name] = before.Properties[name], after.Properties[name]
	}
}

// notifyChanged calls Options.Changed. mu is held.
func (m *Module) notifyChanged(c Change) {
	if m.opts.Changed != nil && (len(c.After) > 0 || c.Bound || c.Gone) {
		m.opts.Changed(c)
	}
}

// ErrNotNewer refuses what a broker has delivered late or again: the twin has something newer, or the order is unknown.
var ErrNotNewer = errors.New("the message was kept by the MQTT broker, and the twin has what may be newer: publish " +
	"it again, without the retain flag, or report with a timestamp")

// Update applies values that a mapper or a client on the device reports, and desired values that a client sets: all of
// them, or, with an error, none. They are in memory when it returns. Those that a broker has delivered late or again
// are left out where the twin has something newer; if none is left, the error is ErrNotNewer.
func (m *Module) Update(namespace, name string, reports, desired []twin.Report) (Stored, error) {
	deviceID := id(namespace, name)
	m.mu.Lock()
	e := m.devices[deviceID]
	if e == nil || e.device == nil {
		m.mu.Unlock()
		return nil, errNoDevice(namespace, name)
	}
	before, next := &e.twin, e.twin.Clone()
	some := len(reports)+len(desired) > 0
	reports, desired = next.Newer(m.withTimes(reports), m.withTimes(desired), m.nowMillis())
	if some && len(reports)+len(desired) == 0 {
		m.mu.Unlock()
		return nil, fmt.Errorf("device %s: %w", deviceID, ErrNotNewer)
	}
	for _, list := range [][]twin.Report{reports, desired} {
		for i := range list {
			if list[i].Source == twin.FromWaiting && list[i].At == 0 {
				list[i].At = m.nowMillis()
			}
		}
	}
	changed, err := next.Reported(e.device, reports, &m.numbers.Counter)
	wanted := false
	for _, r := range desired {
		if err != nil {
			break
		}
		var is bool
		model := m.models[id(namespace, e.device.Spec.DeviceModelRef.Name)]
		if is, err = next.Desire(e.device, model, r, &m.numbers.Counter); is {
			wanted, changed = true, append(changed, r.Name)
		}
	}
	if err != nil {
		m.mu.Unlock()
		return nil, err
	}
	for _, r := range reports {
		if e.report.outdated[r.Name] && next.Renew(r.Name, &m.numbers.Counter) {
			delete(e.report.outdated, r.Name)
			changed = append(changed, r.Name)
		}
	}
	slices.Sort(changed)
	changed = slices.Compact(changed)
	c := Change{Namespace: namespace, Name: name}
	c.addChanged(before, next, changed)
	mark := marksNew(&e.twin, next, reports, desired)
	e.twin = *next
	e.report.changed(changed...)
	m.history.add(deviceID, reports, m.opts.Now())
	due := e.report.refresh(reports, m.opts.Now())
	protocol := e.device.Spec.Protocol.ProtocolName
	m.notifyChanged(c)
	var done Stored
	if len(changed) > 0 || mark {
		done = m.persist.enqueue(deviceID)
	} else {
		done = m.persist.settled(deviceID)
	}
	m.mu.Unlock()
	if len(changed) > 0 || due {
		m.uplink.wake.Notify()
	}
	if wanted {
		m.server.Changed(protocol)
	}
	return done, nil
}

// marksNew reports whether a value of an update has a mark that it did not have: a message that waits at an MQTT broker
// is older. The mark is stored although the value is the same, or such a message would apply after a crash.
func marksNew(before, after *twin.Twin, reports, desired []twin.Report) bool {
	isNew := func(was, is *twin.Value) bool { return is != nil && is.Ahead && (was == nil || !was.Ahead) }
	return slices.ContainsFunc(reports, func(r twin.Report) bool {
		return isNew(before.Properties[r.Name].Reported, after.Properties[r.Name].Reported)
	}) || slices.ContainsFunc(desired, func(r twin.Report) bool {
		return isNew(before.Properties[r.Name].Desired, after.Properties[r.Name].Desired)
	})
}

// withTimes returns reports with what is remembered of when they were taken. mu is held.
func (m *Module) withTimes(reports []twin.Report) []twin.Report {
	out := slices.Clone(reports)
	for i := range out {
		out[i].Ahead, out[i].Taken = m.mqtt.stampOf(out[i].Source)
	}
	return out
}

// messageInterval is the shortest time between two messages of a state that stays the same. Each is a write on the
// disk and two in the API, and the text may be another one at each try of a mapper to reach its device.
const messageInterval = time.Minute

// UpdateState applies a state that a mapper or a client on the device reports, with a message that says why the device
// is in it. The error is ErrNotNewer as for Update. Another message of the same state applies within messageInterval.
func (m *Module) UpdateState(namespace, name, state, message string, from twin.Source) (Stored, error) {
	deviceID := id(namespace, name)
	m.mu.Lock()
	e := m.devices[deviceID]
	if e == nil || e.device == nil {
		m.mu.Unlock()
		return nil, errNoDevice(namespace, name)
	}
	if !e.twin.NewerState(from) {
		m.mu.Unlock()
		return nil, fmt.Errorf("device %s: %w", deviceID, ErrNotNewer)
	}
	var later *string
	if state == e.twin.State && m.opts.Now().Before(e.messageTime) {
		if text := devices.MessageOf(state, message); text != e.twin.StateMessage {
			later = &text
		}
		message = e.twin.StateMessage
	}
	changed, err := e.twin.SetState(state, message, m.nowMillis(), &m.numbers.Counter)
	if err == nil && !changed && e.report.outdatedState {
		e.twin.StateVersion, changed = m.numbers.Next(), true
	}
	if err != nil {
		m.mu.Unlock()
		return nil, err
	}
	if later != nil && e.laterMessage == nil {
		m.uplink.wake.Notify() // to set its timer
	}
	e.laterMessage = later
	wasAhead := e.twin.StateAhead
	e.twin.StateAhead, e.twin.StateTaken = m.mqtt.stampOf(from)
	if !changed {
		done := m.persist.settled(deviceID)
		if e.twin.StateAhead && !wasAhead {
			done = m.persist.enqueue(deviceID) // as with marksNew
		}
		m.mu.Unlock()
		return done, nil
	}
	e.report.outdatedState = false
	m.stateChanged(e)
	message = e.twin.StateMessage
	done := m.persist.enqueue(deviceID)
	m.mu.Unlock()
	klog.InfoS("State of a device changed", "device", deviceID, "state", state, "message", message)
	m.uplink.wake.Notify()
	return done, nil
}

// stateChanged marks the state of a device to be sent. mu is held.
func (m *Module) stateChanged(e *entry) {
	e.messageTime = m.opts.Now().Add(messageInterval)
	e.report.stateChanged()
}

// applyMessages applies the messages whose time has come. It returns how long the next one waits; an hour if none does.
// mu is held.
func (m *Module) applyMessages(now time.Time) time.Duration {
	wait := time.Hour
	for _, e := range m.devices {
		switch {
		case e.laterMessage == nil:
		case now.Before(e.messageTime):
			wait = min(wait, e.messageTime.Sub(now))
		default:
			changed, err := e.twin.SetState(e.twin.State, *e.laterMessage, now.UnixMilli(), &m.numbers.Counter)
			e.laterMessage = nil
			if err == nil && changed { // an error is that the twin has no state any more
				m.stateChanged(e)
				m.persist.mark(e.id)
			}
		}
	}
	return wait
}

// Report implements dmi.Twins.
func (m *Module) Report(ctx context.Context, namespace, name string, reports []twin.Report) error {
	stored, err := m.Update(namespace, name, reports, nil)
	if err != nil {
		return err
	}
	return stored(ctx)
}

// ReportState implements dmi.Twins.
func (m *Module) ReportState(ctx context.Context, namespace, name, state, message string) error {
	stored, err := m.UpdateState(namespace, name, state, message, twin.FromNode)
	if err != nil {
		return err
	}
	return stored(ctx)
}

// Protocol implements dmi.Twins.
func (m *Module) Protocol(namespace, name string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.devices[id(namespace, name)]
	if e == nil || e.device == nil {
		return "", errNoDevice(namespace, name)
	}
	return e.device.Spec.Protocol.ProtocolName, nil
}

// Properties returns the twin's properties by name.
func (m *Module) Properties(namespace, name string) (map[string]twin.Property, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.devices[id(namespace, name)]
	if e == nil || e.device == nil {
		return nil, errNoDevice(namespace, name)
	}
	return maps.Clone(e.twin.Properties), nil
}
