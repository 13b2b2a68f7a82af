package devicecontroller

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
)

// sensor returns a device with the properties temp and fan, bound to node n1.
func sensor() *devices.Device {
	d := &devices.Device{Spec: devices.DeviceSpec{
		NodeName:       "n1",
		DeviceModelRef: devices.ModelRef{Name: "m"},
		Properties:     []devices.DeviceProperty{{Name: "temp"}, {Name: "fan"}},
		Protocol:       devices.ProtocolConfig{ProtocolName: "modbus"},
	}}
	d.Namespace, d.Name, d.UID = "shop", "sensor", "u1"
	return d
}

func twinReport(t *testing.T, content string) report {
	t.Helper()
	r, err := readReport(sensor(), devicemsg.KindTwin, []byte(content))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func versioned(value, version string) *devices.TwinProperty {
	return &devices.TwinProperty{Value: value, Metadata: map[string]string{"timestamp": "5", "version": version}}
}

func TestReadReport(t *testing.T) {
	r := twinReport(t, `{"twin":{"temp":{"actual":{"value":"21","metadata":{"timestamp":5}},"expected":{"value":"20"},
"metadata":{"type":"INT"},"actual_version":{"cloud":0,"edge":3},"expected_version":{"edge":2}},"pressure":{"actual":{"value":"1"}},"fan":null},
"epoch":"e"}`)
	want := report{values: map[string]value{"temp": {
		desired: &devices.TwinProperty{Value: "20", Metadata: map[string]string{"type": "INT", "version": "e.2"}},
		reported: &devices.TwinProperty{Value: "21", Metadata: map[string]string{
			"timestamp": "5", "type": "INT", "version": "e.3",
		}},
	}}}
	if diff := cmp.Diff(want, r, cmp.AllowUnexported(report{}, value{}, state{})); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	for content, problem := range map[string]string{
		`{"twin":{"pressure":{"actual":{"value":"1"}}}}`: "none of the reported properties is in the spec of device",
		`{"twin":{"temp":{}}}`:                           "none of the reported properties",
		`nonsense`:                                       "twin update",
	} {
		_, err := readReport(sensor(), devicemsg.KindTwin, []byte(content))
		if err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v, want %q", content, err, problem)
		}
	}
	r, err := readReport(sensor(), devicemsg.KindState, []byte(`{"device":{"state":"online","lastOnlineTime":
"2026-01-01T01:00:00+01:00"},"epoch":"e","version":4}`))
	if err != nil || *r.state != (state{"online", "2026-01-01T00:00:00Z", "e.4", ""}) {
		t.Errorf("state %+v, %v; want online since 2026-01-01T00:00:00Z as e.4", r.state, err)
	}
	r, err = readReport(sensor(), devicemsg.KindState, []byte(`{"device":{"state":"offline"},"message":"no\tanswer"}`))
	if err != nil || *r.state != (state{"offline", "", "", "no answer"}) {
		t.Errorf("state %+v, %v; want offline with the message no answer", r.state, err)
	}
}

