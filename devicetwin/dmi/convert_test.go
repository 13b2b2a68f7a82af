package dmi

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	dmi "github.com/edgecore-io/edgecore/pkg/dmi/v1beta1"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func convert(t *testing.T, spec string) (*dmi.Device, error) {
	t.Helper()
	d := &devices.Device{}
	if err := json.Unmarshal([]byte(`{"metadata":{"name":"d","namespace":"n"},"spec":`+spec+`}`), d); err != nil {
		t.Fatal(err)
	}
	model := &devices.DeviceModel{Spec: devices.DeviceModelSpec{Properties: []devices.ModelProperty{
		{Name: "b", Visitors: &devices.VisitorConfig{ProtocolName: "modbus", ConfigData: []byte(`{"offset":7}`)}},
	}}}
	return toDevice(d, model)
}

// TestConvert: a mapper gets everything that the spec says; numbers keep their values.
func TestConvert(t *testing.T) {
	d, err := convert(t, `{"deviceModelRef":{"name":"m"},"protocol":{"protocolName":"modbus","configData":
{"port":1502,"ip":"192.0.2.1","rate":0.5,"on":true,"none":null,"tcp":{"slave":[1,2]}}},"properties":[
{"name":"a","desired":{"value":"5","metadata":{"type":"INT"}},"collectCycle":100,"reportCycle":200,"reportToCloud":true,
"visitors":{"protocolName":"modbus","configData":{"register":"HoldingRegister"}},
"pushMethod":{"mqtt":{"address":"tcp://x","topic":"t","qos":1,"retained":true},"http":{"hostName":"h","port":80},
"dbMethod":{"influxdb2":{"influxdb2ClientConfig":{"url":"u","org":"o","bucket":"b"},"influxdb2DataConfig":
{"measurement":"m","tag":{"k":"v"},"fieldKey":"f"}},"redis":{"redisClientConfig":{"addr":"a","db":1}},
"TDEngine":{"TDEngineClientConfig":{"addr":"a","dbName":"n"}},"mysql":{"mysqlClientConfig":{"addr":"a","userName":"u"}}},
"anomalyDetection":{"window":5}}},{"name":"b"}],"methods":[{"name":"x","propertyNames":["a","b"]}],
"stateReport":{"reportCycle":9,"reportToCloud":true}}`)
	if err != nil {
		t.Fatal(err)
	}
	text, err := protojson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	compact := strings.ReplaceAll(string(text), " ", "")
	for _, part := range []string{
		`"port":{"@type":"type.googleapis.com/google.protobuf.Int64Value","value":"1502"}`,
		`"rate":{"@type":"type.googleapis.com/google.protobuf.FloatValue","value":0.5}`,
		`"ip":{"@type":"type.googleapis.com/google.protobuf.StringValue","value":"192.0.2.1"}`,
		`"on":{"@type":"type.googleapis.com/google.protobuf.BoolValue","value":true}`,
		`"tcp":{"@type":"type.googleapis.com/google.protobuf.Struct","value":{"slave":[1,2]}}`,
		`"desired":{"value":"5","metadata":{"type":"INT"}}`, `"collectCycle":"100"`, `"reportCycle":"200"`,
		`"register":{"@type":"type.googleapis.com/google.protobuf.StringValue","value":"HoldingRegister"}`,
		`"mqtt":{"address":"tcp://x","topic":"t","qos":1,"retained":true}`, `"http":{"hostname":"h","port":"80"}`,
		`{"url":"u","org":"o","bucket":"b"}`, `"measurement":"m"`, `{"addr":"a","dbname":"n"}`, `"userName":"u"`,
		`"window":{"@type":"type.googleapis.com/google.protobuf.Int64Value","value":"5"}`,
		`"offset":{"@type":"type.googleapis.com/google.protobuf.Int64Value","value":"7"}`,
		`"methods":[{"name":"x","propertyNames":["a","b"]}]`, `"status":{"reportToCloud":true,"reportCycle":"9"}`,
	} {
		if !strings.Contains(compact, part) {
			t.Errorf("the device lacks %s:\n%s", part, compact)
		}
	}
	if strings.Contains(compact, `"none"`) {
		t.Errorf("the device has a null value: %s", compact)
	}
}

