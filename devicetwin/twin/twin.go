// Package twin computes the twin of a device: its state, the values that its mapper reported, and the values that it
// should have. It is pure: it reads no clock, and stores and sends nothing.
//
// The rules where values conflict:
//
//   - The last report of a property wins on the device. Its Version is higher than those of all earlier changes of
//     twins of the node, whatever the wall clock says.
//   - A desired value of the spec applies when it changes in the spec. A desired value that a client on the device sets
//     stands until then: the newest decision wins, wherever it was made.
//   - A desired value of the spec that the cloud withholds, because the model forbids it, is a decision that applies as
//     soon as the model allows it, unless there is a newer one.
//   - Properties that the spec no longer has are removed.
//   - What a broker delivers again, or late, is not news: see Source.
package twin

import (
	"fmt"
	"slices"
	"time"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
)

// Twin is the twin of one device. The store keeps it as JSON.
type Twin struct {
	// UID is that of the Device; a device that was deleted and created again has a new twin.
	UID string `json:"uid,omitempty"`
	// State is "" until the mapper has reported one.
	State        string `json:"state,omitempty"`
	StateVersion int64  `json:"stateVersion,omitempty"`
	// StateMessage says why the device is in its state; "" if it works, or no reason was reported.
	StateMessage string `json:"stateMessage,omitempty"`
	// StateAhead and StateTaken are for the state what Value.Ahead and Value.Taken are for a value.
	StateAhead bool      `json:"stateAhead,omitempty"`
	StateTaken time.Time `json:"-"`
	// LastOnline is when the device was last online, in milliseconds since 1970; 0 is never.
	LastOnline int64 `json:"lastOnline,omitempty"`
	// Properties has the values by name.
	Properties map[string]Property `json:"properties,omitempty"`
}

// Property is the twin of a property.
type Property struct {
	Reported *Value `json:"reported,omitempty"`
	Desired  *Value `json:"desired,omitempty"`
	// Spec is the desired value that the spec had when Desired was last taken from it; nil is none.
	Spec *string `json:"spec,omitempty"`
	// Withheld is set while the newest decision is the spec's, and the cloud withholds it. Then Desired is nil.
	Withheld bool `json:"withheld,omitempty"`
}

// Value is a value. At is in milliseconds since 1970, by the clock of the reader or writer; 0 is unknown.
type Value struct {
	Value   string `json:"value"`
	Type    string `json:"type,omitempty"`
	At      int64  `json:"at,omitempty"`
	Version int64  `json:"version,omitempty"`
	// Ahead is set while messages may wait at an MQTT broker that are older than this value.
	Ahead bool `json:"ahead,omitempty"`
	// Taken is when this process took the value from elsewhere than that broker, by the monotonic clock. It is zero if
	// it did not, or if nothing can wait at a broker.
	Taken time.Time `json:"-"`
}

// Report is a value of a property that a mapper or a client reports, or that a client desires.
type Report struct {
	Name, Value, Type string
	// At is the time of the value in milliseconds since 1970; 0 is unknown.
	At     int64
	Source Source
	// Ahead and Taken are those of the value.
	Ahead bool
	Taken time.Time
}

// Source is the way on which a report or a state has come. It says which is the newer one, the report or what the twin
// has: clocks of devices are wrong too often to compare times where the order is known.
type Source int

// The kinds of Source.
const (
	// FromNode: directly, from a mapper or a program on the node.
	FromNode Source = iota
	// FromSession: through the agent's session at an MQTT broker, without delay.
	FromSession
	// FromWaiting: it may have waited in that session. It is newer than what came through the session before, and than
	// what came on other ways before the session was interrupted. For what is Ahead, its own time has to decide.
	FromWaiting
	// FromRetained: a copy that a broker keeps and delivers at each connection. It may be of any age.
	FromRetained
)

// reportedNewer reports whether a reported value is newer than what the twin has. now is in milliseconds since 1970.
func (r *Report) reportedNewer(have *Value, now int64) bool {
	switch r.Source {
	case FromWaiting:
		return have == nil || !have.Ahead || r.laterThan(have, now)
	case FromRetained:
		return have == nil || r.laterThan(have, now)
	}
	return true
}

// desiredNewer is the same for a desired value. A retained copy never desires anything: a machine would move because a
// connection broke.
func (r *Report) desiredNewer(have *Value, now int64) bool {
	return r.Source != FromRetained && r.reportedNewer(have, now)
}

// laterThan compares the times. A time in the future says nothing.
func (r *Report) laterThan(have *Value, now int64) bool { return r.At > have.At && r.At <= now }

// Newer returns those of reported and desired values that are newer than what the twin has. now is in milliseconds
// since 1970.
func (t *Twin) Newer(reports, desired []Report, now int64) (newReports, newDesired []Report) {
	for _, r := range reports {
		if r.reportedNewer(t.Properties[r.Name].Reported, now) {
			newReports = append(newReports, r)
		}
	}
	for _, r := range desired {
		if r.desiredNewer(t.Properties[r.Name].Desired, now) {
			newDesired = append(newDesired, r)
		}
	}
	return newReports, newDesired
}