// TestApply: the newest value wins, whatever the order of the writes.
func TestApply(t *testing.T) {
	have := devices.Status{
		Twins: []devices.Twin{
			{PropertyName: "gone", Reported: versioned("1", "e.1")},
			{PropertyName: "temp", Reported: versioned("20", "e.7")},
		},
		State:      "online",
		Extensions: json.RawMessage(`{"a":1,"edgecore.io/state-version":"e.9"}`),
	}
	temp := func(v, version string) report {
		return report{values: map[string]value{"temp": {reported: versioned(v, version)}}}
	}
	for name, tc := range map[string]struct {
		r     report
		value string
	}{
		"newer":         {temp("21", "e.8"), "21"},
		"older":         {temp("19", "e.6"), "20"},
		"another store": {temp("19", "f.1"), "19"},
		"not versioned": {report{values: map[string]value{"temp": {reported: &devices.TwinProperty{Value: "5"}}}}, "5"},
	} {
		next, changed, late := tc.r.apply(sensor(), have)
		if got := late.Values["temp"] == "e.7"; got != (name == "older") {
			t.Errorf("%s: outdated %+v; want e.7 of temp for the older one alone", name, late)
		}
		if len(next.Twins) != 1 || next.Twins[0].Reported.Value != tc.value || !changed {
			t.Errorf("%s: %+v, changed %v; want temp %s alone, and a change as gone is removed", name, next.Twins,
				changed, tc.value)
		}
	}
	if have.Twins[1].Reported.Value != "20" {
		t.Error("apply modified the status that it was given")
	}
	r := report{state: &state{"offline", "2026-01-01T00:00:00Z", "e.10", "no \"answer\""}}
	next, changed, _ := r.apply(sensor(), have)
	if next.State != "offline" || next.LastOnlineTime != "2026-01-01T00:00:00Z" || !changed ||
		string(next.Extensions) != `{"a":1,"edgecore.io/state-message":"no \"answer\"","edgecore.io/state-version":"e.10"}` {
		t.Errorf("state: %+v, %v; want offline with its message, and the other extension kept", next, changed)
	}
	for _, tc := range []struct {
		message, want string
		changed       bool
	}{
		{`no "answer"`, `{"a":1,"edgecore.io/state-message":"no \"answer\"","edgecore.io/state-version":"e.10"}`, false},
		{"refused", `{"a":1,"edgecore.io/state-message":"refused","edgecore.io/state-version":"e.10"}`, true},
		{"", `{"a":1,"edgecore.io/state-version":"e.10"}`, true},
	} {
		r := report{state: &state{"offline", "2026-01-01T00:00:00Z", "e.10", tc.message}}
		again, changed, _ := r.apply(sensor(), next)
		if changed != tc.changed || string(again.Extensions) != tc.want {
			t.Errorf("message %q: %s, changed %v; want %s, %v", tc.message, again.Extensions, changed, tc.want,
				tc.changed)
		}
	}
	r.state.version = "e.8"
	if next, _, late := r.apply(sensor(), have); late.State != "e.9" || next.State != "online" {
		t.Errorf("an older state replaced a newer one: %+v", next)
	}
	r.state = &state{"online", "", "e.12", ""}
	if next, changed, _ = r.apply(sensor(), have); !changed ||
		extension(next.Extensions, extensionStateVersion) != "e.12" {
		t.Errorf("the same state with a newer version: %s, changed %v; want that the version is kept", next.Extensions,
			changed)
	}
	desired := report{values: map[string]value{"temp": {desired: versioned("5", "e.3")}}}
	next, _, _ = desired.apply(sensor(), have)
	desired.values["temp"] = value{desired: versioned("4", "e.2")}
	if next, changed, late := desired.apply(sensor(), next); changed || late.Desired["temp"] != "e.3" ||
		next.Twins[0].ObservedDesired.Value != "5" {
		t.Errorf("an older desired value: %+v, changed %v, outdated %+v; want 5 kept, and e.3 as outdated", next.Twins,
			changed, late)
	}
	same := report{values: map[string]value{"temp": {reported: versioned("20", "e.7")}}}
	if _, changed, _ := same.apply(sensor(), devices.Status{Twins: have.Twins[1:]}); changed {
		t.Error("the same value again is a change, want none")
	}
}

// TestAdd: reports that wait are merged, and an older one that comes late replaces nothing.
func TestAdd(t *testing.T) {
	var r report
	r.add(twinReport(t, `{"twin":{"temp":{"actual":{"value":"1"},"actual_version":{"edge":1}}},"epoch":"e"}`))
	r.add(twinReport(t, `{"twin":{"temp":{"actual":{"value":"3"},"actual_version":{"edge":3}},
"fan":{"expected":{"value":"on"}}},"epoch":"e"}`))
	late := r.add(twinReport(t, `{"twin":{"temp":{"actual":{"value":"2"},"actual_version":{"edge":2}}},"epoch":"e"}`))
	if late.Values["temp"] != "e.3" {
		t.Errorf("outdated %+v, want e.3 of temp", late)
	}
	r.add(report{state: &state{"online", "t", "e.4", ""}})
	r.add(report{state: &state{"offline", "", "e.5", "no answer"}})
	if late = r.add(report{state: &state{"ok", "", "e.1", ""}}); late.State != "e.5" {
		t.Errorf("outdated %+v, want the state e.5", late)
	}
	if got := r.values["temp"].reported.Value; got != "3" {
		t.Errorf("temp = %s, want 3", got)
	}
	if got := r.values["fan"].desired.Value; got != "on" {
		t.Errorf("fan = %s, want on", got)
	}
	if *r.state != (state{"offline", "t", "e.5", "no answer"}) {
		t.Errorf("state %+v, want offline with its message, and when it was online kept", r.state)
	}
}
