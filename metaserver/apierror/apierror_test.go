package apierror

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/metaserver/apirequest"
)

// TestClientsUnderstand: apimachinery, which client-go reads errors with, takes each for what it is.
func TestClientsUnderstand(t *testing.T) {
	get := apirequest.Of(httptest.NewRequest("GET", "/apis/apps/v1/namespaces/shop/deployments/web", nil))
	put := apirequest.Of(httptest.NewRequest("PUT", "/apis/apps/v1/namespaces/shop/deployments/web", nil))
	for name, tc := range map[string]struct {
		status     *metav1.Status
		code       int
		is         func(error) bool
		retryAfter string
		says       string
	}{
		"unauthorized": {Unauthorized(), 401, apierrors.IsUnauthorized, "", "Unauthorized"},
		"too large":    {TooLarge(3), 413, apierrors.IsRequestEntityTooLargeError, "", "limit is 3"},
		"too many": {TooManyRequests("slowly", 1500*time.Millisecond), 429, apierrors.IsTooManyRequests, "2",
			"slowly"},
		"offline, read": {Offline(&get, time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)), 503,
			apierrors.IsServiceUnavailable, "5", "this device has no connection to its cluster since " +
				"2026-05-04T03:02:01Z; deployments.apps shop/web cannot be read now"},
		"offline, write": {Offline(&put, time.Time{}), 503, apierrors.IsServiceUnavailable, "5",
			"since it started; deployments.apps shop/web cannot be changed now"},
		"failed": {Failed("why"), 503, apierrors.IsServiceUnavailable, "1", "why"},
		"lost":   {Lost(&put), 504, apierrors.IsTimeout, "", "deployments.apps shop/web may have been changed"},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			Write(w, httptest.NewRequest(http.MethodGet, "/", nil), tc.status)
			var got metav1.Status
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatalf("body %q: %v", w.Body, err)
			}
			if w.Code != tc.code || got.Code != int32(tc.code) || got.Kind != "Status" || got.APIVersion != "v1" ||
				got.Status != metav1.StatusFailure {
				t.Errorf("code %d, status %+v; want %d of a v1 Status that is a failure", w.Code, got, tc.code)
			}
			if !tc.is(&apierrors.StatusError{ErrStatus: got}) {
				t.Errorf("reason %q is not taken for what it is", got.Reason)
			}
			if after := w.Header().Get("Retry-After"); after != tc.retryAfter {
				t.Errorf("Retry-After = %q, want %q", after, tc.retryAfter)
			}
			details := got.Details
			if tc.retryAfter == "" && details != nil && details.RetryAfterSeconds != 0 {
				t.Errorf("retryAfterSeconds = %d, want none", details.RetryAfterSeconds)
			}
			if !strings.Contains(got.Message, tc.says) {
				t.Errorf("message = %q, want it to contain %q", got.Message, tc.says)
			}
			if ct := w.Header().Get("Content-Type"); ct != "application/json" {
				t.Errorf("Content-Type = %q, want application/json", ct)
			}
		})
	}
}
