package edgecontroller

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func condition(name v1.PodConditionType, status v1.ConditionStatus) v1.PodCondition {
	return v1.PodCondition{Type: name, Status: status}
}

// markedPod is one that Kubernetes made not Ready since its node said nothing.
func markedPod(node, name string) *v1.Pod {
	p := testPod(node, "ns", name)
	p.Status.Phase = v1.PodRunning
	p.Status.Conditions = []v1.PodCondition{
		condition(v1.PodInitialized, v1.ConditionTrue), condition(v1.PodReady, v1.ConditionFalse),
		condition(v1.ContainersReady, v1.ConditionTrue),
	}
	return p
}

func readyNode(name string, status v1.ConditionStatus) *v1.Node {
	n := edgeNode(name)
	n.Status.Conditions = []v1.NodeCondition{
		{Type: v1.NodeDiskPressure, Status: v1.ConditionFalse}, {Type: v1.NodeReady, Status: status},
	}
	return n
}

func TestReadyAgain(t *testing.T) {
	gate := func(p *v1.Pod) { p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/gate"}} }
	for name, tc := range map[string]struct {
		change func(*v1.Pod)
		want   bool
	}{
		"marked":    {func(*v1.Pod) {}, true},
		"is Ready":  {func(p *v1.Pod) { p.Status.Conditions[1].Status = v1.ConditionTrue }, false},
		"not ready": {func(p *v1.Pod) { p.Status.Conditions[2].Status = v1.ConditionFalse }, false},
		"deleting":  {func(p *v1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }, false},
		"ended":     {func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }, false},
		"new":       {func(p *v1.Pod) { p.Status.Conditions = nil }, false},
		"no Ready":  {func(p *v1.Pod) { p.Status.Conditions = p.Status.Conditions[2:] }, false},
		"gate":      {gate, false},
		"closed gate": {func(p *v1.Pod) {
			gate(p)
			p.Status.Conditions = append(p.Status.Conditions, condition("example.com/gate", v1.ConditionFalse))
		}, false},
		"open gate": {func(p *v1.Pod) {
			gate(p)
			p.Status.Conditions = append(p.Status.Conditions, condition("example.com/gate", v1.ConditionTrue))
		}, true},
	} {
		p := markedPod("e1", "a")
		tc.change(p)
		if got := readyAgain(p); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestReadinessSync: one patch in the node's name that holds for one version of the pod; none while the node is not
// back.
func TestReadinessSync(t *testing.T) {
	w := newFixture(t, noAddress)
	w.add(readyNode("e1", v1.ConditionTrue), readyNode("e2", v1.ConditionUnknown), readyNode("e3", v1.ConditionTrue),
		markedPod("e1", "a"), markedPod("e2", "lost"), markedPod("e3", "elsewhere"), testPod("e1", "ns", "new"))
	w.Connected(t.Context(), "e1", "edgecore/websocket")
	w.Connected(t.Context(), "e2", "edgecore/websocket")
	for _, node := range []string{"e1", "e2"} {
		w.Inventoried(t.Context(), node, nil)
	}
	w.api.answer(func(call) (int, any) { return 200, map[string]string{"kind": "Pod", "apiVersion": "v1"} })
	for _, key := range []string{"ns/a", "ns/lost", "ns/elsewhere", "ns/new", "ns/none"} {
		if err := w.readiness.sync(t.Context(), key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	if diff := cmp.Diff([]string{"PATCH /api/v1/namespaces/ns/pods/a/status as system:node:e1"},
		w.api.seen()); diff != "" {
		t.Errorf("calls mismatch (-want +got):\n%s", diff)
	}
	var patch v1.Pod
	if err := json.Unmarshal([]byte(w.api.calls[0].Body), &patch); err != nil {
		t.Fatal(err)
	}
	if patch.UID != "uid-a" || patch.ResourceVersion != "1" || len(patch.Status.Conditions) != 1 ||
		patch.Status.Conditions[0].Type != v1.PodReady || patch.Status.Conditions[0].Status != v1.ConditionTrue {
		t.Errorf("patch %s, want the UID, the version and Ready True alone", w.api.calls[0].Body)
	}
	w.api.answer(nil)
	if err := w.readiness.sync(t.Context(), "ns/a"); err != nil {
		t.Errorf("sync of a pod that is gone = %v, want no error", err)
	}
	w.api.answer(func(call) (int, any) {
		return 500, metav1.Status{Status: "Failure", Reason: metav1.StatusReasonInternalError, Code: 500}
	})
	if err := w.readiness.sync(t.Context(), "ns/a"); err == nil {
		t.Error("sync = nil after status 500, want an error")
	}
}

// TestReadinessTriggers: whatever comes last, the pod's mark, the node's return or its connection, a pod is looked at.
func TestReadinessTriggers(t *testing.T) {
	lost, back := readyNode("e1", v1.ConditionUnknown), readyNode("e1", v1.ConditionTrue)
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
			w.podEvent(testPod("e1", "ns", "a"), markedPod("e1", "a"))
		}, 1},
		"the mark is in time": {true, lost, func(w *fixture) {
			w.podEvent(testPod("e1", "ns", "a"), markedPod("e1", "a"))
		}, 0},
		"connected elsewhere":  {false, back, func(w *fixture) { w.nodeEvent(lost, back) }, 0},
		"the connection comes": {false, back, func(w *fixture) { w.Connected(w.t.Context(), "e1", "websocket") }, 1},
		"it comes too early":   {false, lost, func(w *fixture) { w.Connected(w.t.Context(), "e1", "websocket") }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, noAddress)
				w.add(tc.node, markedPod("e1", "a"))
				if tc.connected {
					w.sessions.connected("e1", "websocket")
				}
				tc.event(w)
				time.Sleep(2 * readyDelay) // of the bubble
				synctest.Wait()
				if got := w.readiness.queue.Len(); got != tc.want {
					t.Errorf("%d pods wait, want %d", got, tc.want)
				}
			})
		})
	}
}
