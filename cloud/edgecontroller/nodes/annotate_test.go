package nodes

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
)

func TestAnnotate(t *testing.T) {
	w := newFixture(t)
	w.annotator.annotate(t.Context(), "e1", time.Millisecond)
	if calls := w.api.Seen(); calls != nil {
		t.Errorf("requests for a node that is not known as a device's = %v, want none", calls)
	}
	w.add(fakes.Node("e1"))
	tries := 0
	w.api.Answer(func(c fakes.Call) (int, any) {
		if tries++; tries < 3 {
			return 500, "x"
		}
		if c.Body != `{"metadata":{"annotations":{"cloudcore":"192.0.2.2"}}}` {
			t.Errorf("patch %s, want the annotation alone", c.Body)
		}
		return 200, map[string]string{"kind": "Node", "apiVersion": "v1"}
	})
	w.annotator.annotate(t.Context(), "e1", time.Millisecond)
	want := slices.Repeat([]string{"PATCH /api/v1/nodes/e1 as system:node:e1"}, 3)
	if diff := cmp.Diff(want, w.api.Seen()); diff != "" {
		t.Errorf("mismatch (-want +got):\n%s", diff)
	}
	w.api.Answer(func(fakes.Call) (int, any) { return 500, "x" })
	w.annotator.annotate(t.Context(), "e1", time.Millisecond)
	if n := len(w.api.Seen()); n != 3 {
		t.Errorf("%d tries, want 3", n)
	}
	w.api.Answer(nil)
	w.annotator.annotate(t.Context(), "e1", time.Millisecond)
	if n := len(w.api.Seen()); n != 1 {
		t.Errorf("a node that does not exist: %d tries, want 1", n)
	}
	node := fakes.Node("e1")
	node.Annotations = map[string]string{marks.CloudcoreAnnotation: "192.0.2.2"}
	w.add(node)
	w.api.Answer(nil)
	w.annotator.annotate(t.Context(), "e1", time.Millisecond)
	if calls := w.api.Seen(); calls != nil {
		t.Errorf("with nothing to do the API server saw %v, want nothing", calls)
	}
}
