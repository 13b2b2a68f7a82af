package requests

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// oldStatuses is a list of n statuses of pods that do not exist.
func oldStatuses(n int) string {
	entries := make([]string, n)
	for i := range entries {
		entries[i] = fmt.Sprintf(`{"UID":"u-%d","Name":"p-%d","Status":{}}`, i, i)
	}
	return "[" + strings.Join(entries, ",") + "]"
}

// TestOldStatusList: each status of a list counts as a request of its node, and a list has only so many. One message
// makes no more calls of the API server, and tells the hub of no more pods, than as many messages would.
func TestOldStatusList(t *testing.T) {
	for name, tc := range map[string]struct {
		entries, burst, want int
		reason               metav1.StatusReason
	}{
		"of a full node":  {110, 200, 110, ""},
		"over the rate":   {110, 20, 20, metav1.StatusReasonTooManyRequests},
		"too many":        {maxOldStatuses + 1, 10_000, 0, metav1.StatusReasonRequestEntityTooLarge},
		"as many as may":  {maxOldStatuses, 10_000, maxOldStatuses, ""},
		"with no limiter": {110, 0, 110, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, noAddress, rateLimit(0.001, cmp.Or(tc.burst, 1000)))
			if tc.burst > 0 {
				w.Connected(t.Context(), "e1", "websocket")
				w.hub.Take()
			}
			var reason metav1.StatusReason
			if status, _ := failure(t, w.ask("e1", "update", "ns/podstatus", oldStatuses(tc.entries))); status != nil {
				reason = status.Reason
			}
			if calls, told := len(w.api.Seen()), len(w.hub.Take()); calls != tc.want || told != tc.want ||
				reason != tc.reason {
				t.Errorf("%d calls of the API server, %d pods told to the hub, reason %q; want %d, %d, %q",
					calls, told, reason, tc.want, tc.want, tc.reason)
			}
		})
	}
}
