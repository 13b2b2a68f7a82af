package devicemsg

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
)

// Base is part of all messages to MQTT clients and from them. A result has the event id of its request. Timestamp is in
// milliseconds since 1970.
type Base struct {
	EventID   string `json:"event_id"`
	Timestamp int64  `json:"timestamp"`
}

// Codes of a Refusal.
const (
	CodeInvalid  = 400
	CodeNoDevice = 404
	CodeConflict = 409
	CodeInternal = 500
)

// Refusal is the result of a request that was refused or failed.
type Refusal struct {
	Base
	Code   int    `json:"code"`
	Reason string `json:"reason"`
}

// TwinResult is the result of an update of a twin, with the properties of the request, and of a get, with all.
type TwinResult struct {
	Base
	Twin map[string]*Twin `json:"twin"`
}

// Delta has properties of a twin with desired values that have not been reported. Delta maps their names to these
// values.
type Delta struct {
	Base
	Twin  map[string]*Twin  `json:"twin"`
	Delta map[string]string `json:"delta"`
}

// Document has the properties of a twin that changed, before and after.
type Document struct {
	Base
	Twin map[string]*States `json:"twin"`
}

// States are a property before and after a change; nil is none.
type States struct {
	Last    *Twin `json:"last"`
	Current *Twin `json:"current"`
}

// StateResult is the result of an update of a state.
type StateResult struct {
	Base
	Device struct {
		Name  string `json:"name"`
		State string `json:"state"`
	} `json:"device"`
}

// Members is the result of a request for the devices of the node.
type Members struct {
	Base
	Devices []Member `json:"devices"`
}

// StateRequest is a client's update of the state of a device.
type StateRequest struct {
	Base
	State string `json:"state"`
	// Message says why the device is in the state; KubeEdge has no such key.
	Message string `json:"message,omitempty"`
}

// DecodeStateRequest decodes an update of a state. Its message may have any characters.
func DecodeStateRequest(content []byte) (*StateRequest, error) {
	var r StateRequest
	if err := decode(content, &r); err != nil {
		return nil, fmt.Errorf("state update: %w", err)
	}
	if len(r.EventID) > devices.MaxNameBytes {
		return nil, fmt.Errorf("state update: event_id is longer than %d bytes", devices.MaxNameBytes)
	}
	if r.State == "" {
		return nil, errors.New(`state update: "state" is missing`)
	}
	return &r, nil
}

// DecodeGet decodes a request that has no more than an event id; empty content has none.
func DecodeGet(content []byte) (*Base, error) {
	var r Base
	if len(content) == 0 {
		return &r, nil
	}
	if err := decode(content, &r); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	if len(r.EventID) > devices.MaxNameBytes {
		return nil, fmt.Errorf("request: event_id is longer than %d bytes", devices.MaxNameBytes)
	}
	return &r, nil
}

// EventID returns the event id of a request that cannot be decoded, so that its refusal can name it; "" if none is
// found. It reads the content up to the id, which may be a number, and needs nothing valid after that.
func EventID(content []byte) string {
	if len(content) > MaxContent {
		return ""
	}
	d := json.NewDecoder(bytes.NewReader(content))
	d.UseNumber()
	depth := 0
	key := "" // of the value that comes next, in the outermost object
	isKey := false
	for range maxElements {
		token, err := d.Token()
		if err != nil {
			return ""
		}
		switch t := token.(type) {
		case json.Delim:
			if t == '{' || t == '[' {
				depth++
			} else {
				depth--
			}
			if depth == 0 || t == '[' && depth == 1 {
				return "" // the end, or not an object
			}
			isKey = depth == 1
			continue
		case string:
			if depth == 1 && isKey {
				key, isKey = t, false
				continue
			}
			if depth == 1 && strings.EqualFold(key, "event_id") {
				return shortID(t)
			}
		case json.Number:
			if depth == 1 && strings.EqualFold(key, "event_id") {
				return shortID(t.String())
			}
		}
		isKey = depth == 1
	}
	return ""
}

// shortID returns an id that is not too long to be sent back.
func shortID(id string) string {
	if len(id) > devices.MaxNameBytes {
		return ""
	}
	return id
}
