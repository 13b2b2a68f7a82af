package edgecontroller

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// TestDuplicate: an event about the node is created in its name.
func TestDuplicate(t *testing.T) {
	w := newWorld(t)
	w.api.answer(func(c call) (int, any) { return http.StatusCreated, json.RawMessage(c.Body) })
	w.Duplicate(t.Context(), "edge-1", "two devices")
	want := []string{"POST /api/v1/namespaces/default/events as system:node:edge-1"}
	if diff := cmp.Diff(want, w.api.seen()); diff != "" {
		t.Fatalf("requests (-want +got):\n%s", diff)
	}
	var e v1.Event
	if err := json.Unmarshal([]byte(w.api.calls[0].Body), &e); err != nil {
		t.Fatal(err)
	}
	got := []string{e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Type, e.Reason, e.Message}
	if diff := cmp.Diff([]string{"Node", "edge-1", "Warning", "DuplicateDevice", "two devices"}, got); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
}
