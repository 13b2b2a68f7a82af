package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
)

// Version is a short hash of the fields of an object that the edge acts on. It leaves out the status, which the edge
// itself reports (but not the conditions that a pod's readiness gates name, which others set), the API server's own
// fields (resourceVersion, generation, managedFields, selfLink), apiVersion and kind (objects of a typed client have
// none), and nulls, empty objects and empty lists (which some encoders omit). Empty strings, zeros and false count: a
// user may have set them.
func Version(obj []byte) (string, error) {
	d := json.NewDecoder(bytes.NewReader(obj))
	d.UseNumber()
	var fields map[string]any
	if err := d.Decode(&fields); err != nil {
		return "", fmt.Errorf("version of an object: %w", err)
	}
	if fields == nil {
		return "", errors.New("version of an object: there is none")
	}
	if d.More() {
		return "", errors.New("version of an object: there is more than one")
	}
	gates := gatesOf(fields)
	for _, name := range []string{"apiVersion", "kind", "status"} {
		delete(fields, name)
	}
	if len(gates) > 0 {
		fields["status"] = gates
	}
	if meta, ok := fields["metadata"].(map[string]any); ok {
		for _, name := range []string{"resourceVersion", "generation", "managedFields", "selfLink"} {
			delete(meta, name)
		}
	}
	prune(fields)
	canonical, err := json.Marshal(fields) // sorts keys
	if err != nil {
		return "", fmt.Errorf("version of an object: %w", err)
	}
	sum := sha256.Sum256(canonical)
	return base64.RawURLEncoding.EncodeToString(sum[:9]), nil
}

// gatesOf returns the conditions that the readiness gates of a pod name, by type.
func gatesOf(fields map[string]any) map[string]any {
	spec, _ := fields["spec"].(map[string]any)
	list, _ := spec["readinessGates"].([]any)
	if len(list) == 0 {
		return nil
	}
	status, _ := fields["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	gates := map[string]any{}
	for _, g := range list {
		gate, _ := g.(map[string]any)
		name, _ := gate["conditionType"].(string)
		for _, c := range conditions {
			condition, _ := c.(map[string]any)
			if kind, _ := condition["type"].(string); kind == name {
				gates[name], _ = condition["status"].(string)
			}
		}
	}
	return gates
}

// prune removes nulls and empty values from an object, and reports whether nothing is left. It removes no elements of
// lists.
func prune(value any) (empty bool) {
	switch v := value.(type) {
	case nil:
		return true
	case map[string]any:
		for name, part := range v {
			if prune(part) {
				delete(v, name)
			}
		}
		return len(v) == 0
	case []any:
		for _, part := range v {
			prune(part)
		}
		return len(v) == 0
	}
	return false
}
