package nodes

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
)

// TestDuplicate: an event about the node and a condition of it are written in its name, the event once in a while.
func TestDuplicate(t *testing.T) {
	w := newFixture(t)
	w.add(fakes.Node("edge-1"))
	w.api.Answer(func(c fakes.Call) (int, any) { return http.StatusCreated, json.RawMessage(c.Body) })
	w.Duplicate(t.Context(), "edge-2", "no such node")
	w.Duplicate(t.Context(), "edge-1", "two devices")
	w.Duplicate(t.Context(), "edge-1", "two devices again")
	if err := w.Duplicates.sync(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"POST /api/v1/namespaces/default/events as system:node:edge-1",
		"PATCH /api/v1/nodes/edge-1/status as system:node:edge-1",
	}
	if diff := cmp.Diff(want, w.api.Seen()); diff != "" {
		t.Fatalf("requests (-want +got):\n%s", diff)
	}
	var e v1.Event
	if err := json.Unmarshal([]byte(w.api.Calls[0].Body), &e); err != nil {
		t.Fatal(err)
	}
	got := []string{e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Type, e.Reason, e.Message}
	if diff := cmp.Diff([]string{"Node", "edge-1", "Warning", "DuplicateDevice", "two devices"}, got); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
	var n v1.Node
	if err := json.Unmarshal([]byte(w.api.Calls[1].Body), &n); err != nil {
		t.Fatal(err)
	}
	have := duplicateOf(&n)
	if have == nil || have.Status != v1.ConditionTrue || have.Message != "two devices again" || n.UID != "uid-edge-1" {
		t.Errorf("patch = %s, want %s True of uid-edge-1 with the last message", w.api.Calls[1].Body,
			marks.DuplicateDevice)
	}
}

// TestNextDuplicate: when the condition changes.
func TestNextDuplicate(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	yes, no := &v1.NodeCondition{Status: v1.ConditionTrue}, &v1.NodeCondition{Status: v1.ConditionFalse}
	const same = v1.ConditionStatus("")
	for _, row := range []struct {
		what  string
		kept  duplicate
		have  *v1.NodeCondition
		here  bool
		want  v1.ConditionStatus
		again time.Duration
	}{
		{"nothing is known", duplicate{}, nil, true, same, 0},
		{"it is over already", duplicate{}, no, true, same, 0},
		{"found", duplicate{found: now}, nil, false, v1.ConditionTrue, duplicateClearAfter},
		{"found after it was over", duplicate{found: now}, no, true, v1.ConditionTrue, duplicateClearAfter},
		{"found again", duplicate{found: now, seen: ago(time.Minute)}, yes, true, same, duplicateClearAfter},
		{"found again later", duplicate{found: now, seen: ago(duplicateRefresh)}, yes, true,
			v1.ConditionTrue, duplicateClearAfter},
		{"someone removed it", duplicate{found: ago(time.Minute), seen: ago(time.Minute)}, nil, true,
			v1.ConditionTrue, duplicateClearAfter},
		{
			"another cloudcore found it", duplicate{seen: ago(time.Minute)}, yes, true, same,
			duplicateClearAfter - time.Minute,
		},
		{"quiet", duplicate{seen: ago(duplicateClearAfter)}, yes, true, v1.ConditionFalse, 0},
		{"quiet, not connected here", duplicate{seen: ago(duplicateClearAfter)}, yes, false, same, 0},
		{"quiet at another cloudcore only", duplicate{seen: ago(duplicateClearAfter), found: ago(time.Minute)}, yes,
			true,
			v1.ConditionTrue, duplicateClearAfter},
	} {
		want, again := row.kept.next(row.have, row.here, now)
		got := same
		if want != nil {
			got = want.Status
		}
		if got != row.want || again != row.again {
			t.Errorf("%s: becomes %q, looked at again after %v; want %q, %v", row.what, got, again, row.want, row.again)
		}
	}
}

// TestDuplicateSeen: the condition of a Node is followed: it is put back where it was removed, and one that has become
// False is forgotten.
func TestDuplicateSeen(t *testing.T) {
	w := newFixture(t)
	node := func(status v1.ConditionStatus, at int64) *v1.Node {
		n := fakes.Node("edge-1")
		if status != "" {
			heard := metav1.Unix(at, 0)
			n.Status.Conditions = []v1.NodeCondition{
				{Type: marks.DuplicateDevice, Status: status, LastHeartbeatTime: heard},
			}
		}
		return n
	}
	first, same, refreshed := node(v1.ConditionTrue, 1), node(v1.ConditionTrue, 1), node(v1.ConditionTrue, 2)
	w.Duplicates.nodeChanged(nil, first)
	seen := w.Duplicates.nodes["edge-1"].seen
	w.Duplicates.nodeChanged(first, same)
	if got := w.Duplicates.nodes["edge-1"].seen; !got.Equal(seen) {
		t.Errorf("seen after nothing new = %v, want still %v", got, seen)
	}
	w.Duplicates.nodeChanged(same, refreshed)
	if got := w.Duplicates.nodes["edge-1"].seen; !got.After(seen) {
		t.Errorf("seen after another time = %v, want after %v", got, seen)
	}
	key, _ := w.Duplicates.Keys.Get()
	w.Duplicates.Keys.Done(key)
	w.Duplicates.nodeChanged(refreshed, node("", 0))
	if got := w.Duplicates.Keys.Len(); got != 1 {
		t.Errorf("%d nodes to look at after the condition was removed, want 1", got)
	}
	w.Duplicates.nodeChanged(refreshed, node(v1.ConditionFalse, 3))
	if got := len(w.Duplicates.nodes); got != 0 {
		t.Errorf("%d nodes are kept after the condition became False, want 0", got)
	}
}
