package metaclient

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/edgecore-io/edgecore/beehive/model"
)

func TestClaimStatus(t *testing.T) {
	b := &bus{answer: `{"Object":{"metadata":{"name":"data"}},"Err":null}`}
	err := New(b).PatchClaimStatus(t.Context(), "shop", "data", []byte(`{"status":{"capacity":{"storage":"2Gi"}}}`))
	if err != nil || b.asked.Route.Resource != "shop/persistentvolumeclaim/data" ||
		b.asked.Route.Operation != model.OpPatch ||
		!strings.Contains(string(b.asked.Content), `"capacity":{"storage":"2Gi"}`) {
		t.Errorf("%v, asked %+v %s; want the capacity of shop/persistentvolumeclaim/data",
			err, b.asked.Route, b.asked.Content)
	}
	c := New(&bus{answer: `{"Object":null,"Err":{"ErrStatus":{"status":"Failure","reason":"Forbidden","code":403}}}`})
	if err := c.PatchClaimStatus(t.Context(), "shop", "data", []byte(`{}`)); !apierrors.IsForbidden(err) {
		t.Errorf("PatchClaimStatus: %v, want Forbidden", err)
	}
}
