package keyqueue

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestRefusedForGood: a refusal that lasts is logged once, and is not tried again until the key is added again. Once
// nothing is refused any more, the next one is logged.
func TestRefusedForGood(t *testing.T) {
	for name, refusal := range map[string]error{
		"forbidden": apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "e1", errors.New("no")),
		"invalid":   apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "e1", nil),
	} {
		err := refusal
		q := New("node", func(context.Context, string) error { return err }, "Not done")
		q.Remedy = "do it"
		for range FailureLogged + 1 {
			q.Keys.Add("e1")
			q.Next(t.Context())
		}
		if got, told := q.Keys.NumRequeues("e1"), q.refusalLogged.Load(); got != FailureLogged || !told {
			t.Errorf("%s: %d tries at growing intervals, told: %v; want %d, true", name, got, told, FailureLogged)
		}
		err = nil
		q.Keys.Add("e1") // something changed
		q.Next(t.Context())
		if got, told := q.Keys.NumRequeues("e1"), q.refusalLogged.Load(); got != 0 || told {
			t.Errorf("%s: allowed again: %d failures, told: %v; want 0, false", name, got, told)
		}
		q.Keys.ShutDown()
	}
}
