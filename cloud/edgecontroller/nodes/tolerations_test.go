package nodes

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// TestTolerationSync: one patch in cloudcore's own name, and what its failures lead to.
func TestTolerationSync(t *testing.T) {
	w := newFixture(t)
	w.add(fakes.Node("e1"), fakes.Pod("e1", "ns", "a"), fakes.Pod("server", "ns", "b"))
	status := func(code int, reason metav1.StatusReason) func(fakes.Call) (int, any) {
		return func(fakes.Call) (int, any) {
			return code, metav1.Status{Status: "Failure", Reason: reason, Code: int32(code)}
		}
	}
	for name, tc := range map[string]struct {
		reply func(fakes.Call) (int, any)
		check func(error) bool
	}{
		"done": {func(fakes.Call) (int, any) {
			return 200, map[string]string{"kind": "Pod", "apiVersion": "v1"}
		}, func(err error) bool { return err == nil }},
		"gone": {nil, func(err error) bool { return err == nil }},
		"old":  {status(409, metav1.StatusReasonConflict), apierrors.IsConflict},
		"down": {status(500, metav1.StatusReasonInternalError), func(err error) bool {
			return err != nil && !apierrors.IsConflict(err)
		}},
	} {
		w.api.Answer(tc.reply)
		if err := w.tolerations.sync(t.Context(), "ns/a/uid-a"); !tc.check(err) {
			t.Errorf("%s: unexpected result: %v", name, err)
		}
		if diff := cmp.Diff([]string{"PATCH /api/v1/namespaces/ns/pods/a as cloudcore"}, w.api.Seen()); diff != "" {
			t.Errorf("%s: calls mismatch (-want +got):\n%s", name, diff)
		}
	}
	w.api.Answer(nil)
	for _, k := range []string{"ns/b/uid-b", "ns/none/uid", "ns/a/another", "a/b"} {
		if err := w.tolerations.sync(t.Context(), k); (err != nil) != (k == "a/b") || w.api.Seen() != nil {
			t.Errorf("%s: %v, calls %v; want an error for nonsense alone, and no call", k, err, w.api.Seen())
		}
	}
}

// TestTolerationQueue: the pods of a node that is connected elsewhere wait a while.
func TestTolerationQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, noAddress)
		w.add(fakes.Node("e1"), fakes.Pod("e1", "ns", "a"), fakes.Pod("e1", "ns", "b"))
		w.Connected(t.Context(), "e1", "websocket")
		w.tolerations.nodeChanged("e1")
		if n := w.tolerations.Keys.Len(); n != 2 {
			t.Errorf("%d pods wait, want 2", n)
		}
		w.tolerations.podChanged(fakes.Pod("server", "ns", "c"))
		w.Disconnected("e1", "")
		w.tolerations.podChanged(fakes.Pod("e1", "ns", "later")) // the cloudcore that has the node is to go first
		time.Sleep(elsewhereDelay - 1)
		synctest.Wait()
		if n := w.tolerations.Keys.Len(); n != 2 {
			t.Errorf("%d pods wait before %v have passed, want 2", n, elsewhereDelay)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := w.tolerations.Keys.Len(); n != 3 {
			t.Errorf("%d pods wait after %v, want 3", n, elsewhereDelay)
		}
	})
}