// NewerState reports whether a state is newer than what the twin has.
func (t *Twin) NewerState(from Source) bool {
	switch from {
	case FromWaiting:
		return !t.StateAhead
	case FromRetained:
		return false
	}
	return true
}

// MarkAhead marks what was taken after since: messages that are older may arrive later. It reports whether anything is
// marked now that was not.
func (t *Twin) MarkAhead(since time.Time) (changed bool) {
	taken := func(at time.Time) bool { return !at.IsZero() && !at.Before(since) }
	changed = t.setAhead(true, func(v *Value) bool { return taken(v.Taken) })
	if !t.StateAhead && taken(t.StateTaken) {
		t.StateAhead, changed = true, true
	}
	return changed
}

// setAhead sets Ahead of those values for which of returns true. It reports whether any changed.
func (t *Twin) setAhead(ahead bool, of func(*Value) bool) (changed bool) {
	set := func(v *Value) *Value {
		if v == nil || v.Ahead == ahead || !of(v) {
			return v
		}
		changed = true
		out := *v
		out.Ahead = ahead
		return &out
	}
	for name, p := range t.Properties {
		p.Reported, p.Desired = set(p.Reported), set(p.Desired)
		t.Properties[name] = p
	}
	return changed
}

// TakeDesired sets Ahead and Taken of desired values that the spec has changed.
func (t *Twin) TakeDesired(names []string, ahead bool, at time.Time) {
	for _, name := range names {
		p := t.Properties[name]
		if p.Desired == nil {
			continue
		}
		v := *p.Desired
		v.Ahead, v.Taken = ahead, at
		p.Desired = &v
		t.Properties[name] = p
	}
}

// UnmarkAhead undoes MarkAhead when nothing waits at the broker any more. It reports whether anything was marked.
func (t *Twin) UnmarkAhead() (changed bool) {
	changed = t.setAhead(false, func(*Value) bool { return true }) || t.StateAhead
	t.StateAhead = false
	return changed
}

// Clone returns a deep copy.
func (t *Twin) Clone() *Twin {
	out := *t
	out.Properties = make(map[string]Property, len(t.Properties))
	for name, p := range t.Properties {
		out.Properties[name] = p // values are never modified, only replaced
	}
	return &out
}

// Counter numbers the changes of all twins of a node. It must outlive twins: a device that leaves the node and returns
// has a new twin, and the API still has the versions of the one before.
type Counter struct {
	// Last is the highest number that was given out.
	Last int64
}

// Next returns a number that is higher than all before.
func (c *Counter) Next() int64 {
	c.Last++
	return c.Last
}

// Highest returns the highest version in the twin.
func (t *Twin) Highest() int64 {
	out := t.StateVersion
	for _, p := range t.Properties {
		for _, v := range []*Value{p.Reported, p.Desired} {
			if v != nil {
				out = max(out, v.Version)
			}
		}
	}
	return out
}

// SetSpec applies the spec of the device: a twin of another device of that name is replaced, removed properties go, and
// desired values that the spec has changed apply. It reports whether the twin changed, and which desired values did.
func (t *Twin) SetSpec(d *devices.Device, at int64, c *Counter) (changed bool, desired []string) {
	if t.UID != string(d.UID) {
		*t = Twin{UID: string(d.UID)}
		changed = true
	}
	for name := range t.Properties {
		if _, has := d.Property(name); !has {
			delete(t.Properties, name)
			changed = true
		}
	}
	for _, spec := range d.Spec.Properties {
		p := t.Properties[spec.Name]
		want, withheld := desiredOf(&spec)
		if !p.concerns(want, withheld) {
			continue
		}
		p = Property{Reported: p.Reported, Withheld: withheld}
		if want != nil {
			p.Spec = &want.Value
		}
		if want != nil && !withheld {
			p.Desired = &Value{Value: want.Value, Type: want.Metadata[devices.MetaType], At: at, Version: c.Next()}
		}
		t.set(spec.Name, p)
		changed = true
		desired = append(desired, spec.Name)
	}
	slices.Sort(desired)
	return changed, desired
}

// concerns reports whether a desired value of the spec changes the property: it is another than before, or the newest
// decision is the spec's and is withheld from now on, or no longer.
func (p *Property) concerns(want *devices.TwinProperty, withheld bool) bool {
	switch {
	case want == nil || p.Spec == nil:
		return want != nil || p.Spec != nil
	case want.Value != *p.Spec:
		return true
	case withheld:
		return p.Desired != nil && p.Desired.Value == want.Value
	}
	return p.Withheld
}

// desiredOf returns the desired value of the spec, and whether the cloud withholds it. KubeEdge writes an empty one
// without metadata for none.
func desiredOf(p *devices.DeviceProperty) (want *devices.TwinProperty, withheld bool) {
	if p.Desired == nil || p.Desired.Value == "" && len(p.Desired.Metadata) == 0 {
		return p.Withheld, p.Withheld != nil
	}
	return p.Desired, false
}

