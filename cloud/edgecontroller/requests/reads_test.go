package requests

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// An API server that does not know a pod yet is asked again for a while; what is missing otherwise is missing.
func TestPatiently(t *testing.T) {
	for name, c := range map[string]struct {
		refusal error
		again   bool
	}{
		"forbidden": {apierrors.NewForbidden(v1.Resource("secrets"), "s", errors.New("no relationship found")),
			true},
		"pod not there yet": {apierrors.NewNotFound(v1.Resource("pod"), "p"), true},
		"account not there": {apierrors.NewNotFound(v1.Resource("serviceaccounts"), "a"), false},
		"not an answer":     {errors.New("connection refused"), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, tries := time.Now(), 0
				got, err := retryUnknownPod(t.Context(), func() (string, error) {
					if tries++; tries < 3 {
						return "", c.refusal
					}
					return "done", nil
				})
				if again := err == nil && got == "done"; again != c.again {
					t.Errorf("after %d tries: %q, %v; want it tried again: %v", tries, got, err, c.again)
				}
				if _, err := retryUnknownPod(t.Context(), func() (string, error) {
					return "", c.refusal
				}); !errors.Is(err,
					c.refusal) {
					t.Errorf("in the end: %v, want %v", err, c.refusal)
				}
				if took := time.Since(began); took > 2*authorizerLag {
					t.Errorf("took %v, want at most %v", took, 2*authorizerLag)
				}
			})
		})
	}
}
