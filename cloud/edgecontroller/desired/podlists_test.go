package desired

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// sent checks whether e1 is sent an object, and what that costs.
func (w *fixture) sent(what, text string, want bool, calls ...string) {
	w.t.Helper()
	o, err := w.Object("e1", fakes.Key(text))
	if err != nil || (o != nil) != want {
		w.t.Errorf("%s: Object(%s) = %v, %v; want an object: %v", what, text, o, err, want)
	}
	if diff := cmp.Diff(calls, w.api.Take()); diff != "" {
		w.t.Errorf("%s: calls for %s (-want +got):\n%s", what, text, diff)
	}
}

func versioned(pod *v1.Pod, version string) *v1.Pod {
	pod.ResourceVersion = version
	return pod
}

// TestUnchangedInventoryAsksNobody: a node that connects with all that it is to have costs no request.
func TestUnchangedInventoryAsksNobody(t *testing.T) {
	w := newFixture(t)
	a, b := fakes.Pod("e1", "ns", "a"), fakes.Pod("e1", "ns", "b")
	w.add(fakes.Node("e1"), a, b, fakes.Service("ns", "db", "10.0.0.2"),
		&v1.Secret{ObjectMeta: fakes.ObjectMeta("ns", "shared", "1")},
		&v1.ConfigMap{ObjectMeta: fakes.ObjectMeta("ns", "cm-a", "1")},
		&v1.ConfigMap{ObjectMeta: fakes.ObjectMeta("ns", "cm-b", "1")})
	w.Connected(t.Context(), "e1", "edgecore/websocket")
	w.Inventoried(t.Context(), "e1", []wire.Held{fakes.HeldStatus(a, ""), fakes.HeldStatus(b, "")})
	n := 0
	for _, ref := range w.Desired("e1") {
		n++
		w.sent("an unchanged inventory", ref.Key.String(), true)
	}
	if n != 6 {
		t.Errorf("%d objects are desired, want 6", n)
	}
	changed := versioned(fakes.Pod("e1", "ns", "a"), "2")
	w.add(changed)
	w.podEvent(a, changed)
	w.sent("a change of a pod that the node holds", "ns/pod/a", true)
}

// TestForcedDeletionStaysDeleted: a cache that is behind has a pod that was deleted by force; its node has heard of
// that from another cloudcore and is not sent the pod again.
func TestForcedDeletionStaysDeleted(t *testing.T) {
	w := newFixture(t)
	gone, kept := versioned(fakes.Pod("e1", "ns", "gone"), "5"), versioned(fakes.Pod("e1", "ns", "kept"), "6")
	w.add(fakes.Node("e1"), gone, kept)
	w.api.Has("10", kept)
	w.Connected(t.Context(), "e1", "edgecore/websocket")
	w.Inventoried(t.Context(), "e1", []wire.Held{fakes.HeldStatus(kept, "")})
	w.sent("held", "ns/pod/kept", true)
	w.sent("deleted by force", "ns/pod/gone", false, fakes.ListPods)
	w.sent("deleted by force, again", "ns/pod/gone", false)
	later := versioned(fakes.Pod("e1", "ns", "later"), "11")
	w.add(later)
	w.podEvent(nil, later)
	w.sent("newer than the list", "ns/pod/later", true)
	w.remove(gone)
	w.podEvent(gone, nil)
	w.sent("the cache has caught up", "ns/pod/gone", false)
	again := versioned(fakes.Pod("e1", "ns", "gone"), "12")
	again.UID = "uid-again"
	w.add(again)
	w.podEvent(nil, again)
	w.sent("another pod of that name", "ns/pod/gone", true)
	w.Connected(t.Context(), "e1", "edgecore/websocket")
	w.Disconnected("e1", "replaced")
	w.api.Has("20", kept)
	w.sent("the next session, before its inventory", "ns/pod/gone", false, fakes.ListPods)
	w.Disconnected("e1", "gone")
	if n := len(w.podLists.nodes); n != 0 {
		t.Errorf("lists of %d nodes are kept after their last session, want 0", n)
	}
}

