// Package v1beta1 is devices.kubeedge.io/v1beta1: devices, their models and their statuses, as KubeEdge v1.23 has them
// (docs/wire.md, Devices). Free-form objects stay JSON.
package v1beta1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The identity of the API.
const (
	Group      = "devices.kubeedge.io"
	Version    = "v1beta1"
	APIVersion = Group + "/" + Version

	KindDevice       = "Device"
	KindDeviceModel  = "DeviceModel"
	KindDeviceStatus = "DeviceStatus"
)

// Group and version, and the resources.
var (
	GroupVersion   = schema.GroupVersion{Group: Group, Version: Version}
	Devices        = GroupVersion.WithResource("devices")
	DeviceModels   = GroupVersion.WithResource("devicemodels")
	DeviceStatuses = GroupVersion.WithResource("devicestatuses")
)

// States of a device.
const (
	StateOnline    = "online"
	StateOffline   = "offline"
	StateOK        = "ok"
	StateUnknown   = "unknown"
	StateUnhealthy = "unhealthy"
)

// Types of properties.
const (
	TypeInt     = "INT"
	TypeFloat   = "FLOAT"
	TypeDouble  = "DOUBLE"
	TypeString  = "STRING"
	TypeBoolean = "BOOLEAN"
	TypeBytes   = "BYTES"
	TypeStream  = "STREAM"
)

// Access modes of properties.
const (
	ReadWrite = "ReadWrite"
	ReadOnly  = "ReadOnly"
)

// Keys of the metadata of a value.
const (
	// MetaTimestamp is when the value was read or set, in milliseconds since 1970, by the clock of the writer.
	MetaTimestamp = "timestamp"
	// MetaType is the type of the property.
	MetaType = "type"
)

// Device is one device; it belongs to the node that Spec.NodeName names.
type Device struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              DeviceSpec `json:"spec"`
	// Status has State and LastOnlineTime; with the CRDs of KubeEdge before v1.23 also the twins, since these have no
	// DeviceStatus.
	Status *Status `json:"status,omitempty"`
	// Bytes is the size of the object in JSON where cloudcore read it; zero is unknown.
	Bytes int `json:"-"`
}

// DeviceSpec is what a device is, and which values it should have.
type DeviceSpec struct {
	DeviceModelRef ModelRef         `json:"deviceModelRef,omitzero"`
	NodeName       string           `json:"nodeName,omitempty"`
	Properties     []DeviceProperty `json:"properties,omitempty"`
	Protocol       ProtocolConfig   `json:"protocol,omitzero"`
	Methods        []DeviceMethod   `json:"methods,omitempty"`
	StateReport    *StateReport     `json:"stateReport,omitempty"`
}

// ModelRef names the DeviceModel of the device, in its namespace.
type ModelRef struct {
	Name string `json:"name,omitempty"`
}

// DeviceProperty is a property of a device. Cycles are in milliseconds; 0 leaves them to the mapper.
type DeviceProperty struct {
	Name    string        `json:"name,omitempty"`
	Desired *TwinProperty `json:"desired,omitempty"`
	// Withheld is the desired value that cloudcore does not let a node apply, because the DeviceModel forbids it. It
	// is in no Device of the API: cloudcore sends it in place of Desired, so that a node can distinguish a value that
	// is forbidden from one that was removed.
	Withheld      *TwinProperty   `json:"withheld,omitempty"`
	Visitors      *VisitorConfig  `json:"visitors,omitempty"`
	ReportCycle   int64           `json:"reportCycle,omitempty"`
	CollectCycle  int64           `json:"collectCycle,omitempty"`
	ReportToCloud bool            `json:"reportToCloud,omitempty"`
	PushMethod    json.RawMessage `json:"pushMethod,omitempty"`
}

// TwinProperty is a value, with its metadata.
type TwinProperty struct {
	Value    string            `json:"value"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// ProtocolConfig says how the device is reached. The mapper of ProtocolName serves it.
type ProtocolConfig struct {
	ProtocolName string          `json:"protocolName,omitempty"`
	ConfigData   json.RawMessage `json:"configData,omitempty"`
}

// VisitorConfig says where a property is found on the device.
type VisitorConfig struct {
	ProtocolName string          `json:"protocolName,omitempty"`
	ConfigData   json.RawMessage `json:"configData,omitempty"`
}

// DeviceMethod is a named group of properties.
type DeviceMethod struct {
	Name          string   `json:"name,omitempty"`
	Description   string   `json:"description,omitempty"`
	PropertyNames []string `json:"propertyNames,omitempty"`
}

// StateReport says how often the mapper reports the state of the device; the cycle is in milliseconds.
type StateReport struct {
	ReportCycle   int64 `json:"reportCycle,omitempty"`
	ReportToCloud bool  `json:"reportToCloud,omitempty"`
}

// DeviceModel describes the properties of a kind of device.
type DeviceModel struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              DeviceModelSpec `json:"spec"`
	// Bytes is the size of the object in JSON where cloudcore read it; zero is unknown.
	Bytes int `json:"-"`
}

// DeviceModelSpec has the properties.
type DeviceModelSpec struct {
	Properties         []ModelProperty `json:"properties,omitempty"`
	Protocol           string          `json:"protocol,omitempty"`
	ProtocolConfigData json.RawMessage `json:"protocolConfigData,omitempty"`
}

// ModelProperty is a property that devices of the model have.
type ModelProperty struct {
	Name        string         `json:"name,omitempty"`
	Description string         `json:"description,omitempty"`
	Type        string         `json:"type,omitempty"`
	AccessMode  string         `json:"accessMode,omitempty"`
	Minimum     string         `json:"minimum,omitempty"`
	Maximum     string         `json:"maximum,omitempty"`
	Unit        string         `json:"unit,omitempty"`
	Visitors    *VisitorConfig `json:"visitors,omitempty"`
}

// DeviceStatus has the name and namespace of its Device, which owns it.
type DeviceStatus struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct{} `json:"spec"`
	Status            Status   `json:"status"`
}

// Status is what a device's node last reported.
type Status struct {
	Twins []Twin `json:"twins,omitempty"`
	State string `json:"state,omitempty"`
	// LastOnlineTime is when the device was last online, in RFC 3339.
	LastOnlineTime string          `json:"lastOnlineTime,omitempty"`
	Extensions     json.RawMessage `json:"extensions,omitempty"`
	ReportToCloud  bool            `json:"reportToCloud,omitempty"`
	ReportCycle    int64           `json:"reportCycle,omitempty"`
}

// Twin is the state of a property: what it should be, as the device's mapper has seen it, and what it is.
type Twin struct {
	PropertyName    string        `json:"propertyName"`
	ObservedDesired *TwinProperty `json:"observedDesired,omitempty"`
	Reported        *TwinProperty `json:"reported,omitempty"`
}

// Property returns the model's property of that name; ok is false if it has none.
func (m *DeviceModel) Property(name string) (p ModelProperty, ok bool) {
	for _, p := range m.Spec.Properties {
		if p.Name == name {
			return p, true
		}
	}
	return ModelProperty{}, false
}

// Property returns the device's property of that name; ok is false if it has none.
func (d *Device) Property(name string) (p DeviceProperty, ok bool) {
	for _, p := range d.Spec.Properties {
		if p.Name == name {
			return p, true
		}
	}
	return DeviceProperty{}, false
}
