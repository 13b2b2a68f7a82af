// Package devicemsg is the content of the messages about devices: over the link, in the form of KubeEdge
// (docs/wire.md, Devices), and to MQTT clients on the device. It encodes, decodes and bounds; it decides nothing.
//
// The sender of these messages may be hostile: Decode functions refuse content that is too large or has too many
// elements before they allocate memory for it.
package devicemsg

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/jsonbound"
)

// Routes of the messages (docs/wire.md, Devices).
const (
	// Source is the module of the edge that sends reports, SourceCloud the one of the cloud.
	Source      = "twin"
	SourceCloud = "devicecontroller"
	// Group is the group of the cloud's messages that are not objects, and of the module at the edge.
	Group = "twin"

	ResourceMembership = "membership"
	ResourceDetail     = "membership/detail"
	ResourceConfirm    = "twin"
	// OpGet asks for all devices of the node.
	OpGet = "get"
)

// MaxContent bounds the content of a report, in bytes: a device with the most properties, each with a long name and a
// long value.
const MaxContent = 2 << 20

// Kind is what a report is about.
type Kind string

// Kinds of reports.
const (
	KindTwin  Kind = "twin"
	KindState Kind = "state"
)

// Report names what a report of the edge is about. Namespace is empty in reports of KubeEdge before v1.16.
type Report struct {
	Kind            Kind
	Namespace, Name string
}

// Resource returns the resource on the wire.
func (r Report) Resource() string {
	action := "edge_updated"
	if r.Kind == KindState {
		action = "update"
	}
	if r.Namespace == "" {
		return strings.Join([]string{"device", r.Name, string(r.Kind), action}, "/")
	}
	return strings.Join([]string{"device", r.Namespace, r.Name, string(r.Kind), action}, "/")
}

// ParseReport reads the resource of a report; ok is false for any other resource.
func ParseReport(resource string) (r Report, ok bool) {
	parts := strings.SplitN(resource, "/", 6)
	if len(parts) < 4 || len(parts) > 5 || parts[0] != "device" {
		return Report{}, false
	}
	for _, p := range parts {
		if p == "" {
			return Report{}, false
		}
	}
	r.Name = parts[len(parts)-3]
	if len(parts) == 5 {
		r.Namespace = parts[1]
	}
	switch parts[len(parts)-2] + "/" + parts[len(parts)-1] {
	case "twin/edge_updated":
		r.Kind = KindTwin
	case "state/update":
		r.Kind = KindState
	default:
		return Report{}, false
	}
	return r, true
}

// TwinUpdate is the content of a report on values.
type TwinUpdate struct {
	EventID string `json:"event_id"`
	// Timestamp is in milliseconds since 1970.
	Timestamp int64 `json:"timestamp"`
	// Twin has the properties by name.
	Twin map[string]*Twin `json:"twin"`
	// Epoch names the store that counted the versions. Only our edgecore sends it. A store that was lost begins again
	// with another epoch.
	Epoch string `json:"epoch,omitempty"`
}

// Twin is a property in messages: Expected is the desired value, Actual the reported one.
type Twin struct {
	Expected        *Value        `json:"expected,omitempty"`
	Actual          *Value        `json:"actual,omitempty"`
	Optional        *bool         `json:"optional,omitempty"`
	Metadata        *TypeMetadata `json:"metadata,omitempty"`
	ExpectedVersion *Version      `json:"expected_version,omitempty"`
	ActualVersion   *Version      `json:"actual_version,omitempty"`
}

// Value is a value with the time at which it was read or set.
type Value struct {
	Value    *string        `json:"value,omitempty"`
	Metadata *ValueMetadata `json:"metadata,omitempty"`
}

// ValueMetadata has the time in milliseconds since 1970.
type ValueMetadata struct {
	Timestamp int64 `json:"timestamp,omitempty"`
}

// TypeMetadata has the type of a property. KubeEdge removes properties whose type is "deleted".
type TypeMetadata struct {
	Type string `json:"type,omitempty"`
}

// Version counts the changes of a value at each end.
type Version struct {
	Cloud int64 `json:"cloud"`
	Edge  int64 `json:"edge"`
}

// NewValue returns a value; at is in milliseconds since 1970, and 0 if it is unknown.
func NewValue(value string, at int64) *Value {
	v := &Value{Value: &value}
	if at != 0 {
		v.Metadata = &ValueMetadata{Timestamp: at}
	}
	return v
}

