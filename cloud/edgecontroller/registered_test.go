package edgecontroller

import (
	"encoding/json"
	"net/http"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
)

// TestRegisteredWithInstance: a Node is created with the annotation of the run that registers it, whatever the node
// says.
func TestRegisteredWithInstance(t *testing.T) {
	w := newFixture(t)
	mine := fakes.Record('C', 3)
	w.hub.Next = map[string]cloudhub.Record{"edge-1": mine}
	w.api.Answer(func(c fakes.Call) (int, any) { return http.StatusCreated, json.RawMessage(c.Body) })
	w.ask("edge-1", "insert", "null/node/edge-1", `{
		"metadata":{"name":"edge-1","annotations":{"edgecore.io/instance":"x","a":"b"}},
		"status":{"conditions":[{"type":"DuplicateDevice","status":"True"},{"type":"Ready","status":"True"}]}}`)
	var dry, created v1.Node
	for i, node := range []*v1.Node{&dry, &created} {
		if err := json.Unmarshal([]byte(w.api.Calls[i].Body), node); err != nil {
			t.Fatal(err)
		}
		if got := node.Status.Conditions; len(got) != 1 || got[0].Type != v1.NodeReady {
			t.Errorf("conditions of create %d = %v, want Ready alone", i+1, got)
		}
	}
	if got, has := dry.Annotations[marks.InstanceAnnotation]; has {
		t.Errorf("annotation in the node's own name = %q, want none", got)
	}
	if got := created.Annotations[marks.InstanceAnnotation]; got != mine.String() || created.Annotations["a"] != "b" {
		t.Errorf("annotations = %v, want %q and the node's own", created.Annotations, mine)
	}
}
