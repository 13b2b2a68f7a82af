package requests

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// reportTimeout is when an edge gives up a report and makes it again.
const reportTimeout = 20 * time.Second

// TestRequestHasOneDeadline: a request is answered before its edge gives it up, whatever it waits for on the way. What
// is not begun in time is not begun at all.
func TestRequestHasOneDeadline(t *testing.T) {
	const patch = `"{\"metadata\":{\"uid\":\"uid-a\"},\"status\":{}}"`
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, w *fixture)
		reason  metav1.StatusReason
		begun   bool // the API server is asked
		after   time.Duration
	}{
		"the API server hangs": {
			prepare: func(*testing.T, *fixture) {},
			reason:  metav1.StatusReasonTimeout, begun: true, after: requestTimeout,
		},
		"all places are taken": {
			prepare: func(t *testing.T, w *fixture) { takeAll(t, w) },
			reason:  metav1.StatusReasonServiceUnavailable, after: requestTimeout * 2 / 3,
		},
		"the node's turn comes late": {
			prepare: func(_ *testing.T, w *fixture) { spend(w, 9*time.Second) },
			reason:  metav1.StatusReasonTimeout, begun: true, after: requestTimeout,
		},
		"the node's turn comes late, and all places are taken": {
			prepare: func(t *testing.T, w *fixture) { spend(w, 9*time.Second); takeAll(t, w) },
			reason:  metav1.StatusReasonServiceUnavailable, after: requestTimeout * 2 / 3,
		},
		"the node's turn comes too late": {
			prepare: func(_ *testing.T, w *fixture) { spend(w, 11*time.Second) },
			reason:  metav1.StatusReasonTooManyRequests, // at once, as the wait is known
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, noAddress, rateLimit(1, 1))
				w.add(fakes.Pod("e1", "ns", "a"))
				hang := make(chan struct{})
				defer close(hang)
				w.api.Answer(func(fakes.Call) (int, any) { <-hang; return http.StatusOK, &v1.Pod{} })
				tc.prepare(t, w)
				w.api.Mu.Lock()
				w.api.Calls = nil
				w.api.Mu.Unlock()
				began := time.Now()
				status, _ := failure(t, w.ask("e1", "patch", "ns/podpatch/a", patch))
				took := time.Since(began)
				if status == nil || status.Reason != tc.reason {
					t.Errorf("answered with %+v, want reason %s", status, tc.reason)
				}
				if took != tc.after || took >= reportTimeout {
					t.Errorf("answered after %v, want %v", took, tc.after)
				}
				if calls := w.api.Seen(); (len(calls) > 0) != tc.begun {
					t.Errorf("the API server saw %v, want a call: %v", calls, tc.begun)
				}
			})
		})
	}
}

// takeAll takes all places of requests until the test ends.
func takeAll(t *testing.T, w *fixture) {
	t.Helper()
	for range cap(w.Requests.Slots) {
		if _, err := w.Requests.Slots.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// spend connects a node, limited to one request a second, whose next request has to wait for that long.
func spend(w *fixture, wait time.Duration) {
	w.sessions.Connected("e1", "edgecore/websocket")
	w.sessions.Limiter("e1").ReserveN(time.Now(), 1)
	for range int(wait/time.Second) - 1 {
		w.sessions.Limiter("e1").ReserveN(time.Now(), 1)
	}
}