// TestDigits: a number with more digits than its message has is there as text as well. What KubeEdge's mappers read of
// it stays the same.
func TestDigits(t *testing.T) {
	for number, text := range map[string]string{
		"0.1": "", "0.00390625": "", "1e3": "", "-7": "", "9223372036854775807": "", // an Int64Value
		"0.1234567891": "0.1234567891", "18446744073709551615": "18446744073709551615", "1e-50": "1e-50",
		"0.12345678901234567891": "0.12345678901234567891", "16777217.0": "16777217.0",
		`{"id":9007199254740993}`: `{"id":9007199254740993}`, `[0.5,[12345678901234567]]`: `[0.5,[12345678901234567]]`,
		`{"id":5}`: "",
	} {
		config, err := toConfig([]byte(`{"x":` + number + `}`))
		if err != nil {
			t.Fatal(err)
		}
		packed := config.Data["x"]
		m, err := packed.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := dmi.Exact(m); string(got) != text || ok != (text != "") {
			t.Errorf("%s: exact %q, %v, want %q", number, got, ok, text)
		}
		want, err := strconv.ParseFloat(number, 32)
		if f, is := m.(*wrapperspb.FloatValue); is && (err != nil || f.GetValue() != float32(want)) {
			t.Errorf("%s: FloatValue %v, want %v", number, f.GetValue(), float32(want))
		}
	}
}

// TestNothingIsNil: KubeEdge's mapper framework reads these without looking.
func TestNothingIsNil(t *testing.T) {
	d, err := convert(t, `{"properties":[{"name":"a"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	p := d.Spec.Properties[0]
	if p.Desired == nil || p.Visitors == nil || p.Visitors.ConfigData == nil || d.Spec.Protocol == nil ||
		d.Spec.Protocol.ConfigData == nil || d.Status == nil {
		t.Errorf("device %+v, property %+v; want no field nil", d, p)
	}
}

// TestUnconvertible: what cannot be converted is named.
func TestUnconvertible(t *testing.T) {
	for spec, want := range map[string]string{
		`{"protocol":{"configData":[1]}}`:                              "device n/d: spec.protocol.configData: want a JSON",
		`{"protocol":{"configData":{"x":1e300}}}`:                      `"x": the number 1e300 is out of range`,
		`{"properties":[{"name":"a","visitors":{"configData":"no"}}]}`: "property a: visitors.configData",
		`{"properties":[{"name":"a","pushMethod":{"http":5}}]}`:        "property a: pushMethod",
		`{"protocol":{"configData":{"x":{"y":1e999}}}}`:                `"x": `,
	} {
		if d, err := convert(t, spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %q", spec, d, err, want)
		}
	}
}

// TestCheckMapper: a registration names a mapper and a socket, and no more.
func TestCheckMapper(t *testing.T) {
	ok := &dmi.MapperInfo{Name: "m", Protocol: "modbus"}
	if err := checkMapper(ok, "/run/m.sock"); err != nil {
		t.Errorf("a good mapper: %v", err)
	}
	for address, info := range map[string]*dmi.MapperInfo{
		"/run/a.sock": {Protocol: "modbus"}, "/run/b.sock": {Name: "m"}, "/run/c.sock": {Name: "m", Protocol: "a\nb"},
		"/run/d.sock":   {Name: strings.Repeat("x", 129), Protocol: "p"},
		"relative.sock": ok, "/run/../x.sock": ok, "": ok,
		"/" + strings.Repeat("x", 107): ok, "/run/\x00": ok,
	} {
		if err := checkMapper(info, address); err == nil {
			t.Errorf("checkMapper(%+v, %q) = nil, want an error", info, address)
		}
	}
}
