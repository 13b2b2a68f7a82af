package nodes

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/keyqueue"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
)

// TestInstanceWritten: the run of a node's agent is written over what was read and over nothing else, in cloudcore's
// own name; and not again.
func TestInstanceWritten(t *testing.T) {
	old, other, mine := fakes.Record('A', 1), fakes.Record('B', 2), fakes.Record('C', 3)
	newer := fakes.Annotated(fakes.Node("edge-1"), other)
	newer.ResourceVersion = "7"
	conflict := metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonConflict, Code: http.StatusConflict,
	}
	const patch, get = "PATCH /api/v1/nodes/edge-1 as cloudcore", "GET /api/v1/nodes/edge-1 as cloudcore"
	type (
		list    = []cloudhub.Record
		answers = []any
	)
	for _, row := range []struct {
		what     string
		have, to cloudhub.Record
		wait     time.Duration
		replies  answers
		want     []string
		learned  list
	}{
		{"nothing to write", old, cloudhub.Record{}, 0, nil, nil, list{old}},
		{"written", cloudhub.Record{}, mine, 0, answers{newer}, []string{patch}, list{{}, mine}},
		{"written over another", old, mine, 0, answers{newer}, []string{patch}, list{old, mine}},
		{"it is there", mine, mine, 0, nil, nil, list{mine}},
		{"too soon", old, mine, time.Hour, nil, nil, list{old}},
		{
			"changed meanwhile", old, mine, 0, answers{conflict, newer, newer}, []string{patch, get, patch},
			list{old, other, mine},
		},
		{"written by another", old, other, 0, answers{conflict, newer}, []string{patch, get}, list{old, other}},
		{"deleted meanwhile", old, mine, 0, answers{conflict, nil}, []string{patch, get}, list{old}},
		{"deleted", old, mine, 0, answers{nil}, []string{patch}, list{old}},
		{"not a device meanwhile", old, mine, 0, answers{conflict, &v1.Node{}}, []string{patch, get}, list{old}},
	} {
		w := newFixture(t)
		node := fakes.Node("edge-1")
		if row.have.Known() {
			fakes.Annotated(node, row.have)
		}
		w.add(node)
		w.hub.Next, w.hub.Wait = map[string]cloudhub.Record{"edge-1": row.to}, row.wait
		replies := row.replies
		w.api.Answer(func(c fakes.Call) (int, any) {
			reply := replies[0]
			replies = replies[1:]
			switch reply := reply.(type) {
			case nil:
				return fakes.NotFound(c.Path)
			case metav1.Status:
				return int(reply.Code), reply
			}
			return http.StatusOK, reply
		})
		if err := w.instances.sync(t.Context(), "edge-1"); err != nil {
			t.Errorf("%s: %v, want no error", row.what, err)
		}
		if diff := cmp.Diff(row.want, w.api.Seen()); diff != "" {
			t.Errorf("%s: requests (-want +got):\n%s", row.what, diff)
		}
		if diff := cmp.Diff(row.learned, w.hub.Records); diff != "" {
			t.Errorf("%s: told to the hub (-want +got):\n%s", row.what, diff)
		}
		versions := []string{"1", "7"}
		for _, c := range w.api.Calls {
			if c.Method != http.MethodPatch {
				continue
			}
			want := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q},"resourceVersion":%q,"uid":"uid-edge-1"}}`,
				marks.InstanceAnnotation, row.to, versions[0])
			if versions = versions[1:]; c.Body != want {
				t.Errorf("%s: patch is %s, want %s", row.what, c.Body, want)
			}
		}
	}
}

// TestInstanceRefused: a refusal that lasts, as with an old policy, is not tried again until something changes.
func TestInstanceRefused(t *testing.T) {
	for reason, code := range map[metav1.StatusReason]int32{
		metav1.StatusReasonForbidden: http.StatusForbidden, metav1.StatusReasonInvalid: http.StatusUnprocessableEntity,
	} {
		w := newFixture(t)
		w.add(fakes.Node("edge-1"))
		w.hub.Next = map[string]cloudhub.Record{"edge-1": fakes.Record('A', 1)}
		refusal := metav1.Status{Status: metav1.StatusFailure, Reason: reason, Code: code}
		w.api.Answer(func(fakes.Call) (int, any) { return int(code), refusal })
		i := w.instances
		for range keyqueue.FailureLogged + 1 {
			i.Keys.Add("edge-1")
			i.Next(t.Context())
		}
		if got := i.Keys.NumRequeues("edge-1"); got != keyqueue.FailureLogged {
			t.Errorf("%s: %d tries at growing intervals, want %d", reason, got, keyqueue.FailureLogged)
		}
		w.api.Answer(func(c fakes.Call) (int, any) { return http.StatusOK, fakes.Node("edge-1") })
		i.Keys.Add("edge-1") // something changed
		i.Next(t.Context())
		if got := i.Keys.NumRequeues("edge-1"); got != 0 {
			t.Errorf("%s: allowed again: %d failures, want 0", reason, got)
		}
	}
}

// TestInstanceRead: the hub is told of each change of the annotation, and of nothing else that changes in a Node.
func TestInstanceRead(t *testing.T) {
	w := newFixture(t)
	a := fakes.Annotated(fakes.Node("edge-1"), fakes.Record('A', 1))
	b := fakes.Annotated(fakes.Node("edge-1"), fakes.Record('B', 2))
	busy := a.DeepCopy()
	busy.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady}}
	spoilt := fakes.Node("edge-1")
	spoilt.Annotations = map[string]string{marks.InstanceAnnotation: strings.Repeat("x", 1<<20)}
	w.nodeEvent(nil, a)
	w.nodeEvent(a, busy)
	w.nodeEvent(busy, b)
	w.nodeEvent(b, spoilt)
	want := []cloudhub.Record{fakes.Record('A', 1), fakes.Record('B', 2), {}}
	if diff := cmp.Diff(want, w.hub.Records); diff != "" {
		t.Errorf("told to the hub (-want +got):\n%s", diff)
	}
}
