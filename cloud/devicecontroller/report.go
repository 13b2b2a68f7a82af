package devicecontroller

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
)

// report is what a node has reported about a device: the newest of each property, and the newest state.
type report struct {
	values map[string]value
	state  *state
}

// value is a property in a report. Nil fields were not reported.
type value struct {
	desired, reported *devices.TwinProperty
}

// state is the state in a report.
type state struct {
	state string
	// online is when the device was last online; empty if the node does not say.
	online string
	// version orders the states of a device, as metaVersion its values; empty from KubeEdge's edgecores.
	version string
	// message says why the device is in the state; empty if the node does not say.
	message string
}

// Limits of a report's content in bytes, as JSON. maxProperty is for each property: its fields, twice its name, and
// two values. JSON may write one byte of a text as six (\u0001). maxRest is for everything else.
const (
	maxRest     = 8 << 10
	maxProperty = 512 + 6*(2*devices.MaxNameBytes+2*devices.MaxValueBytes)
)

// maxContent returns how large a report on a device can be. A report has one entry for each property, also of those
// that the spec had a moment ago: it counts some more.
func maxContent(d *devices.Device) int {
	return min(maxRest+(len(d.Spec.Properties)+8)*maxProperty, devicemsg.MaxContent)
}

// readReport decodes the content of a report. Properties that the device's spec does not have are left out.
func readReport(d *devices.Device, kind devicemsg.Kind, content json.RawMessage) (report, error) {
	if limit := maxContent(d); len(content) > limit {
		return report{}, fmt.Errorf("the report has %d bytes, limit %d for a device with %d properties", len(content),
			limit, len(d.Spec.Properties))
	}
	text := (&model.Message{Content: content}).ContentData()
	if kind == devicemsg.KindState {
		u, err := devicemsg.DecodeStateUpdate(text)
		if err != nil {
			return report{}, err
		}
		s := &state{state: u.Device.State, message: u.Message}
		if at, err := time.Parse(time.RFC3339, u.Device.LastOnlineTime); err == nil {
			s.online = at.UTC().Format(time.RFC3339)
		}
		if u.Epoch != "" {
			s.version = devicemsg.FormatVersion(u.Epoch, u.Version)
		}
		return report{state: s}, nil
	}
	u, err := devicemsg.DecodeTwinUpdate(text)
	if err != nil {
		return report{}, err
	}
	r := report{values: map[string]value{}}
	for name, twin := range u.Twin {
		if _, has := d.Property(name); !has || twin == nil {
			continue
		}
		typ := ""
		if twin.Metadata != nil && len(twin.Metadata.Type) <= devices.MaxNameBytes {
			typ = twin.Metadata.Type
		}
		v := value{
			desired:  property(twin.Expected, typ, u.Epoch, twin.ExpectedVersion),
			reported: property(twin.Actual, typ, u.Epoch, twin.ActualVersion),
		}
		if v.desired != nil || v.reported != nil {
			r.values[name] = v
		}
	}
	if len(r.values) == 0 {
		return report{}, fmt.Errorf("none of the reported properties is in the spec of device %s/%s", d.Namespace,
			d.Name)
	}
	return r, nil
}

// metaVersion is the key of the metadata that orders a device's reported values: EPOCH.NUMBER.
const metaVersion = "version"

// property converts a value of a message; nil if there is none.
func property(v *devicemsg.Value, typ, epoch string, version *devicemsg.Version) *devices.TwinProperty {
	text, ok := v.Text()
	if !ok {
		return nil
	}
	meta := map[string]string{}
	if at := v.At(); at != 0 {
		meta[devices.MetaTimestamp] = strconv.FormatInt(at, 10)
	}
	if typ != "" {
		meta[devices.MetaType] = typ
	}
	if epoch != "" && version != nil {
		meta[metaVersion] = devicemsg.FormatVersion(epoch, version.Edge)
	}
	if len(meta) == 0 {
		meta = nil
	}
	return &devices.TwinProperty{Value: text, Metadata: meta}
}

// outdated collects what of a report is older than what is there already, with the versions of the latter.
type outdated struct{ devicemsg.Outdated }

// newest returns the newer one of a value that is there and one that was reported; both may be nil. If the reported one
// is older, it notes the version of the other in late.
func newest(have, reported *devices.TwinProperty, property string, late *map[string]string) *devices.TwinProperty {
	switch {
	case reported == nil:
		return have
	case !older(reported, have):
		return reported
	case *late == nil:
		*late = map[string]string{}
	}
	(*late)[property] = have.Metadata[metaVersion]
	return have
}

// err returns nil if nothing is outdated.
func (o *outdated) err(device string) error {
	if o.Empty() {
		return nil
	}
	o.Message = fmt.Sprintf("device %s: the report is older than what the API has, so that it was not written in "+
		"full: %d values, state %v", device, len(o.Values)+len(o.Desired), o.State != "")
	return &o.Outdated
}

