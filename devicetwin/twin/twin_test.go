package twin

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func device(desired ...string) *devices.Device {
	d := &devices.Device{Spec: devices.DeviceSpec{Properties: []devices.DeviceProperty{{Name: "temp"}, {Name: "fan"}}}}
	d.Namespace, d.Name, d.UID = "shop", "sensor", "u1"
	for i, v := range desired {
		if v != "" {
			d.Spec.Properties[i].Desired = &devices.TwinProperty{Value: v}
		}
	}
	return d
}

// TestSpecAndClients: the newest decision on a desired value wins, whether the spec or a client made it.
func TestSpecAndClients(t *testing.T) {
	var tw Twin
	var c Counter
	model := &devices.DeviceModel{Spec: devices.DeviceModelSpec{Properties: []devices.ModelProperty{
		{Name: "fan", Type: devices.TypeInt, Maximum: "9"},
	}}}
	spec := func(want string, d *devices.Device) {
		t.Helper()
		tw.SetSpec(d, 1, &c)
		got := ""
		if p := tw.Properties["fan"]; p.Desired != nil {
			got = p.Desired.Value
		}
		if got != want {
			t.Errorf("fan is to be %q, want %q", got, want)
		}
	}
	spec("5", device("", "5"))
	if changed, err := tw.Desire(device("", "5"), model, Report{Name: "fan", Value: "7"}, &c); !changed || err != nil {
		t.Errorf("Desire = %v, %v; want a change", changed, err)
	}
	spec("7", device("", "5")) // the spec says the same as before
	spec("6", device("", "6"))
	spec("", device())
	if got := tw.Desired(device("", "6"), model).Spec.Properties[1].Desired; got != nil {
		t.Errorf("the mapper gets %+v, want no desired value", got)
	}
	if _, err := tw.Desire(device(), model, Report{Name: "none", Value: "1"}, &c); err == nil {
		t.Error("Desire of an unknown property = nil, want an error")
	}
	for _, tc := range []struct {
		model          *devices.DeviceModel
		property, text string
	}{
		{model, "fan", "out of range"},
		{model, "temp", "not in the DeviceModel"},
		{nil, "fan", "DeviceModel of the device is missing"},
	} {
		_, err := tw.Desire(device(), tc.model, Report{Name: tc.property, Value: "10"}, &c)
		if err == nil || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("Desire %s = 10: %v, want %q", tc.property, err, tc.text)
		}
	}
	spec("8", device("", "8"))
	lower := &devices.DeviceModel{Spec: devices.DeviceModelSpec{Properties: []devices.ModelProperty{
		{Name: "fan", Type: devices.TypeInt, Maximum: "7"},
	}}}
	for what, m := range map[string]*devices.DeviceModel{"a lower maximum": lower, "no model": nil} {
		if got := tw.Desired(device("", "8"), m).Spec.Properties[1].Desired; got != nil {
			t.Errorf("with %s the mapper gets %+v, want no desired value", what, got)
		}
	}
	if got := tw.Desired(device("", "8"), model).Spec.Properties[1].Desired; got == nil || got.Value != "8" {
		t.Errorf("the mapper gets %+v, want 8", got)
	}
	was := tw.Properties["fan"].Desired.Version
	if !tw.RenewDesired("fan", &c) || tw.Properties["fan"].Desired.Version <= was || tw.RenewDesired("temp", &c) {
		t.Errorf("renewed twin %+v; want a higher version than %d of fan alone", tw.Properties, was)
	}
	again := device("", "6")
	again.UID = "u2"
	tw.SetSpec(again, 1, &c)
	if tw.UID != "u2" || tw.Properties["fan"].Desired.Value != "6" || tw.Highest() < 4 {
		t.Errorf("twin of a device that was created again: %+v, want UID u2, fan 6 and a version that goes on", tw)
	}
}

