package edgecontroller

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// TestLabelledLater: what the hub hears when a node with pods becomes an edge node, and what that costs.
func TestLabelledLater(t *testing.T) {
	w := newFixture(t)
	if err := w.watch(); err != nil {
		t.Fatal(err)
	}
	if err := w.caches.Pods.Replace([]any{fakes.WholePod("1")}, "1"); err != nil {
		t.Fatal(err)
	}
	if got := w.Desired("e1"); len(got) != 0 {
		t.Errorf("Desired of a node without the label = %v, want nothing", got)
	}
	w.hub.Take()
	w.api.Has("1", fakes.WholePod("1"))
	w.add(fakes.Node("e1"))
	w.nodeEvent(nil, fakes.Node("e1"))
	if n := w.podFetches.Keys.Len(); n != 1 {
		t.Errorf("%d nodes are queued, want 1", n)
	}
	w.hub.Take()
	for range 2 { // the second time nothing is missing
		if err := w.fetchPods(t.Context(), "e1"); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"e1 ns/configmap/cm-p", "e1 ns/secret/shared", "e1 ns/pod/p"}
	if diff := cmp.Diff(want, w.hub.Take()); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{fakes.ListPods}, w.api.Take()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if got := w.Desired("e1"); len(got) != 2 || got[1].Key != caches.PodKey(fakes.WholePod("1")) {
		t.Errorf("Desired = %v, want the Node and the pod", got)
	}
}

// TestUnregisteredNode: a node that is connected, and whose Node is not there yet, keeps its pods, and learns of their
// end.
func TestUnregisteredNode(t *testing.T) {
	w := newFixture(t)
	if err := w.watch(); err != nil {
		t.Fatal(err)
	}
	if err := w.caches.Pods.Replace(nil, "0"); err != nil {
		t.Fatal(err)
	}
	if err := w.caches.Pods.Add(fakes.WholePod("1")); err != nil {
		t.Fatal(err)
	}
	w.api.Has("1", fakes.WholePod("1"))
	w.Connected(t.Context(), "e1", "edgecore/websocket")
	w.sent("before its pods are read", "ns/pod/p", true, fakes.ListPods,
		"GET /api/v1/namespaces/ns/pods/p as cloudcore")
	if err := w.fetchPods(t.Context(), "e1"); err != nil {
		t.Fatal(err)
	}
	w.api.Take()
	w.sent("afterwards", "ns/pod/p", true)
	w.Disconnected("e1", "the test ended it")
	if all, whole := w.caches.Pods.Count(); all != 1 || whole != 0 {
		t.Errorf("%d pods, %d whole after it left; want 1, 0", all, whole)
	}
	w.Connected(t.Context(), "e1", "edgecore/websocket")
	w.hub.Take()
	if err := w.caches.Pods.Delete(fakes.WholePod("2")); err != nil {
		t.Fatal(err)
	}
	want := []string{"e1 ns/pod/p", "e1 ns/configmap/cm-p", "e1 ns/secret/shared"}
	if diff := cmp.Diff(want, w.hub.Take()); diff != "" {
		t.Errorf("changes when it is deleted (-want +got):\n%s", diff)
	}
	w.api.Has("2")
	w.sent("deleted", "ns/pod/p", false, fakes.ListPods)
}

// TestFetchRetries: pods that cannot be read, or not in the version that the watch brought, stay missing, and that is
// an error, so that it is tried again.
func TestFetchRetries(t *testing.T) {
	w := newFixture(t)
	p := w.caches.Pods
	if err := p.Add(fakes.WholePod("5")); err != nil { // of a node that is none of an edge
		t.Fatal(err)
	}
	w.add(fakes.Node("e1"))
	p.NodeChanged("e1")
	w.api.Answer(func(fakes.Call) (int, any) { return http.StatusInternalServerError, "x" })
	if err := w.fetchPods(t.Context(), "e1"); err == nil || !strings.Contains(err.Error(), "list the pods of node e1") {
		t.Errorf("fetchPods while the API server fails = %v, want an error", err)
	}
	w.api.Has("6", fakes.WholePod("6"))
	if err := w.fetchPods(t.Context(), "e1"); err == nil || !strings.Contains(err.Error(), "1 pods of node e1") {
		t.Errorf("fetchPods with a newer pod = %v, want an error", err)
	}
	w.api.Has("5", fakes.WholePod("5"))
	if err := w.fetchPods(t.Context(), "e1"); err != nil || w.caches.Pod("ns", "p") == nil {
		t.Errorf("fetchPods = %v, pod %v; want the pod", err, w.caches.Pod("ns", "p"))
	}
}
