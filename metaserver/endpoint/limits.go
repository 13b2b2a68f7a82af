package endpoint

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/metaserver/apierror"
	"github.com/edgecore-io/edgecore/pkg/ratelimit"
	"github.com/edgecore-io/edgecore/pkg/shares"
)

const (
	// maxRequests and accountRequests are how many requests with an end are under way, in all and of an account.
	maxRequests     = 200
	accountRequests = 50
	// maxWatches and accountWatches are the same for watches and what else has no end.
	maxWatches     = 400
	accountWatches = 64
	// maxUnknown and sourceUnknown are the same for those whose token is not of a pod of this device: of requests, and
	// of watches.
	maxUnknown    = 16
	sourceUnknown = 8
	// The rates are requests a second, and at once.
	accountRate, accountBurst   = 50, 200
	unknownRate, unknownBurst   = 5, 10
	strangerRate, strangerBurst = 20, 40
	// busyRetry is when a client may try again that has too much under way.
	busyRetry = time.Second
)

// limits are what callers may ask for at once and in a second.
type limits struct {
	requests, watches               *shares.Budget[string]
	unknownRequests, unknownWatches *shares.Budget[string]
	pods, unknown, strangers        *ratelimit.Limiter[string]

	mu sync.Mutex
	// clients are the accounts that have something under way.
	clients map[string]*Client
}

// Client is what an account has under way.
type Client struct {
	Requests, Watches int
}

func newLimits() *limits {
	return &limits{
		requests:        shares.NewBudget[string](maxRequests, accountRequests),
		watches:         shares.NewBudget[string](maxWatches, accountWatches),
		unknownRequests: shares.NewBudget[string](maxUnknown, sourceUnknown),
		unknownWatches:  shares.NewBudget[string](maxUnknown, sourceUnknown),
		pods:            ratelimit.New[string](accountRate, accountBurst),
		unknown:         ratelimit.New[string](unknownRate, unknownBurst),
		strangers:       ratelimit.New[string](strangerRate, strangerBurst),
		clients:         map[string]*Client{},
	}
}

// refusal is why a request is not served.
type refusal struct {
	why    string
	status *metav1.Status
}

// enter takes what a request needs, and returns what gives it back, or why the request is refused.
func (l *limits) enter(c caller, long bool, now time.Time) (release func(), refused *refusal) {
	rates, of := l.pods, "of service account "+c.account
	switch c.kind {
	case unknown:
		rates, of = l.unknown, "with tokens that are not of a pod of this device"
	case stranger, health:
		rates, of = l.strangers, "without a token"
	}
	reservation := rates.Of(c.account, now).ReserveN(now, 1)
	if wait := reservation.DelayFrom(now); wait > 0 {
		reservation.CancelAt(now)
		return nil, &refusal{whyRate, apierror.TooManyRequests("too many requests "+of, wait)}
	}
	var taken []*shares.Budget[string]
	give := func() {
		for _, b := range taken {
			b.Return(c.account, 1)
		}
	}
	for _, b := range l.budgets(c.kind, long) {
		if !b.Take(c.account, 1) {
			give()
			what, why := "requests", whyRequests
			if long {
				what, why = "watches", whyWatches
			}
			return nil, &refusal{why, apierror.TooManyRequests("too many "+what+" "+of+" are under way", busyRetry)}
		}
		taken = append(taken, b)
	}
	if c.kind == stranger || c.kind == health {
		return give, nil
	}
	l.count(c.account, long, 1)
	return func() {
		l.count(c.account, long, -1)
		give()
	}, nil
}

// budgets are those that a request takes a place of.
func (l *limits) budgets(k kind, long bool) []*shares.Budget[string] {
	all, unknowns := l.requests, l.unknownRequests
	if long && k <= unknown {
		all, unknowns = l.watches, l.unknownWatches
	}
	if k == unknown {
		return []*shares.Budget[string]{unknowns, all}
	}
	return []*shares.Budget[string]{all}
}

// count notes that an account has one more or one fewer under way.
func (l *limits) count(account string, long bool, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.clients[account]
	if c == nil {
		c = &Client{}
		l.clients[account] = c
	}
	if long {
		c.Watches += n
	} else {
		c.Requests += n
	}
	if *c == (Client{}) {
		delete(l.clients, account)
	}
}

// Clients returns what each account has under way, by NAMESPACE/NAME.
func (e *Endpoint) Clients() map[string]Client {
	l := e.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	clients := make(map[string]Client, len(l.clients))
	for account, c := range l.clients {
		clients[account] = *c
	}
	return clients
}