// TestNeededIsNotGone: a cache that is behind lacks a pod that its node got from another cloudcore. What that pod
// needs is not removed from the device.
func TestNeededIsNotGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		moved := versioned(fakes.Pod("e1", "ns", "moved"), "7")
		moved.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		// The cache has an older pod of the same name, on another node.
		before := versioned(fakes.Pod("e2", "ns", "moved"), "3")
		before.UID = "uid-before"
		w.add(fakes.Node("e1"), before, &v1.Secret{ObjectMeta: fakes.ObjectMeta("ns", "shared", "1")},
			fakes.Service("ns", "db", "10.0.0.2"))
		w.api.Has("10", moved)
		w.Connected(t.Context(), "e1", "edgecore/websocket")
		w.Inventoried(t.Context(), "e1", []wire.Held{fakes.HeldStatus(moved, "")})
		behind := func(text string, calls ...string) {
			t.Helper()
			if o, err := w.Object("e1", fakes.Key(text)); !errors.Is(err, errCacheStale) {
				t.Errorf("Object(%s) = %v, %v; want %v", text, o, err, errCacheStale)
			}
			if diff := cmp.Diff(calls, w.api.Take()); diff != "" {
				t.Errorf("calls for %s (-want +got):\n%s", text, diff)
			}
		}
		behind("ns/secret/shared", fakes.ListPods)
		behind("ns/configmap/cm-moved")
		behind("ns/service/db")
		w.sent("needed by no pod", "ns/configmap/other", false)
		w.sent("asked for by the node", "ns/secret/of-volume", false,
			"GET /api/v1/namespaces/ns/secrets/of-volume as system:node:e1")
		w.sent("the pod itself", "ns/pod/moved", true, "GET /api/v1/namespaces/ns/pods/moved as cloudcore")
		w.sent("no pod", "ns/pod/other", false)
		time.Sleep(listAge) // of the bubble
		behind("ns/secret/shared", fakes.ListPods)
		w.add(moved)
		w.podEvent(before, moved)
		w.sent("the cache has caught up", "ns/secret/shared", true)
		w.sent("the cache has caught up", "ns/service/db", true)
		w.remove(moved)
		w.podEvent(moved, nil)
		w.sent("the pod is gone", "ns/pod/moved", false)
		w.sent("with its pod", "ns/secret/shared", false)
	})
}

// TestListFails: without an answer nothing is said to be gone, and no pod is sent that the node does not hold.
func TestListFails(t *testing.T) {
	w := newFixture(t)
	w.add(fakes.Node("e1"), fakes.Pod("e1", "ns", "a"))
	w.Connected(t.Context(), "e1", "edgecore/websocket")
	w.api.Answer(func(fakes.Call) (int, any) { return http.StatusServiceUnavailable, "down" })
	for _, text := range []string{"ns/pod/a", "ns/pod/none", "ns/secret/none", "ns/service/none"} {
		if o, err := w.Object("e1", fakes.Key(text)); err == nil {
			t.Errorf("Object(%s) = %v, want an error", text, o)
		}
	}
}

// TestListWithoutVersion: an API server whose versions are no numbers is asked each time.
func TestListWithoutVersion(t *testing.T) {
	w := newFixture(t)
	a, gone := fakes.Pod("e1", "ns", "a"), fakes.Pod("e1", "ns", "gone")
	w.add(fakes.Node("e1"), a, gone)
	w.api.Has("", a)
	w.Connected(t.Context(), "e1", "edgecore/websocket")
	w.sent("listed", "ns/pod/a", true, fakes.ListPods)
	w.sent("listed before", "ns/pod/a", true)
	w.sent("not listed", "ns/pod/gone", false, fakes.ListPods)
}
