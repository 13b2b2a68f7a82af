package dmi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	dmi "github.com/edgecore-io/edgecore/pkg/dmi/v1beta1"
)

// toModel converts a model for mappers.
func toModel(m *devices.DeviceModel) *dmi.DeviceModel {
	spec := &dmi.DeviceModelSpec{}
	for _, p := range m.Spec.Properties {
		spec.Properties = append(spec.Properties, &dmi.ModelProperty{
			Name:        p.Name,
			Description: p.Description,
			Type:        p.Type,
			AccessMode:  p.AccessMode,
			Minimum:     p.Minimum,
			Maximum:     p.Maximum,
			Unit:        p.Unit,
		})
	}
	return &dmi.DeviceModel{Name: m.Name, Namespace: m.Namespace, Spec: spec}
}

// toDevice converts a device for mappers. Every property has a desired value, perhaps an empty one, and visitors:
// KubeEdge's mapper framework panics otherwise. Visitors that the device does not have come from the model, which may
// be nil.
func toDevice(d *devices.Device, model *devices.DeviceModel) (*dmi.Device, error) {
	config, err := toConfig(d.Spec.Protocol.ConfigData)
	if err != nil {
		return nil, fmt.Errorf("device %s/%s: spec.protocol.configData: %w", d.Namespace, d.Name, err)
	}
	spec := &dmi.DeviceSpec{
		DeviceModelReference: d.Spec.DeviceModelRef.Name,
		Protocol:             &dmi.ProtocolConfig{ProtocolName: d.Spec.Protocol.ProtocolName, ConfigData: config},
	}
	for i := range d.Spec.Properties {
		p, err := toProperty(&d.Spec.Properties[i], model)
		if err != nil {
			return nil, fmt.Errorf("device %s/%s: property %s: %w", d.Namespace, d.Name, d.Spec.Properties[i].Name, err)
		}
		spec.Properties = append(spec.Properties, p)
	}
	for _, m := range d.Spec.Methods {
		spec.Methods = append(spec.Methods, &dmi.DeviceMethod{
			Name: m.Name, Description: m.Description, PropertyNames: m.PropertyNames,
		})
	}
	status := &dmi.DeviceStatus{}
	if r := d.Spec.StateReport; r != nil {
		status.ReportToCloud, status.ReportCycle = r.ReportToCloud, r.ReportCycle
	}
	return &dmi.Device{Name: d.Name, Namespace: d.Namespace, Spec: spec, Status: status}, nil
}

func toProperty(p *devices.DeviceProperty, model *devices.DeviceModel) (*dmi.DeviceProperty, error) {
	out := &dmi.DeviceProperty{
		Name:          p.Name,
		Desired:       &dmi.TwinProperty{},
		ReportCycle:   p.ReportCycle,
		CollectCycle:  p.CollectCycle,
		ReportToCloud: p.ReportToCloud,
	}
	if p.Desired != nil {
		out.Desired.Value, out.Desired.Metadata = p.Desired.Value, p.Desired.Metadata
	}
	visitors := p.Visitors
	if visitors == nil && model != nil {
		if rules, ok := model.Property(p.Name); ok {
			visitors = rules.Visitors
		}
	}
	if visitors == nil {
		visitors = &devices.VisitorConfig{}
	}
	config, err := toConfig(visitors.ConfigData)
	if err != nil {
		return nil, fmt.Errorf("visitors.configData: %w", err)
	}
	out.Visitors = &dmi.VisitorConfig{ProtocolName: visitors.ProtocolName, ConfigData: config}
	if out.PushMethod, err = toPushMethod(p.PushMethod); err != nil {
		return nil, fmt.Errorf("pushMethod: %w", err)
	}
	return out, nil
}

// pushMethod is spec.properties[].pushMethod of a device.
type pushMethod struct {
	HTTP *struct {
		HostName    string `json:"hostName"`
		Port        int64  `json:"port"`
		RequestPath string `json:"requestPath"`
		Timeout     int64  `json:"timeout"`
	} `json:"http"`
	MQTT *struct {
		Address  string `json:"address"`
		Topic    string `json:"topic"`
		QOS      int32  `json:"qos"`
		Retained bool   `json:"retained"`
	} `json:"mqtt"`
	OTEL *struct {
		EndpointURL string `json:"endpointURL"`
	} `json:"otel"`
	DBMethod *struct {
		Influxdb2 *struct {
			Client struct{ URL, Org, Bucket string } `json:"influxdb2ClientConfig"`
			Data   struct {
				Measurement string            `json:"measurement"`
				Tag         map[string]string `json:"tag"`
				FieldKey    string            `json:"fieldKey"`
			} `json:"influxdb2DataConfig"`
		} `json:"influxdb2"`
		Redis *struct {
			Client struct {
				Addr         string `json:"addr"`
				DB           int32  `json:"db"`
				Poolsize     int32  `json:"poolsize"`
				MinIdleConns int32  `json:"minIdleConns"`
			} `json:"redisClientConfig"`
		} `json:"redis"`
		TDEngine *struct {
			Client struct {
				Addr   string `json:"addr"`
				DBName string `json:"dbName"`
			} `json:"TDEngineClientConfig"`
		} `json:"TDEngine"`
		MySQL *struct {
			Client struct {
				Addr     string `json:"addr"`
				Database string `json:"database"`
				UserName string `json:"userName"`
			} `json:"mysqlClientConfig"`
		} `json:"mysql"`
	} `json:"dbMethod"`
	AnomalyDetection json.RawMessage `json:"anomalyDetection"`
}

