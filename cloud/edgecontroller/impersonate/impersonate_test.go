package impersonate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// TestImpersonation: whose requests are whose.
func TestImpersonation(t *testing.T) {
	for how, group := range map[Mode]string{UserAndGroup: "system:nodes", UserOnly: ""} {
		api := &fakes.API{}
		clients, err := New(api.Config(), how)
		if err != nil {
			t.Fatal(err)
		}
		get := func(ctxNode string) error {
			ctx := t.Context()
			if ctxNode != "" {
				ctx = WithNode(ctx, ctxNode)
			}
			_, err := clients.AsNode.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
			return err
		}
		for _, node := range []string{"e1", "e2"} {
			if err := get(node); !apierrors.IsNotFound(err) {
				t.Errorf("Nodes().Get of %s = %v, want not found", node, err)
			}
		}
		if err := get(""); err == nil || !strings.Contains(err.Error(), "no node to impersonate") {
			t.Errorf("a request for no node: %v, want it refused", err)
		}
		want := []fakes.Call{{User: "system:node:e1", Group: group}, {User: "system:node:e2", Group: group}}
		for i := range api.Calls {
			api.Calls[i] = fakes.Call{User: api.Calls[i].User, Group: api.Calls[i].Group}
		}
		if diff := cmp.Diff(want, api.Calls); diff != "" {
			t.Errorf("mismatch (-want +got):\n%s", diff)
		}
	}
}

func TestChooseImpersonation(t *testing.T) {
	review := func(groups ...string) any {
		return map[string]any{
			"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
			"status": map[string]any{"userInfo": map[string]any{"groups": groups}},
		}
	}
	no := func() (int, any) {
		return 403, metav1.Status{Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: 403}
	}
	for name, tc := range map[string]struct {
		reply func(fakes.Call) (int, any)
		want  Mode
		err   string
	}{
		"new": {func(fakes.Call) (int, any) { return 201, review("system:nodes") }, UserOnly, ""},
		"old, wide": {func(c fakes.Call) (int, any) {
			if c.Group == "" {
				return 201, review("system:authenticated") // a node by name only
			}
			return 201, review("system:nodes")
		}, UserAndGroup, ""},
		"new, wide only": {func(c fakes.Call) (int, any) {
			if c.Group == "" {
				return no()
			}
			return 201, review("system:nodes")
		}, UserAndGroup, ""},
		"none": {func(fakes.Call) (int, any) { return no() }, UserAndGroup, "before-1.36/rbac.yaml"},
		"down": {func(fakes.Call) (int, any) { return 500, "x" }, UserOnly, "whether cloudcore may impersonate nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			api := &fakes.API{}
			api.Answer(tc.reply)
			got, err := Choose(t.Context(), api.Config())
			if got != tc.want || (err == nil) != (tc.err == "") ||
				err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%d, %v; want %d, %q", got, err, tc.want, tc.err)
			}
		})
	}
}
