package v1beta1

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// TestCheckDesired: a desired value has the type of its property and is in its range.
func TestCheckDesired(t *testing.T) {
	for name, tc := range map[string]struct {
		p     ModelProperty
		value string
		want  string // a part of the error; empty is none
	}{
		"whole number":       {ModelProperty{Type: TypeInt, Minimum: "-5", Maximum: "5"}, "-5", ""},
		"above the maximum":  {ModelProperty{Type: TypeInt, Maximum: "5"}, "6", "out of range (minimum any, maximum 5"},
		"below the minimum":  {ModelProperty{Type: TypeDouble, Minimum: "0.5"}, "0.25", "out of range (minimum 0.5"},
		"not a number":       {ModelProperty{Type: TypeFloat}, "NaN", "not a number"},
		"text for a number":  {ModelProperty{Type: TypeInt}, "1.5", "not a whole number"},
		"text for a float":   {ModelProperty{Type: TypeFloat}, "warm", "not a number"},
		"boolean":            {ModelProperty{Type: TypeBoolean}, "true", ""},
		"not a boolean":      {ModelProperty{Type: TypeBoolean}, "on", "neither true nor false"},
		"text":               {ModelProperty{Type: TypeString, Minimum: "5"}, "anything", ""},
		"too long":           {ModelProperty{Type: TypeString}, strings.Repeat("x", MaxValueBytes+1), "limit 512"},
		"not UTF-8":          {ModelProperty{Type: TypeBytes}, "\xff", "not UTF-8"},
		"read-only":          {ModelProperty{Type: TypeInt, AccessMode: ReadOnly}, "1", "read-only"},
		"a limit in words":   {ModelProperty{Type: TypeInt, Minimum: "low"}, "1", `the minimum "low" is not a number`},
		"a limit with unit":  {ModelProperty{Type: TypeFloat, Maximum: "80 C"}, "1", `"80 C" is not a number`},
		"a limit as 80.0":    {ModelProperty{Type: TypeInt, Maximum: "80.0"}, "81", "out of range"},
		"at a limit as 1e2":  {ModelProperty{Type: TypeInt, Maximum: "1e2"}, "100", ""},
		"at a limit as 0100": {ModelProperty{Type: TypeInt, Maximum: "0100"}, "100", ""},
		"above 1e2":          {ModelProperty{Type: TypeInt, Maximum: "1e2"}, "101", "out of range"},
		"below 0.5":          {ModelProperty{Type: TypeInt, Minimum: "0.5"}, "0", "out of range"},
		"of 63 bits": {ModelProperty{Type: TypeInt, Maximum: "9007199254740992"}, "9007199254740993",
			"out of range"},
		"a huge limit":        {ModelProperty{Type: TypeInt, Maximum: "1e999999999"}, "1", "is not a number"},
		"a long limit":        {ModelProperty{Type: TypeInt, Maximum: strings.Repeat("9", 999)}, "1", "not a number"},
		"infinite":            {ModelProperty{Type: TypeDouble}, "Inf", "not a number"},
		"too large a double":  {ModelProperty{Type: TypeDouble}, "1e309", "does not fit into 64 bits"},
		"too large a float":   {ModelProperty{Type: TypeFloat}, "1e39", "does not fit into 32 bits"},
		"the largest float":   {ModelProperty{Type: TypeFloat}, "-3.4028234663852886e38", ""},
		"a large double":      {ModelProperty{Type: TypeDouble}, "1e39", ""},
		"hexadecimal":         {ModelProperty{Type: TypeDouble}, "0x10p3", "not a number"},
		"a limit of any text": {ModelProperty{Type: TypeBoolean, Maximum: "x"}, "1", ""},
	} {
		tc.p.Name = "p"
		err := tc.p.CheckDesired(tc.value)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}

// TestCheckName: names of properties are those that KubeEdge accepts.
func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"temperature": true, "a-b_c.d,e:f/g@h#1": true, strings.Repeat("x", MaxNameBytes): true,
		"": false, "a b": false, "ü": false, "a\x00": false, strings.Repeat("x", MaxNameBytes+1): false,
	} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("CheckName(%q) = %v, want it accepted: %v", name, err, ok)
		}
	}
	if CheckState("ok") != nil || CheckState("dead") == nil {
		t.Error("state ok refused, or state dead accepted")
	}
}

// TestDeviceKeepsItsJSON: decoding and encoding a device loses nothing that the CRD has.
func TestDeviceKeepsItsJSON(t *testing.T) {
	const text = `{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","metadata":{"name":"d","namespace":"n"},
"spec":{"deviceModelRef":{"name":"m"},"nodeName":"edge-1","properties":[{"name":"p","desired":{"value":"1",
"metadata":{"type":"INT"}},"visitors":{"protocolName":"modbus","configData":{"register":"HoldingRegister","offset":2}},
"reportCycle":1000,"collectCycle":500,"reportToCloud":true,"pushMethod":{"mqtt":{"address":"tcp://x","qos":1}}}],
"protocol":{"protocolName":"modbus","configData":{"ip":"127.0.0.1"}},
"methods":[{"name":"m","description":"d","propertyNames":["p"]}],"stateReport":{"reportCycle":5,"reportToCloud":true}},
"status":{"state":"online","lastOnlineTime":"2026-01-01T00:00:00Z","twins":[{"propertyName":"p",
"observedDesired":{"value":"1"},"reported":{"value":"2","metadata":{"timestamp":"3"}}}]}}`
	var d Device
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(&d)
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if json.Unmarshal([]byte(text), &want) != nil || json.Unmarshal(again, &got) != nil {
		t.Fatal("not JSON")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a device changed (-want +got):\n%s", diff)
	}
	if p, ok := d.Property("p"); !ok || p.CollectCycle != 500 {
		t.Errorf("property p is %+v, %v", p, ok)
	}
}

// TestCleanMessage: what a device says is printable and short, whatever it says.
func TestCleanMessage(t *testing.T) {
	long := strings.Repeat("x", MaxMessageBytes)
	for message, want := range map[string]string{
		"":                                    "",
		"connection refused":                  "connection refused",
		"größer als 5 °C":                     "größer als 5 °C",
		" two\r\n\tlines \n":                  "two lines",
		"\x1b[2Jred\x07":                      "[2Jred",
		"bad \xff\xfe bytes \xc3":             "bad bytes",
		"right\u202eto\u2028left\ufeff\u0085": "right to left",
		"\x00\u200b":                          "",
		long:                                  long,
		long + " \n":                          long,
		long + "x":                            long[3:] + "...",
		strings.Repeat("ü", MaxMessageBytes):  strings.Repeat("ü", 126) + "...",
		long[4:] + " " + long:                 long[4:] + "...",
		long[3:] + " x":                       long[3:] + " x",
	} {
		got := CleanMessage(message)
		if got != want || CleanMessage(got) != got {
			t.Errorf("CleanMessage(%q) = %q, and again %q; want %q", message, got, CleanMessage(got), want)
		}
	}
}

func FuzzCleanMessage(f *testing.F) {
	f.Add("\x1b]0;title\x07 \xff\u202e")
	f.Add(strings.Repeat("a\u0301 ", MaxMessageBytes))
	f.Fuzz(func(t *testing.T, message string) {
		got := CleanMessage(message)
		control := strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r == 0x7f })
		if len(got) > MaxMessageBytes || !utf8.ValidString(got) || CleanMessage(got) != got ||
			strings.TrimSpace(got) != got || control {
			t.Errorf("CleanMessage(%q) = %q, with %d bytes, and again %q", message, got, len(got), CleanMessage(got))
		}
	})
}