// TestWithheld: a desired value that the cloud withholds applies to no machine, and neither it nor its return replaces
// what a client has decided since.
func TestWithheld(t *testing.T) {
	withheld := func(value string) *devices.Device {
		d := device()
		d.Spec.Properties[1].Withheld = &devices.TwinProperty{Value: value}
		return d
	}
	model := &devices.DeviceModel{Spec: devices.DeviceModelSpec{Properties: []devices.ModelProperty{
		{Name: "fan", Type: devices.TypeInt},
	}}}
	client := func(tw *Twin, value string) {
		t.Helper()
		if _, err := tw.Desire(device(), model, Report{Name: "fan", Value: value}, &Counter{Last: 100}); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		steps []any // a device of the cloud, or a value that a client sets
		want  []string
	}{
		"withheld at first": {
			[]any{withheld("5"), device("", "5")}, []string{"", "5"},
		},
		"withheld for a while": {
			[]any{device("", "5"), withheld("5"), device("", "5")}, []string{"5", "", "5"},
		},
		"withheld twice": {
			[]any{withheld("5"), withheld("5"), withheld("6")}, []string{"", "", ""},
		},
		"withheld and removed": {
			[]any{device("", "5"), withheld("5"), device()}, []string{"5", "", ""},
		},
		"a client decided before": {
			[]any{device("", "5"), "7", withheld("5"), device("", "5")}, []string{"5", "7", "7", "7"},
		},
		"a client decided meanwhile": {
			[]any{device("", "5"), withheld("5"), "7", device("", "5")}, []string{"5", "", "7", "7"},
		},
		"a client agrees": {
			[]any{withheld("5"), "5", device("", "5")}, []string{"", "5", "5"},
		},
		"a new value is withheld": {
			[]any{device("", "5"), "7", withheld("9"), device("", "9")}, []string{"5", "7", "", "9"},
		},
		"a client decides after that": {
			[]any{device("", "5"), withheld("9"), "7", device("", "9")}, []string{"5", "", "7", "7"},
		},
		"another value is then allowed": {
			[]any{withheld("9"), "7", device("", "5")}, []string{"", "7", "5"},
		},
	} {
		var tw Twin
		var c Counter
		for i, step := range tc.steps {
			d := device()
			switch step := step.(type) {
			case string:
				client(&tw, step)
			case *devices.Device:
				before := tw.Clone()
				d = step
				changed, _ := tw.SetSpec(d, 1, &c)
				if changed == cmp.Equal(before.Properties, tw.Properties) && i > 0 {
					t.Errorf("%s, step %d: SetSpec says changed = %v of %+v", name, i, changed, tw)
				}
			}
			got := ""
			if p := tw.Properties["fan"]; p.Desired != nil {
				got = p.Desired.Value
			}
			if got != tc.want[i] {
				t.Errorf("%s, step %d: fan is to be %q, want %q", name, i, got, tc.want[i])
			}
			for _, p := range tw.Desired(d, model).Spec.Properties {
				if p.Withheld != nil || p.Name == "fan" && (p.Desired != nil) != (got != "") {
					t.Errorf("%s, step %d: the mapper gets %+v, want %q", name, i, p, got)
				}
			}
		}
	}
}

// TestReported: values change with their versions; the same value again keeps its version.
func TestReported(t *testing.T) {
	var tw Twin
	var c Counter
	d := device()
	changed, err := tw.Reported(d, []Report{{Name: "temp", Value: "1", At: 10}, {Name: "fan", Value: "x", At: 10}}, &c)
	if diff := cmp.Diff([]string{"fan", "temp"}, changed); diff != "" || err != nil {
		t.Errorf("changed (-want +got):\n%s, %v", diff, err)
	}
	changed, err = tw.Reported(d, []Report{{Name: "temp", Value: "1", At: 5}, {Name: "fan", Value: "y", At: 11}}, &c)
	if diff := cmp.Diff([]string{"fan"}, changed); diff != "" || err != nil {
		t.Errorf("changed (-want +got):\n%s, %v", diff, err)
	}
	want := map[string]Property{
		"temp": {Reported: &Value{Value: "1", At: 5, Version: 1}},
		"fan":  {Reported: &Value{Value: "y", At: 11, Version: 3}},
	}
	if diff := cmp.Diff(want, tw.Properties); diff != "" {
		t.Errorf("properties (-want +got):\n%s", diff)
	}
	before := tw.Clone()
	for _, bad := range [][]Report{
		{{Name: "temp", Value: "2"}, {Name: "none", Value: "1"}},
		{{Name: "temp", Value: strings.Repeat("x", 513)}},
		{{Name: "temp", Value: "2", Type: strings.Repeat("x", 129)}},
	} {
		if _, err := tw.Reported(d, bad, &c); err == nil {
			t.Errorf("Reported(%.80v) = nil, want an error", bad)
		}
	}
	if diff := cmp.Diff(before, &tw); diff != "" {
		t.Errorf("an invalid report changed the twin:\n%s", diff)
	}
	if !tw.Renew("temp", &c) || tw.Properties["temp"].Reported.Version != 4 || tw.Highest() != 4 ||
		before.Properties["temp"].Reported.Version != 1 || tw.Renew("none", &c) {
		t.Errorf("renewed twin %+v; want version 4 of temp, and the copy of before as it was", tw.Properties)
	}
}

func TestSetState(t *testing.T) {
	var tw Twin
	var c Counter
	for _, tc := range []struct {
		state, message string
		at             int64
		changed        bool
		online         int64
		want           string // the message
	}{
		{"online", "", 5, true, 5, ""},
		{"online", "it works", 6, false, 6, ""},
		{"offline", "no\x00 answer \xff", 7, true, 6, "no answer"},
		{"offline", "no answer", 8, false, 6, "no answer"},
		{"offline", strings.Repeat("x", 1<<16), 9, true, 6, strings.Repeat("x", 253) + "..."},
		{"offline", "", 10, true, 6, ""},
		{"unhealthy", "busy", 11, true, 6, "busy"},
		{"ok", "busy", 12, true, 12, ""},
	} {
		before := tw.StateVersion
		changed, err := tw.SetState(tc.state, tc.message, tc.at, &c)
		if changed != tc.changed || err != nil || tw.LastOnline != tc.online || tw.StateMessage != tc.want ||
			(tw.StateVersion > before) != changed {
			t.Errorf("%s at %d: %v, %v, %+v; want %v, last online %d, and the message %q", tc.state, tc.at, changed,
				err, tw, tc.changed, tc.online, tc.want)
		}
	}
	if _, err := tw.SetState("dead", "x", 13, &c); err == nil || tw.State != "ok" || tw.StateMessage != "" {
		t.Errorf("state dead = %v, %+v; want an error, and ok kept", err, tw)
	}
}