// Text returns the value, and whether there is one.
func (v *Value) Text() (string, bool) {
	if v == nil || v.Value == nil {
		return "", false
	}
	return *v.Value, true
}

// At returns when the value was read or set, in milliseconds since 1970; 0 is unknown.
func (v *Value) At() int64 {
	if v == nil || v.Metadata == nil {
		return 0
	}
	return v.Metadata.Timestamp
}

// StateUpdate is the content of a report on the state.
type StateUpdate struct {
	EventID   string `json:"event_id"`
	Timestamp int64  `json:"timestamp"`
	Device    struct {
		Name           string `json:"name"`
		State          string `json:"state"`
		LastOnlineTime string `json:"lastOnlineTime"`
	} `json:"device"`
	// Epoch and Version order the states of a device; only our edgecore sends them.
	Epoch   string `json:"epoch,omitempty"`
	Version int64  `json:"version,omitempty"`
	// Message says why the device is in the state. Only our edgecore sends it, and KubeEdge's cloudcore ignores it.
	Message string `json:"message,omitempty"`
}

// Membership is the content of the cloud's message about a node's devices, for KubeEdge's edgecores.
type Membership struct {
	EventID   string   `json:"event_id"`
	Timestamp int64    `json:"timestamp"`
	Added     []Member `json:"added_devices"`
	Removed   []Member `json:"removed_devices"`
}

// Member is a device in a Membership. Its ID is NAMESPACE/NAME.
type Member struct {
	ID          string `json:"id,omitempty"`
	Name        string `json:"name,omitempty"`
	Description string `json:"description,omitempty"`
	State       string `json:"state,omitempty"`
}

// maxElements bounds the elements of the JSON of a report: about a dozen for a property.
const maxElements = 20 * devices.MaxProperties

// decode decodes content into v after checking its size.
func decode(content []byte, v any) error {
	switch {
	case len(content) > MaxContent:
		return fmt.Errorf("%d bytes, limit %d", len(content), MaxContent)
	case jsonbound.HasMore(content, maxElements):
		return fmt.Errorf("more than %d elements", maxElements)
	}
	return json.Unmarshal(content, v)
}

// DecodeTwinUpdate decodes a report on values. Each property has a valid name, and values that are not too long.
func DecodeTwinUpdate(content []byte) (*TwinUpdate, error) {
	var u TwinUpdate
	if err := decode(content, &u); err != nil {
		return nil, fmt.Errorf("twin update: %w", err)
	}
	if len(u.Twin) == 0 {
		return nil, errors.New(`twin update: "twin" has no properties`)
	}
	if len(u.Twin) > devices.MaxProperties {
		return nil, fmt.Errorf("twin update: %d properties, limit %d", len(u.Twin), devices.MaxProperties)
	}
	if len(u.EventID) > devices.MaxNameBytes || len(u.Epoch) > devices.MaxNameBytes {
		return nil, fmt.Errorf("twin update: event_id or epoch is longer than %d bytes", devices.MaxNameBytes)
	}
	for name, twin := range u.Twin {
		if err := devices.CheckName(name); err != nil {
			return nil, fmt.Errorf("twin update: %w", err)
		}
		if twin == nil {
			continue // a client removes the property
		}
		for _, v := range []*Value{twin.Expected, twin.Actual} {
			if text, ok := v.Text(); ok {
				if err := devices.CheckValue(text); err != nil {
					return nil, fmt.Errorf("twin update: property %s: %w", name, err)
				}
			}
		}
	}
	return &u, nil
}

// DecodeStateUpdate decodes a report on the state. Its message is as devices.MessageOf leaves it.
func DecodeStateUpdate(content []byte) (*StateUpdate, error) {
	var u StateUpdate
	if err := decode(content, &u); err != nil {
		return nil, fmt.Errorf("state update: %w", err)
	}
	if err := devices.CheckState(u.Device.State); err != nil {
		return nil, fmt.Errorf("state update: %w", err)
	}
	if max(len(u.Device.LastOnlineTime), len(u.EventID), len(u.Epoch)) > devices.MaxNameBytes {
		return nil, fmt.Errorf("state update: event_id, epoch or lastOnlineTime is longer than %d bytes",
			devices.MaxNameBytes)
	}
	u.Message = devices.MessageOf(u.Device.State, u.Message)
	return &u, nil
}
