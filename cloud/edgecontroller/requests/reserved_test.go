package requests

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
)

// TestLeavesKept: a node's patch of its status passes unless it changes what only cloudcores write.
func TestLeavesKept(t *testing.T) {
	const passes, refused = true, false
	for _, row := range []struct {
		want  bool
		patch string
	}{
		{passes, `{}`},
		{passes, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`},
		{passes, `{"status":{"conditions":[]}}`},
		{passes, `{"status":{"$setElementOrder/conditions":[{"type":"DuplicateDevice"},{"type":"Ready"}],
			"conditions":[{"type":"Ready"}]}}`},
		{passes, `{"status":{"addresses":[{"type":"InternalIP"},{"$patch":"replace"}],"images":null}}`},
		{passes, `{"status":{"conditions":[{"$patch":"delete","type":"Old"}]}}`},
		{passes, `{"metadata":{"uid":"u","annotations":{"a":"b","c":null}}}`},

		{refused, `{"metadata":{"annotations":{"edgecore.io/instance":"x"}}}`},
		{refused, `{"metadata":{"annotations":{"edgecore.io/instance":null}}}`},
		{refused, `{"metadata":{"annotations":{"edgecore.io\u002finstance":null}}}`},
		{refused, `{"metadata":{"annotations":{"$patch":"replace"}}}`},
		{refused, `{"metadata":{"annotations":{"$retainKeys":["a"]}}}`},
		{refused, `{"metadata":{"annotations":null}}`},
		{refused, `{"metadata":{"annotations":[]}}`},
		{refused, `{"metadata":{"$patch":"replace"}}`},
		{refused, `{"metadata":null}`},
		{refused, `{"$patch":"replace"}`},
		{refused, `{"status":null}`},
		{refused, `{"status":{"$patch":"replace"}}`},
		{refused, `{"status":{"conditions":null}}`},
		{refused, `{"status":{"conditions":{}}}`},
		{refused, `{"status":{"conditions":[{"type":"Ready"},{"$patch":"replace"}]}}`},
		{refused, `{"status":{"conditions":[null]}}`},
		{refused, `{"status":{"conditions":[{"type":"DuplicateDevice","status":"False"}]}}`},
		{refused, `{"status":{"conditions":[{"type":"Ready"},{"$patch":"delete","type":"DuplicateDevice"}]}}`},
		{refused, `{"status":{},"status":{"conditions":[{"type":"DuplicateDevice"}]}}`},
	} {
		patch, want := row.patch, row.want
		w := newFixture(t)
		w.add(fakes.Node("edge-1"))
		w.api.Answer(func(fakes.Call) (int, any) { return http.StatusOK, fakes.Node("edge-1") })
		text, err := json.Marshal(patch)
		if err != nil {
			t.Fatal(err)
		}
		answer := w.ask("edge-1", model.OpPatch, "null/nodepatch/edge-1", string(text))
		if got := len(w.api.Seen()) == 1; got != want {
			t.Errorf("patch %s: passed is %v, want %v; the answer is %s", patch, got, want, answer.Content)
		}
		if output := strings.Contains(string(answer.Content), "a node may not"); output == want {
			t.Errorf("answer to patch %s = %s, want a refusal that says why: %v", patch, answer.Content, !want)
		}
	}
}

// TestKeptByUpdates: neither an update of a Node nor the status of an old edge changes what only cloudcores write.
func TestKeptByUpdates(t *testing.T) {
	w := newFixture(t)
	have := fakes.Annotated(fakes.Node("edge-1"), fakes.Record('A', 1))
	have.Status.Conditions = []v1.NodeCondition{
		{Type: marks.DuplicateDevice, Status: v1.ConditionTrue}, {Type: v1.NodeNetworkUnavailable},
		{Type: v1.NodeReady, Reason: "old"},
	}
	w.add(have)
	w.api.Answer(func(c fakes.Call) (int, any) {
		if c.Method == http.MethodGet {
			return http.StatusOK, have
		}
		return http.StatusOK, json.RawMessage(c.Body)
	})
	w.ask("edge-1", model.OpUpdate, "null/node/edge-1",
		`{"metadata":{"name":"edge-1","annotations":{"edgecore.io/instance":"x"}}}`)
	if got := w.api.Seen(); len(got) != 0 {
		t.Errorf("requests after an update of the annotation alone = %v, want none", got)
	}
	w.ask("edge-1", model.OpUpdate, "default/nodestatus/edge-1", `{"UID":"uid-edge-1","Status":{"conditions":[
		{"type":"DuplicateDevice","status":"False"},{"type":"Ready","reason":"new"}]},
		"ExtendResources":{"edgecore.io/instance":[{"name":"x"}],"example.com/gpu":[{"name":"y"}]}}`)
	var put v1.Node
	if calls := w.api.Calls; len(calls) != 2 {
		t.Fatalf("requests = %v, want two", w.api.Seen())
	} else if err := json.Unmarshal([]byte(calls[1].Body), &put); err != nil {
		t.Fatal(err)
	}
	kept := put.Annotations[marks.InstanceAnnotation] == have.Annotations[marks.InstanceAnnotation]
	if !kept || put.Annotations["example.com/gpu"] == "" {
		t.Errorf("annotations = %v, want those of %v and the resource", put.Annotations, have.Annotations)
	}
	want := []v1.NodeCondition{
		have.Status.Conditions[0], have.Status.Conditions[1], {Type: v1.NodeReady, Reason: "new"},
	}
	if diff := cmp.Diff(want, put.Status.Conditions); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
}
