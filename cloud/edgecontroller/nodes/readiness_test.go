package nodes

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// TestReadinessSync: one patch in the node's name that holds for one version of the pod; none while the node is not
// back.
func TestReadinessSync(t *testing.T) {
	w := newFixture(t, noAddress)
	w.add(fakes.ReadyNode("e1", v1.ConditionTrue), fakes.ReadyNode("e2", v1.ConditionUnknown),
		fakes.ReadyNode("e3", v1.ConditionTrue), fakes.MarkedPod("e1", "a"), fakes.MarkedPod("e2", "lost"),
		fakes.MarkedPod("e3", "elsewhere"), fakes.Pod("e1", "ns", "new"))
	w.Connected(t.Context(), "e1", "edgecore/websocket")
	w.Connected(t.Context(), "e2", "edgecore/websocket")
	for _, node := range []string{"e1", "e2"} {
		w.Inventoried(t.Context(), node, nil)
	}
	w.api.Answer(func(fakes.Call) (int, any) { return 200, map[string]string{"kind": "Pod", "apiVersion": "v1"} })
	for _, key := range []string{"ns/a", "ns/lost", "ns/elsewhere", "ns/new", "ns/none"} {
		if err := w.readiness.sync(t.Context(), key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	if diff := cmp.Diff([]string{"PATCH /api/v1/namespaces/ns/pods/a/status as system:node:e1"},
		w.api.Seen()); diff != "" {
		t.Errorf("calls mismatch (-want +got):\n%s", diff)
	}
	var patch v1.Pod
	if err := json.Unmarshal([]byte(w.api.Calls[0].Body), &patch); err != nil {
		t.Fatal(err)
	}
	if patch.UID != "uid-a" || patch.ResourceVersion != "1" || len(patch.Status.Conditions) != 1 ||
		patch.Status.Conditions[0].Type != v1.PodReady || patch.Status.Conditions[0].Status != v1.ConditionTrue {
		t.Errorf("patch %s, want the UID, the version and Ready True alone", w.api.Calls[0].Body)
	}
	w.api.Answer(nil)
	if err := w.readiness.sync(t.Context(), "ns/a"); err != nil {
		t.Errorf("sync of a pod that is gone = %v, want no error", err)
	}
	w.api.Answer(func(fakes.Call) (int, any) {
		return 500, metav1.Status{Status: "Failure", Reason: metav1.StatusReasonInternalError, Code: 500}
	})
	if err := w.readiness.sync(t.Context(), "ns/a"); err == nil {
		t.Error("sync = nil after status 500, want an error")
	}
}

// TestReadinessTriggers: whatever comes last, the pod's mark, the node's return or its connection, a pod is looked at.
func TestReadinessTriggers(t *testing.T) {
	lost, back := fakes.ReadyNode("e1", v1.ConditionUnknown), fakes.ReadyNode("e1", v1.ConditionTrue)
	for name, tc := range map[string]struct {
		connected bool
		node      *v1.Node
		event     func(w *fixture)
		want      int
	}{
		"the node returns": {true, back, func(w *fixture) { w.nodeEvent(lost, back) }, 1},
		"it was not away":  {true, back, func(w *fixture) { w.nodeEvent(back, back) }, 0},
		"it is still away": {true, lost, func(w *fixture) { w.nodeEvent(lost, lost) }, 0},
		"the mark comes late": {true, back, func(w *fixture) {
			w.podEvent(fakes.Pod("e1", "ns", "a"), fakes.MarkedPod("e1", "a"))
		}, 1},
		"the mark is in time": {true, lost, func(w *fixture) {
			w.podEvent(fakes.Pod("e1", "ns", "a"), fakes.MarkedPod("e1", "a"))
		}, 0},
		"connected elsewhere":  {false, back, func(w *fixture) { w.nodeEvent(lost, back) }, 0},
		"the connection comes": {false, back, func(w *fixture) { w.Connected(w.t.Context(), "e1", "websocket") }, 1},
		"it comes too early":   {false, lost, func(w *fixture) { w.Connected(w.t.Context(), "e1", "websocket") }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, noAddress)
				w.add(tc.node, fakes.MarkedPod("e1", "a"))
				if tc.connected {
					w.sessions.Connected("e1", "websocket")
				}
				tc.event(w)
				time.Sleep(2 * readyDelay) // of the bubble
				synctest.Wait()
				if got := w.readiness.Keys.Len(); got != tc.want {
					t.Errorf("%d pods wait, want %d", got, tc.want)
				}
			})
		})
	}
}
