package server

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
)

// TestMemoryProfile: profiles of allocations say how to have them recorded where they are not.
func TestMemoryProfile(t *testing.T) {
	before := runtime.MemProfileRate
	t.Cleanup(func() { runtime.MemProfileRate = before })
	for _, test := range []struct {
		rate, code int
		body       string
	}{
		{0, http.StatusNotFound, "GODEBUG=memprofilerate="},
		{before, http.StatusOK, "heap profile: "},
	} {
		runtime.MemProfileRate = test.rate
		for _, name := range []string{"heap", "allocs"} {
			answer := httptest.NewRecorder()
			memoryProfile(name)(answer, httptest.NewRequest(http.MethodGet, "/debug/pprof/"+name+"?debug=1", nil))
			if body := answer.Body.String(); answer.Code != test.code || !strings.Contains(body, test.body) {
				t.Errorf("profile %s at rate %d = %d %.100q, want %d and %q", name, test.rate, answer.Code, body,
					test.code, test.body)
			}
		}
	}
}
