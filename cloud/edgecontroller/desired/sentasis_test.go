package desired

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// TestSentAsItIs: a node is sent the pod that the API server has, also one whose tolerations are about to be changed.
func TestSentAsItIs(t *testing.T) {
	w := newFixture(t)
	bound := fakes.Pod("e1", "ns", "a")
	bound.Generation = 1
	bound.Spec.Tolerations = fakes.Limited(300)
	w.add(fakes.Node("e1"), bound)
	o, err := w.Object("e1", caches.PodKey(bound))
	if err != nil {
		t.Fatal(err)
	}
	var sent v1.Pod
	if err := json.Unmarshal(o.JSON, &sent); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(bound.Spec.Tolerations, sent.Spec.Tolerations); diff != "" || sent.Generation != 1 {
		t.Errorf("the pod is sent with generation %d, want 1; tolerations (-want +got):\n%s", sent.Generation, diff)
	}
}
