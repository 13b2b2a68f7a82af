package certificates

import (
	"log"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"
)

const (
	defaultRate  = 50
	defaultBurst = 500
	// maxAddresses bounds the memory: with more, those that were quiet for longest are forgotten, and have all
	// that is allowed to them again.
	maxAddresses = 10000
)

// limiter bounds the requests of each address.
type limiter struct {
	rate  rate.Limit
	burst int
	now   func() time.Time
	max   int // addresses

	mu      sync.Mutex
	buckets map[netip.Prefix]*bucket
}

type bucket struct {
	*rate.Limiter
	used time.Time
}

// newLimiter takes the default for 0, and sets no bound below.
func newLimiter(perSecond float64, burst int, now func() time.Time) *limiter {
	l := &limiter{rate: rate.Limit(perSecond), burst: burst, now: now, max: maxAddresses,
		buckets: map[netip.Prefix]*bucket{}}
	switch {
	case perSecond < 0:
		l.rate = rate.Inf
	case perSecond == 0:
		l.rate = defaultRate
	}
	if burst <= 0 {
		l.burst = defaultBurst
	}
	return l
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
	if l.rate == rate.Inf {
		return true
	}
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	key := network(remote)
	b, ok := l.buckets[key]
	if !ok {
		if len(l.buckets) >= l.max {
			l.forget(now)
		}
		b = &bucket{Limiter: rate.NewLimiter(l.rate, l.burst)}
		l.buckets[key] = b
	}
	b.used = now
	return b.AllowN(now, 1)
}

// forget drops those that are as good as new; if those are few, also the quarter that was quiet for longest,
// so that it need not be called for every address that is new.
func (l *limiter) forget(now time.Time) {
	var rest []netip.Prefix
	for key, b := range l.buckets {
		if b.TokensAt(now) >= float64(l.burst) {
			delete(l.buckets, key)
		} else {
			rest = append(rest, key)
		}
	}
	if len(rest) <= l.max*3/4 {
		return
	}
	slices.SortFunc(rest, func(a, b netip.Prefix) int { return l.buckets[a].used.Compare(l.buckets[b].used) })
	for _, key := range rest[:l.max/4] {
		delete(l.buckets, key)
	}
}

// network is whom an address belongs to: with IPv6 one customer has a whole /64.
func network(remote string) netip.Prefix {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	addr := ap.Addr().Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	prefix, _ := addr.Prefix(bits)
	return prefix
}

// klogWarnings takes what net/http has to say, which is mostly of port scanners.
func klogWarnings() *log.Logger {
	return log.New(logWriter{}, "", 0)
}

type logWriter struct{}

func (logWriter) Write(p []byte) (int, error) {
	klog.V(2).InfoS("HTTPS", "message", string(p))
	return len(p), nil
}