func (t *Twin) set(name string, p Property) {
	if t.Properties == nil {
		t.Properties = map[string]Property{}
	}
	t.Properties[name] = p
}

// Reported applies reported values, and returns the properties whose value changed. A value that is the same again
// changes nothing but its time. Nothing is applied if one of the reports is invalid.
func (t *Twin) Reported(d *devices.Device, reports []Report, c *Counter) (changed []string, err error) {
	for _, r := range reports {
		if _, has := d.Property(r.Name); !has {
			return nil, fmt.Errorf("device %s/%s has no property %.128q: add it to "+
				"spec.properties", d.Namespace, d.Name,
				r.Name)
		}
		if err := devices.CheckValue(r.Value); err != nil {
			return nil, fmt.Errorf("device %s/%s, property %s: %w", d.Namespace, d.Name, r.Name, err)
		}
		if len(r.Type) > devices.MaxNameBytes {
			return nil, fmt.Errorf("device %s/%s, property %s: the type has %d bytes, limit %d", d.Namespace, d.Name,
				r.Name, len(r.Type), devices.MaxNameBytes)
		}
	}
	for _, r := range reports {
		p := t.Properties[r.Name]
		v := &Value{Value: r.Value, Type: r.Type, At: r.At, Ahead: r.Ahead, Taken: r.Taken}
		if have := p.Reported; have != nil && have.Value == r.Value && have.Type == r.Type {
			v.Version = have.Version
		} else {
			v.Version = c.Next()
			changed = append(changed, r.Name)
		}
		p.Reported = v
		t.set(r.Name, p)
	}
	slices.Sort(changed)
	return slices.Compact(changed), nil
}

// Renew gives the reported value of a property a new version. It reports whether there is a value.
func (t *Twin) Renew(name string, c *Counter) bool {
	p := t.Properties[name]
	if p.Reported == nil {
		return false
	}
	v := *p.Reported
	v.Version = c.Next()
	p.Reported = &v
	t.set(name, p)
	return true
}

// RenewDesired is Renew for the desired value.
func (t *Twin) RenewDesired(name string, c *Counter) bool {
	p := t.Properties[name]
	if p.Desired == nil {
		return false
	}
	v := *p.Desired
	v.Version = c.Next()
	p.Desired = &v
	t.set(name, p)
	return true
}

// Desire sets a desired value for a client on the device, until the spec changes it. The model, nil if the node does
// not have it, decides which values may be set. It reports whether it changed.
func (t *Twin) Desire(d *devices.Device, model *devices.DeviceModel, r Report, c *Counter) (
	changed bool, err error,
) {
	if _, has := d.Property(r.Name); !has {
		return false, fmt.Errorf("device %s/%s has no property %.128q: add it to spec.properties", d.Namespace, d.Name,
			r.Name)
	}
	if err := model.CheckDesired(r.Name, r.Value); err != nil {
		return false, fmt.Errorf("device %s/%s: %w", d.Namespace, d.Name, err)
	}
	p := t.Properties[r.Name]
	if p.Desired != nil && p.Desired.Value == r.Value {
		again := *p.Desired
		again.Ahead, again.Taken = r.Ahead, r.Taken
		p.Desired = &again
		t.set(r.Name, p)
		return false, nil
	}
	p.Desired = &Value{
		Value: r.Value, Type: r.Type, At: r.At, Version: c.Next(), Ahead: r.Ahead, Taken: r.Taken,
	}
	p.Withheld = false
	t.set(r.Name, p)
	return true, nil
}

// SetState applies a reported state with its message, and reports whether one of them changed. The message may have any
// bytes: devices.MessageOf says what stays of it. at is now, in milliseconds since 1970.
func (t *Twin) SetState(state, message string, at int64, c *Counter) (changed bool, err error) {
	if err := devices.CheckState(state); err != nil {
		return false, err
	}
	message = devices.MessageOf(state, message)
	if devices.Works(state) {
		t.LastOnline = at
	}
	if t.State == state && t.StateMessage == message {
		return false, nil
	}
	t.State, t.StateMessage, t.StateVersion = state, message, c.Next()
	return true, nil
}

// Desired returns the device as its mapper should have it: with the desired values of the twin that its model allows. A
// model may have changed after a value was set, and a cloud may send values unchecked. d is not modified.
func (t *Twin) Desired(d *devices.Device, model *devices.DeviceModel) *devices.Device {
	out := *d
	out.Spec.Properties = slices.Clone(d.Spec.Properties)
	for i := range out.Spec.Properties {
		p := &out.Spec.Properties[i]
		p.Withheld = nil
		have := t.Properties[p.Name]
		switch {
		case have.Desired == nil || model.CheckDesired(p.Name, have.Desired.Value) != nil:
			p.Desired = nil
		case p.Desired == nil || p.Desired.Value != have.Desired.Value:
			p.Desired = &devices.TwinProperty{Value: have.Desired.Value}
			if have.Desired.Type != "" {
				p.Desired.Metadata = map[string]string{devices.MetaType: have.Desired.Type}
			}
		}
	}
	return &out
}