// add puts a newer report on top of an older one. It returns what of the newer one is older nevertheless.
func (r *report) add(newer report) (late outdated) {
	if r.values == nil {
		r.values = map[string]value{}
	}
	for name, v := range newer.values {
		have := r.values[name]
		r.values[name] = value{
			desired:  newest(have.desired, v.desired, name, &late.Desired),
			reported: newest(have.reported, v.reported, name, &late.Values),
		}
	}
	switch {
	case newer.state == nil:
	case r.state != nil && devicemsg.OlderVersion(newer.state.version, r.state.version):
		late.State = r.state.version
	default:
		s := *newer.state
		if s.online == "" && r.state != nil {
			s.online = r.state.online
		}
		r.state = &s
	}
	return late
}

// older reports whether a value is known to be older than another one of the same property.
func older(v, than *devices.TwinProperty) bool {
	return v != nil && than != nil && devicemsg.OlderVersion(v.Metadata[metaVersion], than.Metadata[metaVersion])
}

// apply returns the status of a device with the report. have is not modified. Properties that the spec no longer has
// are removed. changed is false if the status would stay the same. late is what of the report is older than have.
func (r *report) apply(d *devices.Device, have devices.Status) (next devices.Status, changed bool, late outdated) {
	next = have
	next.Twins = nil
	at := map[string]int{}
	for _, t := range have.Twins {
		if _, has := d.Property(t.PropertyName); !has {
			changed = true
			continue
		}
		if _, twice := at[t.PropertyName]; twice {
			changed = true
			continue
		}
		at[t.PropertyName] = len(next.Twins)
		next.Twins = append(next.Twins, t)
	}
	for _, p := range d.Spec.Properties { // in the order of the spec
		v, reported := r.values[p.Name]
		if !reported {
			continue
		}
		i, has := at[p.Name]
		if !has {
			i = len(next.Twins)
			at[p.Name] = i
			next.Twins = append(next.Twins, devices.Twin{PropertyName: p.Name})
			changed = true
		}
		t := &next.Twins[i]
		if now := newest(t.ObservedDesired, v.desired, p.Name, &late.Desired); !sameProperty(now, t.ObservedDesired) {
			t.ObservedDesired = now
			changed = true
		}
		if now := newest(t.Reported, v.reported, p.Name, &late.Values); !sameProperty(now, t.Reported) {
			t.Reported = now
			changed = true
		}
	}
	if r.state == nil {
		return next, changed, late
	}
	version := extension(have.Extensions, extensionStateVersion)
	if devicemsg.OlderVersion(r.state.version, version) {
		late.State = version
		return next, changed, late
	}
	if r.state.state != next.State {
		next.State = r.state.state
		changed = true
	}
	if r.state.online != "" && r.state.online != next.LastOnlineTime {
		next.LastOnlineTime = r.state.online
		changed = true
	}
	if r.state.version != "" && r.state.version != version { // also of the same state: an older one may come late
		next.Extensions = withExtension(next.Extensions, extensionStateVersion, r.state.version)
		changed = true
	}
	if r.state.message != extension(have.Extensions, extensionStateMessage) {
		next.Extensions = withExtension(next.Extensions, extensionStateMessage, r.state.message)
		changed = true
	}
	return next, changed, late
}

// Keys of status.extensions.
const (
	// extensionStateVersion is the version of the state.
	extensionStateVersion = "edgecore.io/state-version"
	// extensionStateMessage says why the device is in its state. There is none for a device that works.
	extensionStateMessage = "edgecore.io/state-message"
)

// decodeExtensions returns extensions by key. What is not an object has none.
func decodeExtensions(extensions json.RawMessage) map[string]json.RawMessage {
	e := map[string]json.RawMessage{}
	if json.Unmarshal(extensions, &e) != nil || e == nil {
		return map[string]json.RawMessage{}
	}
	return e
}

// extension returns the text of an extension; "" if there is none.
func extension(extensions json.RawMessage, key string) (text string) {
	if json.Unmarshal(decodeExtensions(extensions)[key], &text) != nil {
		return ""
	}
	return text
}

// withExtension sets the text of an extension, and keeps the other ones; "" removes it.
func withExtension(extensions json.RawMessage, key, text string) json.RawMessage {
	e := decodeExtensions(extensions)
	delete(e, key)
	if text != "" {
		e[key] = mustEncode(text)
	}
	return mustEncode(e)
}

// mustEncode encodes texts and decoded JSON, which always succeeds.
func mustEncode(v any) json.RawMessage {
	out, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return out
}

func sameProperty(a, b *devices.TwinProperty) bool {
	return a == b || a != nil && b != nil && a.Value == b.Value && maps.Equal(a.Metadata, b.Metadata)
}
