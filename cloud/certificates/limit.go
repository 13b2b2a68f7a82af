package certificates

import (
	"log"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/ratelimit"
	"github.com/edgecore-io/edgecore/pkg/sourceaddr"
)

const (
	defaultRate  = 50
	defaultBurst = 500
)

// limiter limits the requests of each source; nil is no limit.
type limiter struct {
	sources *ratelimit.Limiter[netip.Prefix]
	now     func() time.Time
}

// newLimiter uses the default for 0, and no limit for negative rates.
func newLimiter(perSecond float64, burst int, now func() time.Time) *limiter {
	switch {
	case perSecond < 0:
		return nil
	case perSecond == 0:
		perSecond = defaultRate
	}
	if burst <= 0 {
		burst = defaultBurst
	}
	return &limiter{ratelimit.New[netip.Prefix](rate.Limit(perSecond), burst), now}
}

func (l *limiter) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !l.allow(r.RemoteAddr) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests from this address; try again in a second", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (l *limiter) allow(remote string) bool {
	if l == nil {
		return true
	}
	now := l.now()
	return l.sources.Of(sourceaddr.Parse(remote), now).AllowN(now, 1)
}

// klogWarnings logs net/http's messages, which are mostly about port scanners.
func klogWarnings() *log.Logger {
	return log.New(logWriter{}, "", 0)
}

type logWriter struct{}

func (logWriter) Write(p []byte) (int, error) {
	klog.V(2).InfoS("HTTPS", "message", string(p))
	return len(p), nil
}
