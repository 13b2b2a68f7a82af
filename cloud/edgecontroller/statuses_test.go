package edgecontroller

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

func TestInventoriedReportsDifferences(t *testing.T) {
	w := newFixture(t, noAddress)
	marked := fakes.MarkedPod("e1", "marked")
	same := fakes.WasReady(fakes.MarkedPod("e1", "same"))
	lost := fakes.WasReady(fakes.MarkedPod("e1", "lost"))
	ended := lost.DeepCopy()
	ended.Status.Phase = v1.PodFailed
	elsewhere, replaced := fakes.MarkedPod("e2", "elsewhere"), fakes.MarkedPod("e1", "replaced")
	w.add(fakes.ReadyNode("e1", v1.ConditionTrue), marked, same, lost, elsewhere, replaced,
		fakes.MarkedPod("e1", "old"),
		fakes.MarkedPod("e1", "waits"))
	w.Connected(t.Context(), "e1", "edgecore/websocket")
	other := fakes.HeldStatus(replaced, "x")
	other.UID = "another"
	report := w.Inventoried(t.Context(), "e1", []wire.Held{
		fakes.HeldStatus(marked, fakes.HashOf(t, fakes.WasReady(marked))),
		fakes.HeldStatus(same, fakes.HashOf(t, same)),
		fakes.HeldStatus(lost, fakes.HashOf(t, ended)),
		fakes.HeldStatus(lost, fakes.HashOf(t, ended)), // a second entry of one pod is not looked at
		fakes.HeldStatus(elsewhere, "x"),
		other,
		fakes.HeldStatus(fakes.MarkedPod("e1", "old"), ""),
		fakes.HeldStatus(fakes.MarkedPod("e1", "waits"), wire.StatusPending),
		fakes.HeldStatus(fakes.MarkedPod("e1", "none"), "x"),
		{Key: "", UID: "uid-lost", Status: "x"},
		{Key: "ns/secret/lost", UID: "uid-lost", Status: "x"},
	})
	if diff := cmp.Diff([]string{"ns/pod/lost"}, report); diff != "" {
		t.Errorf("statuses to report again: mismatch (-want +got):\n%s", diff)
	}
	current := map[string]bool{}
	for _, name := range []string{"marked", "same", "lost", "replaced", "old", "waits"} {
		current[name] = w.statuses.Current("e1", w.caches.Pod("ns", name).UID)
	}
	want := map[string]bool{"marked": true, "same": true, "lost": false, "replaced": true, "old": true, "waits": false}
	if diff := cmp.Diff(want, current); diff != "" {
		t.Errorf("current statuses: mismatch (-want +got):\n%s", diff)
	}
	if calls := w.api.Seen(); calls != nil {
		t.Errorf("the inventory made the calls %v, want none", calls)
	}
}

// TestReadinessWaitsForStatuses: a pod whose newest status waits on its node is not made Ready, until that status
// came or the node is connected with another word.
func TestReadinessWaitsForStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, noAddress)
		a, b := fakes.MarkedPod("e1", "a"), fakes.MarkedPod("e1", "b")
		w.add(fakes.ReadyNode("e1", v1.ConditionTrue), a, b)
		w.api.Answer(func(c fakes.Call) (int, any) {
			pod := fakes.MarkedPod("e1", "a")
			pod.Kind, pod.APIVersion = "Pod", "v1"
			return http.StatusOK, pod
		})
		var workers sync.WaitGroup
		defer workers.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w.nodes.Run(ctx, workers.Go)
		const putA = "PATCH /api/v1/namespaces/ns/pods/a/status as system:node:e1"
		const putB = "PATCH /api/v1/namespaces/ns/pods/b/status as system:node:e1"
		step := func(what string, want ...string) {
			t.Helper()
			time.Sleep(time.Second) // of the bubble
			synctest.Wait()
			var seen []string
			for _, c := range w.api.Seen() {
				if strings.Contains(c, "/status as") { // and no toleration
					seen = append(seen, c)
				}
			}
			slices.Sort(seen)
			if diff := cmp.Diff(want, seen); diff != "" {
				t.Errorf("%s: calls mismatch (-want +got):\n%s", what, diff)
			}
			w.api.Mu.Lock()
			w.api.Calls = nil
			w.api.Mu.Unlock()
		}
		w.Connected(t.Context(), "e1", "edgecore/websocket")
		step("before the inventory")
		w.Inventoried(t.Context(), "e1", []wire.Held{fakes.HeldStatus(a, wire.StatusPending), fakes.HeldStatus(b, "")})
		step("the inventory", putB)
		w.podEvent(a, a)
		w.nodeEvent(fakes.ReadyNode("e1", v1.ConditionUnknown), fakes.ReadyNode("e1", v1.ConditionTrue))
		step("while the status is pending", putB)
		w.ask("e1", "patch", "ns/podpatch/a", `{"metadata":{"uid":"uid-a"},"status":{"phase":"Running"}}`)
		step("the status came", putA, putA) // the report, and what the pod as it is now asks for
		w.Connected(t.Context(), "e1", "edgecore/websocket")
		w.Disconnected("e1", "replaced")
		step("before the inventory of the next session")
		w.ask("e1", "patch", "ns/podpatch/a", `{"metadata":{"uid":"uid-a"},"status":{"phase":"Running"}}`)
		w.Inventoried(t.Context(), "e1", []wire.Held{fakes.HeldStatus(a, wire.StatusPending)})
		step("the status came before the inventory", putA, putA, putB)
		w.Disconnected("e1", "gone")
	})
}
