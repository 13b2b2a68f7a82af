// Package twin decides what the twin of a device says: its state, the values that its mapper reported, and the values
// that it should have. It is pure: it reads no clock, and stores and sends nothing.
//
// The rules where values conflict:
//
//   - The last report of a property wins on the device. Its Version is higher than those of all earlier changes of
//     twins of the node, whatever the wall clock says.
//   - A desired value of the spec applies when it changes in the spec. A desired value that a client on the device sets
//     stands until then: the newest decision wins, wherever it was made.
//   - Properties that the spec no longer has are removed.
package twin

import (
	"fmt"
	"slices"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
)

// Twin is the twin of one device. The store keeps it as JSON.
type Twin struct {
	// UID is that of the Device; a device that was deleted and created again has a new twin.
	UID string `json:"uid,omitempty"`
	// State is "" until the mapper has reported one.
	State        string `json:"state,omitempty"`
	StateVersion int64  `json:"stateVersion,omitempty"`
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
}

// Value is a value. At is in milliseconds since 1970, by the clock of the reader or writer; 0 is unknown.
type Value struct {
	Value   string `json:"value"`
	Type    string `json:"type,omitempty"`
	At      int64  `json:"at,omitempty"`
	Version int64  `json:"version,omitempty"`
}

// Report is a value of a property that a mapper or a client reports.
type Report struct {
	Name, Value, Type string
	At                int64
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
		want := desiredOf(&spec)
		if equal(want, p.Spec) {
			continue
		}
		p.Spec = want
		if want == nil {
			p.Desired = nil
		} else {
			p.Desired = &Value{Value: *want, Type: spec.Desired.Metadata[devices.MetaType], At: at, Version: c.Next()}
		}
		t.set(spec.Name, p)
		changed = true
		desired = append(desired, spec.Name)
	}
	slices.Sort(desired)
	return changed, desired
}

// desiredOf returns the desired value of the spec. KubeEdge writes an empty one without metadata for none.
func desiredOf(p *devices.DeviceProperty) *string {
	if p.Desired == nil || p.Desired.Value == "" && len(p.Desired.Metadata) == 0 {
		return nil
	}
	return &p.Desired.Value
}

func equal(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

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
		v := &Value{Value: r.Value, Type: r.Type, At: r.At}
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

// Desire sets a desired value for a client on the device, until the spec changes it. model may be nil: then the value
// is not checked. It reports whether it changed.
func (t *Twin) Desire(d *devices.Device, model *devices.DeviceModel, r Report, c *Counter) (
	changed bool, err error,
) {
	if _, has := d.Property(r.Name); !has {
		return false, fmt.Errorf("device %s/%s has no property %.128q: add it to spec.properties", d.Namespace, d.Name,
			r.Name)
	}
	if model != nil {
		if rules, has := model.Property(r.Name); has {
			if err := rules.CheckDesired(r.Value); err != nil {
				return false, fmt.Errorf("device %s/%s: %w", d.Namespace, d.Name, err)
			}
		}
	}
	if err := devices.CheckValue(r.Value); err != nil {
		return false, fmt.Errorf("device %s/%s, property %s: %w", d.Namespace, d.Name, r.Name, err)
	}
	p := t.Properties[r.Name]
	if p.Desired != nil && p.Desired.Value == r.Value {
		return false, nil
	}
	p.Desired = &Value{Value: r.Value, Type: r.Type, At: r.At, Version: c.Next()}
	t.set(r.Name, p)
	return true, nil
}

// SetState applies a reported state, and reports whether it changed. at is now, in milliseconds since 1970.
func (t *Twin) SetState(state string, at int64, c *Counter) (changed bool, err error) {
	if err := devices.CheckState(state); err != nil {
		return false, err
	}
	if state == devices.StateOnline || state == devices.StateOK {
		t.LastOnline = at
	}
	if t.State == state {
		return false, nil
	}
	t.State, t.StateVersion = state, c.Next()
	return true, nil
}

// Desired returns the device as its mapper should have it: with the desired values of the twin. d is not modified.
func (t *Twin) Desired(d *devices.Device) *devices.Device {
	out := *d
	out.Spec.Properties = slices.Clone(d.Spec.Properties)
	for i := range out.Spec.Properties {
		p := &out.Spec.Properties[i]
		have := t.Properties[p.Name]
		switch {
		case have.Desired == nil:
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