// TestJSON: a twin survives its store.
func TestJSON(t *testing.T) {
	var tw, got Twin
	var c Counter
	tw.SetSpec(device("", "5"), 1, &c)
	if _, err := tw.Reported(device(), []Report{{Name: "temp", Value: "1", At: 10, Type: "INT"}}, &c); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(&tw)
	if err == nil {
		err = json.Unmarshal(data, &got)
	}
	if diff := cmp.Diff(tw, got); diff != "" || err != nil {
		t.Errorf("twin (-want +got):\n%s, %v", diff, err)
	}
}

// TestNewer: which reports and desired values are newer than what the twin has, by the way on which they came.
func TestNewer(t *testing.T) {
	const now = 1000
	for _, test := range []struct {
		name               string
		have               *Value
		source             Source
		at                 int64
		reported, expected bool
	}{
		{"a mapper whose clock is behind", &Value{At: 500}, FromNode, 400, true, true},
		{"a mapper while messages wait", &Value{At: 500, Ahead: true}, FromNode, 400, true, true},
		{"live", &Value{At: 500}, FromSession, 400, true, true},
		{"waited, first value", nil, FromWaiting, 0, true, true},
		{"waited, nothing since", &Value{At: 500}, FromWaiting, 0, true, true},
		{"waited, overtaken", &Value{At: 500, Ahead: true}, FromWaiting, 0, false, false},
		{"waited, overtaken, older", &Value{At: 500, Ahead: true}, FromWaiting, 500, false, false},
		{"waited, newer by its time", &Value{At: 500, Ahead: true}, FromWaiting, 501, true, true},
		{"waited, of the future", &Value{At: 500, Ahead: true}, FromWaiting, 1001, false, false},
		{"retained, first value", nil, FromRetained, 0, true, false},
		{"retained, without a time", &Value{At: 500}, FromRetained, 0, false, false},
		{"retained, older", &Value{At: 500}, FromRetained, 500, false, false},
		{"retained, newer by its time", &Value{At: 500}, FromRetained, 501, true, false},
		{"retained, of the future", &Value{At: 500}, FromRetained, 1001, false, false},
	} {
		tw := Twin{Properties: map[string]Property{"p": {Reported: test.have, Desired: test.have}}}
		list := []Report{{Name: "p", Value: "1", At: test.at, Source: test.source}}
		reports, desired := tw.Newer(list, list, now)
		if got := len(reports) > 0; got != test.reported {
			t.Errorf("%s: reported value newer = %v, want %v", test.name, got, test.reported)
		}
		if got := len(desired) > 0; got != test.expected {
			t.Errorf("%s: desired value newer = %v, want %v", test.name, got, test.expected)
		}
	}
	for source, want := range map[Source][2]bool{
		FromNode: {true, true}, FromSession: {true, true}, FromWaiting: {true, false}, FromRetained: {false, false},
	} {
		got := [2]bool{(&Twin{}).NewerState(source), (&Twin{StateAhead: true}).NewerState(source)}
		if got != want {
			t.Errorf("state from source %d newer = %v, want %v (not ahead, ahead)", source, got, want)
		}
	}
}

// TestMarkAhead: what was taken after a moment is marked, and nothing else.
func TestMarkAhead(t *testing.T) {
	begun := time.Now()
	value := func(taken time.Time) *Value { return &Value{Value: "1", Taken: taken} }
	tw := Twin{StateTaken: begun.Add(-time.Second), Properties: map[string]Property{
		"a": {Reported: value(begun.Add(time.Second)), Desired: value(begun.Add(-time.Second))},
		"b": {Reported: value(time.Time{})},
	}}
	if !tw.MarkAhead(begun) || tw.MarkAhead(begun) {
		t.Error("MarkAhead = false and then true, want a change the first time only")
	}
	a, b := tw.Properties["a"], tw.Properties["b"]
	if got := []bool{a.Reported.Ahead, a.Desired.Ahead, b.Reported.Ahead, tw.StateAhead}; !slices.Equal(got,
		[]bool{true, false, false, false}) {
		t.Errorf("marked: %v, want only the value that was taken later", got)
	}
	if !tw.UnmarkAhead() || tw.UnmarkAhead() || tw.Properties["a"].Reported.Ahead {
		t.Error("UnmarkAhead leaves a mark, or finds none")
	}
}
