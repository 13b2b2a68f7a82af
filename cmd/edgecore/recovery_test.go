package main

import (
	"context"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/metamanager"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// TestRecoveryIsReportedBeforeItIsForgotten: the note of a store that was rolled back stays until the cloud has sent
// everything and has a status of the Node with the condition, in any order; where there is no Node, until the first.
func TestRecoveryIsReportedBeforeItIsForgotten(t *testing.T) {
	said := &v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeConditionType(health.StoreRolledBack)}}}
	sync := func(ctx context.Context, r *recoveryNote) { r.sync(ctx) }
	report := func(ctx context.Context, r *recoveryNote) { r.report(ctx, said) }
	other := func(ctx context.Context, r *recoveryNote) { r.report(ctx, &v1.NodeStatus{}) }
	for name, tc := range map[string]struct {
		node  bool
		steps []func(context.Context, *recoveryNote)
	}{
		"sent first":     {true, []func(context.Context, *recoveryNote){sync, other, report}},
		"reported first": {true, []func(context.Context, *recoveryNote){report, other, sync}},
		"no node":        {false, []func(context.Context, *recoveryNote){other, sync}},
	} {
		t.Run(name, func(t *testing.T) {
			db, _, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "edgecore.db"), store.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if err := db.Apply(t.Context(), store.AgentSet(store.RolledBackNote, "why")); err != nil {
				t.Fatal(err)
			}
			r := &recoveryNote{db: db, conditions: &health.Registry{}, hasNode: tc.node}
			for i, step := range tc.steps {
				if has := metamanager.Recovered(t.Context(), db); !has {
					t.Errorf("before step %d: the note is gone, want it kept", i)
				}
				step(t.Context(), r)
			}
			if metamanager.Recovered(t.Context(), db) {
				t.Error("after all steps: the note is there, want it gone")
			}
		})
	}
}
