package requests

import (
	"encoding/json"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/objects"
)

// TestPatchedAnswers: edges of ours are told that a status was written, upstream's get the object.
func TestPatchedAnswers(t *testing.T) {
	node, pod := fakes.ReadyNode("e1", v1.ConditionTrue), fakes.MarkedPod("e1", "a")
	for _, tc := range []struct {
		protocol, resource string
		object             objects.Object
		whole              bool
	}{
		{"edgecore/websocket", "null/nodepatch/e1", node, false},
		{"edgecore/websocket", "ns/podpatch/a", pod, false},
		{"websocket", "null/nodepatch/e1", node, true},
		{"websocket", "ns/podpatch/a", pod, true},
	} {
		w := newFixture(t, noAddress)
		w.Connected(t.Context(), "e1", tc.protocol)
		w.api.Answer(func(fakes.Call) (int, any) { return 200, tc.object })
		answer := w.ask("e1", "patch", tc.resource, `"{\"metadata\":{\"uid\":\"uid-a\"}}"`)
		var content struct {
			Object *struct {
				Metadata struct{ Name, UID, ResourceVersion string }
				Status   json.RawMessage
			}
			Err *json.RawMessage
		}
		if err := json.Unmarshal(answer.ContentData(), &content); err != nil || content.Err != nil ||
			content.Object == nil {
			t.Errorf("%s %s: answer %s, %v; want an object", tc.protocol, tc.resource, answer.Content, err)
			continue
		}
		meta := content.Object.Metadata
		if meta.Name != tc.object.GetName() || meta.UID != string(tc.object.GetUID()) || meta.ResourceVersion != "1" ||
			answer.Header.ResourceVersion != "1" || (content.Object.Status != nil) != tc.whole {
			t.Errorf("%s %s: answer %s, want the names and version of %s, whole: %v", tc.protocol, tc.resource,
				answer.Content, tc.object.GetName(), tc.whole)
		}
	}
}