func toPushMethod(data json.RawMessage) (*dmi.PushMethod, error) {
	if len(data) == 0 || bytes.Equal(data, []byte("null")) {
		return nil, nil
	}
	var p pushMethod
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, err
	}
	out := &dmi.PushMethod{}
	if h := p.HTTP; h != nil {
		out.Http = &dmi.PushMethodHTTP{
			Hostname: h.HostName, Port: h.Port, Requestpath: h.RequestPath, Timeout: h.Timeout,
		}
	}
	if m := p.MQTT; m != nil {
		out.Mqtt = &dmi.PushMethodMQTT{Address: m.Address, Topic: m.Topic, Qos: m.QOS, Retained: m.Retained}
	}
	if o := p.OTEL; o != nil {
		out.Otel = &dmi.PushMethodOTEL{EndpointUrl: o.EndpointURL}
	}
	if db := p.DBMethod; db != nil {
		out.DbMethod = &dmi.DBMethod{}
		if i := db.Influxdb2; i != nil {
			out.DbMethod.Influxdb2 = &dmi.DBMethodInfluxdb2{
				ClientConfig: &dmi.Influxdb2ClientConfig{
					Url: i.Client.URL, Org: i.Client.Org, Bucket: i.Client.Bucket,
				},
				DataConfig: &dmi.Influxdb2DataConfig{
					Measurement: i.Data.Measurement, Tag: i.Data.Tag, FieldKey: i.Data.FieldKey,
				},
			}
		}
		if r := db.Redis; r != nil {
			out.DbMethod.Redis = &dmi.DBMethodRedis{ClientConfig: &dmi.RedisClientConfig{
				Addr: r.Client.Addr, Db: r.Client.DB, Poolsize: r.Client.Poolsize, MinIdleConns: r.Client.MinIdleConns,
			}}
		}
		if e := db.TDEngine; e != nil {
			out.DbMethod.Tdengine = &dmi.DBMethodTDEngine{ClientConfig: &dmi.TDEngineClientConfig{
				Addr: e.Client.Addr, Dbname: e.Client.DBName,
			}}
		}
		if m := db.MySQL; m != nil {
			out.DbMethod.Mysql = &dmi.DBMethodMySQL{ClientConfig: &dmi.MySQLClientConfig{
				Addr: m.Client.Addr, Database: m.Client.Database, UserName: m.Client.UserName,
			}}
		}
	}
	if len(p.AnomalyDetection) > 0 {
		config, err := toConfig(p.AnomalyDetection)
		if err != nil {
			return nil, fmt.Errorf("anomalyDetection: %w", err)
		}
		out.AnomalyDetection = &dmi.AnomalyDetection{Data: config.Data}
	}
	return out, nil
}

// toConfig converts a free-form JSON object. It is never nil.
func toConfig(data json.RawMessage) (*dmi.CustomizedValue, error) {
	out := &dmi.CustomizedValue{Data: map[string]*anypb.Any{}}
	if len(data) == 0 {
		return out, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var values map[string]any
	if err := decoder.Decode(&values); err != nil {
		return nil, fmt.Errorf("want a JSON object: %w", err)
	}
	for key, v := range values {
		m, err := toMessage(v)
		if err != nil {
			return nil, fmt.Errorf("%.128q: %w", key, err)
		}
		if m == nil {
			continue
		}
		if out.Data[key], err = anypb.New(m); err != nil {
			return nil, fmt.Errorf("%.128q: %w", key, err)
		}
	}
	return out, nil
}

// toMessage converts a JSON value into one of the messages that KubeEdge's mapper framework reads; objects and lists,
// which it does not read, become a Struct and a ListValue. It is nil for null. A number that the message rounds is also
// there as text, for mappers that look for it (dmi.Exact).
func toMessage(v any) (proto.Message, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		return wrapperspb.String(v), nil
	case bool:
		return wrapperspb.Bool(v), nil
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return wrapperspb.Int64(n), nil
		}
		f, err := v.Float64()
		if err != nil || math.Abs(f) > math.MaxFloat32 {
			return nil, fmt.Errorf("the number %.40s is out of range", v)
		}
		m := wrapperspb.Float(float32(f))
		short, _ := strconv.ParseFloat(strconv.FormatFloat(float64(m.GetValue()), 'g', -1, 32), 64)
		if short != f || manyDigits(v) {
			dmi.SetExact(m, []byte(v))
		}
		return m, nil
	case map[string]any, []any:
		out, err := structpb.NewValue(plain(v))
		if err != nil {
			return nil, err
		}
		if _, err := json.Marshal(out); err != nil { // an infinite number
			return nil, err
		}
		var m proto.Message = out.GetStructValue()
		if list := out.GetListValue(); list != nil {
			m = list
		}
		if manyDigits(v) {
			text, err := json.Marshal(v)
			if err != nil {
				return nil, err
			}
			dmi.SetExact(m, text)
		}
		return m, nil
	}
	return nil, fmt.Errorf("%T is not a JSON value", v)
}

// manyDigits reports whether a JSON value has a number with more digits than every float64 keeps.
func manyDigits(v any) bool {
	switch v := v.(type) {
	case json.Number:
		digits, _, _ := strings.Cut(strings.ToLower(v.String()), "e")
		return len(strings.Trim(digits, "-0.")) > 15
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(v)), manyDigits)
	case []any:
		return slices.ContainsFunc(v, manyDigits)
	}
	return false
}

// plain replaces json.Number by float64, which structpb needs. A number that is out of range becomes infinite.
func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		f, _ := v.Float64() // see above
		return f
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, x := range v {
			out[key] = plain(x)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = plain(x)
		}
		return out
	}
	return v
}
