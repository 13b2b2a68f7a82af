package devicecontroller

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

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
}

// readReport decodes the content of a report. Properties that the device's spec does not have are left out.
func readReport(d *devices.Device, kind devicemsg.Kind, content []byte) (report, error) {
	if kind == devicemsg.KindState {
		u, err := devicemsg.DecodeStateUpdate(content)
		if err != nil {
			return report{}, err
		}
		s := &state{state: u.Device.State}
		if at, err := time.Parse(time.RFC3339, u.Device.LastOnlineTime); err == nil {
			s.online = at.UTC().Format(time.RFC3339)
		}
		if u.Epoch != "" {
			s.version = u.Epoch + "." + strconv.FormatInt(u.Version, 10)
		}
		return report{state: s}, nil
	}
	u, err := devicemsg.DecodeTwinUpdate(content)
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
			desired:  property(twin.Expected, typ, "", nil),
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
		meta[metaVersion] = epoch + "." + strconv.FormatInt(version.Edge, 10)
	}
	if len(meta) == 0 {
		meta = nil
	}
	return &devices.TwinProperty{Value: text, Metadata: meta}
}

// add puts a newer report on top of an older one.
func (r *report) add(newer report) {
	if r.values == nil {
		r.values = map[string]value{}
	}
	for name, v := range newer.values {
		have := r.values[name]
		if v.desired != nil {
			have.desired = v.desired
		}
		if v.reported != nil && !older(v.reported, have.reported) {
			have.reported = v.reported
		}
		r.values[name] = have
	}
	if newer.state != nil && !(r.state != nil && olderVersion(newer.state.version, r.state.version)) {
		s := *newer.state
		if s.online == "" && r.state != nil {
			s.online = r.state.online
		}
		r.state = &s
	}
}

// older reports whether a value is known to be older than another one of the same property.
func older(v, than *devices.TwinProperty) bool {
	return v != nil && than != nil && olderVersion(v.Metadata[metaVersion], than.Metadata[metaVersion])
}

// olderVersion reports whether a version is lower than another one of the same epoch. Versions of different epochs
// cannot be compared, as a store that was lost begins again; then the later message wins.
func olderVersion(version, than string) bool {
	e1, n1, ok1 := parseVersion(version)
	e2, n2, ok2 := parseVersion(than)
	return ok1 && ok2 && e1 == e2 && n1 < n2
}

func parseVersion(text string) (epoch string, number int64, ok bool) {
	i := strings.LastIndexByte(text, '.')
	if i < 0 {
		return "", 0, false
	}
	number, err := strconv.ParseInt(text[i+1:], 10, 64)
	return text[:i], number, err == nil
}

// apply returns the status of a device with the report. have is not modified. Properties that the spec no longer has
// are removed. changed is false if the status would stay the same.
func (r *report) apply(d *devices.Device, have devices.Status) (next devices.Status, changed bool) {
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
		if v.desired != nil && !sameProperty(v.desired, t.ObservedDesired) {
			t.ObservedDesired = v.desired
			changed = true
		}
		if v.reported != nil && !older(v.reported, t.Reported) && !sameProperty(v.reported, t.Reported) {
			t.Reported = v.reported
			changed = true
		}
	}
	if r.state == nil || olderVersion(r.state.version, stateVersion(have.Extensions)) {
		return next, changed
	}
	if r.state.state != next.State {
		next.State = r.state.state
		changed = true
	}
	if r.state.online != "" && r.state.online != next.LastOnlineTime {
		next.LastOnlineTime = r.state.online
		changed = true
	}
	if changed && r.state.version != "" {
		next.Extensions = withStateVersion(have.Extensions, r.state.version)
	}
	return next, changed
}

// extensionStateVersion is the key of status.extensions that has the version of the state.
const extensionStateVersion = "edgecore.io/state-version"

func stateVersion(extensions json.RawMessage) string {
	var e map[string]json.RawMessage
	var version string
	if json.Unmarshal(extensions, &e) != nil || json.Unmarshal(e[extensionStateVersion], &version) != nil {
		return ""
	}
	return version
}

// withStateVersion sets the version, and keeps the other extensions.
func withStateVersion(extensions json.RawMessage, version string) json.RawMessage {
	e := map[string]any{}
	_ = json.Unmarshal(extensions, &e) // what is not an object is replaced
	if e == nil {
		e = map[string]any{}
	}
	e[extensionStateVersion] = version
	out, err := json.Marshal(e)
	if err != nil { // decoded JSON always encodes
		panic(err)
	}
	return out
}

func sameProperty(a, b *devices.TwinProperty) bool {
	return a != nil && b != nil && a.Value == b.Value && maps.Equal(a.Metadata, b.Metadata)
}
