package edgecontroller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

func TestEventsOfNodes(t *testing.T) {
	w := newFixture(t)
	node := func(change func(*v1.Node)) *v1.Node {
		n := fakes.Node("e1")
		if change != nil {
			change(n)
		}
		return n
	}
	for name, tc := range map[string]struct {
		old, now *v1.Node
		want     []string
	}{
		"new":         {nil, node(nil), []string{"e1 null/node/e1"}},
		"status only": {node(nil), node(func(n *v1.Node) { n.ResourceVersion, n.Status.Phase = "2", "x" }), nil},
		"labels":      {node(nil), node(func(n *v1.Node) { n.Labels["a"] = "b" }), []string{"e1 null/node/e1"}},
		"taints":      {node(nil), node(func(n *v1.Node) { n.Spec.Unschedulable = true }), []string{"e1 null/node/e1"}},
		"gone": {node(nil), nil,
			[]string{"e1: the node was deleted, or no longer has the label node-role.kubernetes.io/edge"}},
		"another": {node(nil), node(func(n *v1.Node) { n.UID = "2" }),
			[]string{"e1 null/node/e1", "e1: the node was deleted and registered again"}},
	} {
		t.Run(name, func(t *testing.T) {
			w.nodeEvent(tc.old, tc.now)
			if diff := cmp.Diff(tc.want, w.hub.Take()); diff != "" {
				t.Errorf("notifications mismatch (-want +got):\n%s", diff)
			}
		})
	}
}
