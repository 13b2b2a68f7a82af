package requests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// eventChanges maps fields of an event to their new values.
type eventChanges map[string]any

// eventFields lists the fields of an event that change when it repeats.
func eventFields() []string {
	return []string{"count", "eventTime", "lastTimestamp", "message", "series"}
}

// readEventPatch parses a strategic merge patch of an event. The patch may only change the count and times; what an
// event is about and who reports it stay.
func readEventPatch(text []byte) (eventChanges, error) {
	if err := smallContent().check(text); err != nil {
		return nil, fmt.Errorf("patchData %w", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil || fields == nil {
		return nil, errors.New("patchData is not a patch, want a JSON object")
	}
	changes := eventChanges{}
	for name, value := range fields {
		if !slices.Contains(eventFields(), name) {
			return nil, fmt.Errorf("patchData: %.40q of an event does not change; only %q do", name, eventFields())
		}
		changes[name] = value
	}
	return changes, nil
}

// jsonOperation is one operation of a JSON patch (RFC 6902).
type jsonOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// ownedPatch returns a JSON patch of an event that the API server refuses unless the stored event is from the same node
// and about the same object. Neither cloudcore nor a node may read events, so this cannot be checked before.
func ownedPatch(e *v1.Event, changes eventChanges) ([]byte, error) {
	host, from := "/source/host", e.Source.Host
	if from == "" {
		host, from = "/reportingInstance", e.ReportingInstance
	}
	if from == "" {
		return nil, errors.New("neither source.host nor reportingInstance names its node")
	}
	about := e.InvolvedObject
	tests := []jsonOperation{
		{"test", host, from},
		{"test", "/involvedObject/kind", about.Kind},
		{"test", "/involvedObject/name", about.Name},
	}
	if about.Namespace != "" {
		tests = append(tests, jsonOperation{"test", "/involvedObject/namespace", about.Namespace})
	}
	if about.UID != "" {
		tests = append(tests, jsonOperation{"test", "/involvedObject/uid", about.UID})
	}
	for _, field := range slices.Sorted(maps.Keys(changes)) {
		tests = append(tests, jsonOperation{"add", "/" + field, changes[field]})
	}
	return json.Marshal(tests)
}

// changeEvent changes the stored event of e's name if it is from the same node and about the same object.
func (h *eventHandlers) changeEvent(ctx context.Context, e *v1.Event, changes eventChanges) error {
	if len(changes) == 0 {
		return nil
	}
	key := resource.Key{Namespace: e.Namespace, Type: resource.TypeEvent, Name: e.Name}
	patch, err := ownedPatch(e, changes)
	if err != nil {
		return forbidden(key, "%v", err)
	}
	events := h.asNode.CoreV1().Events(e.Namespace)
	_, err = events.Patch(ctx, e.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
	if apierrors.IsInvalid(err) { // the API server's error for a failed test of a JSON patch
		return forbidden(key, "an event of that name belongs to another node, or would become invalid: %v", err)
	}
	return err
}
