package devicemsg

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func TestReportResources(t *testing.T) {
	for text, want := range map[string]Report{
		"device/ns/sensor/twin/edge_updated": {KindTwin, "ns", "sensor"},
		"device/sensor/twin/edge_updated":    {KindTwin, "", "sensor"},
		"device/ns/sensor/state/update":      {KindState, "ns", "sensor"},
		"device/sensor/state/update":         {KindState, "", "sensor"},
	} {
		got, ok := ParseReport(text)
		if !ok || got != want || got.Resource() != text {
			t.Errorf("ParseReport(%q) = %+v, %v, which is %q; want %+v", text, got, ok, got.Resource(), want)
		}
	}
	for _, text := range []string{
		"", "device", "device/a/twin", "device//a/twin/edge_updated", "device/a/b/c/twin/edge_updated",
		"device/ns/a/twin/cloud_updated", "device/ns/a/state/edge_updated", "ns/pod/a", "x/ns/a/twin/edge_updated",
	} {
		if got, ok := ParseReport(text); ok {
			t.Errorf("ParseReport(%q) = %+v, want that it names no report", text, got)
		}
	}
}

// TestDecodeTwinUpdate: what KubeEdge's edge sends is read; what is too large or has a bad name is refused.
func TestDecodeTwinUpdate(t *testing.T) {
	got, err := DecodeTwinUpdate([]byte(`{"event_id":"e","timestamp":7,"twin":{"temp":{"actual":{"value":"21",
"metadata":{"timestamp":1760000000000}},"expected":{"value":"20"},"metadata":{"type":"string"},
"actual_version":{"cloud":0,"edge":3}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &TwinUpdate{EventID: "e", Timestamp: 7, Twin: map[string]*Twin{"temp": {
		Actual: NewValue("21", 1760000000000), Expected: NewValue("20", 0), Metadata: &TypeMetadata{"string"},
		ActualVersion: &Version{Edge: 3},
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("twin update (-want +got):\n%s", diff)
	}
	many := map[string]any{}
	for i := range devices.MaxProperties + 1 {
		many[fmt.Sprint("p", i)] = nil
	}
	text, err := json.Marshal(map[string]any{"twin": many})
	if err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{
		"":                                       "unexpected end",
		"[]":                                     "cannot unmarshal",
		`{"twin":{}}`:                            "has no properties",
		`{"twin":{"a b":{}}}`:                    "characters other than",
		string(text):                             "1001 properties, limit 1000",
		strings.Repeat("{", MaxContent):          "more than 20000 elements",
		strings.Repeat(" ", MaxContent+1) + "{}": "limit 2097152",
		`{"twin":{"a":{"actual":{"value":"` + strings.Repeat("x", 513) + `"}}}}`: "513 bytes, limit 512",
		`{"event_id":"` + strings.Repeat("x", 129) + `","twin":{"a":{"x":"y"}}}`: "longer than 128",
	} {
		if _, err := DecodeTwinUpdate([]byte(content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("DecodeTwinUpdate(%.60q) = %v, want %q", content, err, want)
		}
	}
}

func TestDecodeStateUpdate(t *testing.T) {
	u, err := DecodeStateUpdate([]byte(`{"device":{"name":"a","state":"online","lastOnlineTime":"2026-01-01T00:00:00Z"}}`))
	if err != nil || u.Device.State != devices.StateOnline || u.Device.LastOnlineTime != "2026-01-01T00:00:00Z" {
		t.Errorf("state update %+v, %v; want online", u, err)
	}
	for _, tc := range []struct{ state, message, want string }{
		{"offline", "no answer", "no answer"},
		{"unhealthy", `\u001b[31m` + strings.Repeat("x", 300), "[31m" + strings.Repeat("x", 249) + "..."},
		{"online", "no answer", ""},
		{"ok", "no answer", ""},
	} {
		u, err := DecodeStateUpdate([]byte(`{"device":{"state":"` + tc.state + `"},"message":"` + tc.message + `"}`))
		if err != nil || u.Message != tc.want {
			t.Errorf("message %q of the state %s: %+v, %v; want %q", tc.message, tc.state, u, err, tc.want)
		}
	}
	for _, content := range []string{`{}`, `{"device":{"state":"dead"}}`, `{"device":{"state":"ok"},"message":{}}`, `7`} {
		if _, err := DecodeStateUpdate([]byte(content)); err == nil {
			t.Errorf("DecodeStateUpdate(%s) = nil, want an error", content)
		}
	}
}

func TestEventID(t *testing.T) {
	for content, want := range map[string]string{
		`{"event_id":"e","twin":7}`:                                "e",
		`{"twin":{"event_id":"inner"},"event_id":"e"}`:             "e",
		`{"twin":["event_id","x",{"event_id":"y"}],"event_id":"e"`: "e",
		`{"event_id":12,"twin":{}}`:                                "12",
		`{"timestamp":"event_id","event_id":"e"}`:                  "e",
		`{"Event_ID":"e"}`:                                         "e",
		`{"event_id":"e`:                                           "",
		`{"event_id":null,"x":"y"}`:                                "",
		`{"event_id":{"a":"b"},"c":"d"}`:                           "",
		`["event_id","e"]`:                                         "",
		`{"x":{}}{"event_id":"e"}`:                                 "",
		`"event_id"`:                                               "",
		``:                                                         "",
		`{"event_id":"` + strings.Repeat("x", 129) + `"}`:          "",
	} {
		if got := EventID([]byte(content)); got != want {
			t.Errorf("EventID(%.60s) = %q, want %q", content, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"twin":{"a":{"actual":{"value":"1","metadata":{"timestamp":5}}}}}`))
	f.Add([]byte(`{"device":{"state":"online"}}`))
	for _, text := range membound.JSON(`{"twin":`, `}`, 64<<10) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		membound.Check(t, membound.Linear(len(data), 64), func() {
			_, _ = DecodeTwinUpdate(data)  // an error is as good as a result
			_, _ = DecodeStateUpdate(data) // here too
			_, _ = DecodeStateRequest(data)
			_, _ = DecodeGet(data)
			_ = EventID(data)
		})
	})
}
