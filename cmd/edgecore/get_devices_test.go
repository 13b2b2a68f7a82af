package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/devicetwin"
	"github.com/edgecore-io/edgecore/devicetwin/twin"
)

// TestPrintDevices: a person sees state, last value, its age and the desired value; a value cannot control the
// terminal.
func TestPrintDevices(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	at := now.Add(-90 * time.Second).UnixMilli()
	list := []devicetwin.Device{
		{Namespace: "shop", Name: "hall", Model: "thermometer", Protocol: "modbus", Twin: twin.Twin{
			State: "online", LastOnline: at, Properties: map[string]twin.Property{
				"temp":  {Reported: &twin.Value{Value: "21", At: at}},
				"limit": {Reported: &twin.Value{Value: "30"}, Desired: &twin.Value{Value: "25"}},
				"name":  {Reported: &twin.Value{Value: "a\x1b[2Jb", At: at}},
			},
		}},
		{Namespace: "shop", Name: "new"},
		{Namespace: "shop", Name: "pump", Twin: twin.Twin{State: "offline", StateMessage: "no \x1banswer"}},
	}
	for form, want := range map[string]string{
		"": `NAMESPACE DEVICE STATE PROPERTY VALUE AGE DESIRED
shop hall online limit 30 <unknown> 25
shop hall online name "a\x1b[2Jb" 90s <none>
shop hall online temp 21 90s <none>
shop new <none> <none> <none> <none> <none>
shop pump offline <none> <none> <none> <none>
`,
		"name": "device/hall\ndevice/new\ndevice/pump\n",
	} {
		var out strings.Builder
		if err := printDevices(&out, list, form, now); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, regexp.MustCompile(` +`).ReplaceAllString(out.String(), " ")); diff != "" {
			t.Errorf("-o %q (-want +got):\n%s", form, diff)
		}
	}
	for form, part := range map[string]string{"wide": "thermometer", "json": `"value": "21"`, "yaml": "value: \"21\""} {
		var out strings.Builder
		if err := printDevices(&out, list, form, now); err != nil || !strings.Contains(out.String(), part) {
			t.Errorf("-o %s: %v, want %q in:\n%s", form, err, part, out.String())
		}
	}
	var wide strings.Builder
	if err := printDevices(&wide, list, "wide", now); err != nil || !strings.Contains(wide.String(),
		`"no \x1banswer"`) {
		t.Errorf("-o wide: %v, want why the pump is offline in:\n%s", err, wide.String())
	}
	var out strings.Builder
	if err := printDevices(&out, nil, "", now); err != nil || out.String() != "No devices are bound to this node.\n" {
		t.Errorf("no devices: %q, %v", out.String(), err)
	}
	if err := printDevices(&out, nil, "xml", now); err == nil {
		t.Error("-o xml = nil, want an error")
	}
}
