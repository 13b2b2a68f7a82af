package server

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slowWriter takes some time for each piece that it is given, and none that is late.
type slowWriter struct {
	http.ResponseWriter
	each     time.Duration
	deadline time.Time
	got      int
}

func (w *slowWriter) SetWriteDeadline(at time.Time) error { w.deadline = at; return nil }

func (w *slowWriter) Write(data []byte) (int, error) {
	if time.Sleep(w.each); !w.deadline.IsZero() && time.Now().After(w.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	w.got += len(data)
	return len(data), nil
}

// TestPatience: a long answer over a slow link arrives as a whole; a client that does not read is cut off; streams have
// no deadline at all.
func TestPatience(t *testing.T) {
	for name, c := range map[string]struct {
		each   time.Duration
		stream bool
		want   int
		err    error
	}{
		"a slow link":             {20 * time.Second, false, 100_000, nil},
		"a client that is away":   {40 * time.Second, false, 0, os.ErrDeadlineExceeded},
		"a stream that is silent": {time.Hour, true, 100_000, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			var failed error
			route := Route{Stream: c.stream, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, failed = w.Write(make([]byte, 100_000))
			})}
			w := &slowWriter{ResponseWriter: httptest.NewRecorder(), each: c.each}
			patiently(http.HandlerFunc(route.served)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/pods", nil))
			if w.got != c.want || !errors.Is(failed, c.err) {
				t.Errorf("%s: got %d bytes, %v; want %d, %v", name, w.got, failed, c.want, c.err)
			}
		})
	}
}

// TestSLIs: what the checks of /healthz said, under the names that all components of Kubernetes have.
func TestSLIs(t *testing.T) {
	s := NewSLIs()
	s.count("ping", nil)
	s.count("syncloop", nil)
	s.count("syncloop", errors.New("down"))
	w := httptest.NewRecorder()
	s.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics/slis", nil))
	for _, want := range []string{
		`kubernetes_healthcheck{name="ping",type="healthz"} 1`,
		`kubernetes_healthcheck{name="syncloop",type="healthz"} 0`,
		`kubernetes_healthchecks_total{name="syncloop",status="error",type="healthz"} 1`,
		`kubernetes_healthchecks_total{name="syncloop",status="success",type="healthz"} 1`,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("metrics are\n%s\nwant %s", w.Body, want)
		}
	}
}
