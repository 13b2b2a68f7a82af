// Package auth decides who may ask the node's authenticated port, as a kubelet does: who the caller is, by a
// certificate that the cluster's CA signed or by a token that the cluster knows; and whether they may, by asking the
// cluster's authorizer about a subresource of this node.
//
// It promises:
//
//   - What the cluster said is kept for a time and within a size, both of the configuration, so that a busy scraper
//     costs no message each time. Tokens are kept as digests only.
//   - While the cluster cannot be asked, a yes that it gave is good for up to an hour more; a no, or no answer, is no.
//   - Strangers cannot make this node ask more than a few questions a second, nor fill its memory. No source has more
//     than half of these questions, and none is taken from callers that the cluster has let in before: theirs have a
//     rate of their own.
//   - Ages are measured by the monotonic clock: a jump of the wall clock makes no answer older or younger.
package auth

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/edgecore-io/edgecore/pkg/sourceaddr"
)

// AnonymousUser is a caller without credentials.
const AnonymousUser = "system:anonymous"

// Groups that everybody is in.
const (
	unauthenticated = "system:unauthenticated"
	authenticated   = "system:authenticated"
)

const (
	// offlineAge is how old a yes of the cluster may be while the cluster cannot be asked.
	offlineAge = time.Hour
	// busyAge is how much longer than its time a token is known while too many questions wait.
	busyAge = 5 * time.Minute
	// strangerAge is how long a token stays unknown.
	strangerAge = 10 * time.Second
	// reviewTimeout bounds a question to the cluster.
	reviewTimeout    = 10 * time.Second
	reviewsPerSecond = 5
	reviewsBurst     = 20
	// reviewWait bounds the wait for that rate limit. So at most reviewWait * reviewsPerSecond requests wait.
	reviewWait = 2 * time.Second
	// cacheSize is how many answers of a kind are kept.
	cacheSize = 256
	maxToken  = 16 << 10
	maxGroups = 1024
	// maxUser bounds what is kept of a user, in bytes, and maxReason what is kept of the authorizer's reason.
	maxUser   = 128 << 10
	maxReason = 1 << 10
	bearer    = "bearer "
)

// Cloud is whom the cluster's questions go to; see package metaclient. An error means that there is no answer.
type Cloud interface {
	ReviewToken(ctx context.Context, review *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error)
	ReviewAccess(ctx context.Context,
		review *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error)
}

// Options are what the configuration says.
type Options struct {
	// Node is this node's name.
	Node string
	// Cloud is nil where there is none: then no token is known, and only AlwaysAllow lets anybody in.
	Cloud Cloud
	// CAs are those that sign clients' certificates; nil takes no certificate.
	CAs *CAs
	// Anonymous accepts requests without credentials, as AnonymousUser; the authorizer decides what they may do.
	Anonymous bool
	// Tokens allows bearer tokens, which the cluster reviews; an answer is good for TokenAge.
	Tokens   bool
	TokenAge time.Duration
	// AlwaysAllow authorizes every authenticated caller without asking the cluster.
	AlwaysAllow bool
	// AllowedAge and DeniedAge are how long the authorizer's answers are good for.
	AllowedAge, DeniedAge time.Duration
}

// User is who asks.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string]authenticationv1.ExtraValue
}

// Refusal says why a caller is refused, and with which HTTP status.
type Refusal struct {
	Code int
	Text string
}

func (r *Refusal) Error() string { return r.Text }

func refuse(code int, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Text: fmt.Sprintf(format, args...)}
}

// Authority decides. Its methods may be called from any goroutine.
type Authority struct {
	opts Options
	// tokens caches the tokens that the cluster knows, strangers those that it does not, so that unknown ones cannot
	// evict the others.
	tokens    *cache[*User]
	strangers *cache[struct{}]
	access    *cache[access]
	// tokenPace and accessPace bound the questions to the cloud: anyone who floods the first gets nowhere near the
	// second. Those about what the cluster has let in before have knownTokenPace and knownAccessPace.
	tokenPace, accessPace           *rate.Limiter
	knownTokenPace, knownAccessPace *rate.Limiter
	// asked are the questions about what the cluster has let in before that wait or are under way.
	asked singleflight.Group
	// sources bounds the questions about unknown tokens of each source.
	sources *sources
}

// New makes an authority.
func New(opts Options) *Authority {
	return &Authority{
		opts:       opts,
		tokens:     newCache[*User](cacheSize),
		strangers:  newCache[struct{}](cacheSize),
		access:     newCache[access](cacheSize),
		tokenPace:  rate.NewLimiter(reviewsPerSecond, reviewsBurst),
		accessPace: rate.NewLimiter(reviewsPerSecond, reviewsBurst),

		knownTokenPace:  rate.NewLimiter(reviewsPerSecond, reviewsBurst),
		knownAccessPace: rate.NewLimiter(reviewsPerSecond, reviewsBurst),
		sources:         newSources(),
	}
}

// Check lets a request in (nil), or says why not, as a *Refusal. The asker has to have the verb on one of the
// subresources of this node.
func (a *Authority) Check(r *http.Request, verb string, subresources ...string) error {
	user, err := a.authenticate(r)
	if err != nil {
		return err
	}
	if a.opts.AlwaysAllow {
		return nil
	}
	return a.authorizeAny(r.Context(), user, verb, subresources)
}

// authenticate returns the caller: by certificate, else by token, else anonymous.
func (a *Authority) authenticate(r *http.Request) (*User, error) {
	user, certErr := a.byCertificate(r)
	if user != nil {
		return user, nil
	}
	if token, shown := tokenOf(r); shown && a.opts.Tokens {
		return a.byToken(r.Context(), token, sourceaddr.Parse(r.RemoteAddr))
	} else if shown {
		return nil, refuse(http.StatusUnauthorized,
			"Unauthorized: this node accepts no tokens (authentication.webhook.enabled is false)")
	}
	switch {
	case certErr != nil:
		return nil, refuse(http.StatusUnauthorized, "Unauthorized: %v", certErr)
	case a.opts.Anonymous:
		return &User{Name: AnonymousUser, Groups: []string{unauthenticated}}, nil
	}
	return nil, refuse(http.StatusUnauthorized, "Unauthorized: show a client certificate or a token of the cluster")
}

// tokenOf is the token that a request shows.
func tokenOf(r *http.Request) (token string, shown bool) {
	value := strings.TrimSpace(r.Header.Get("Authorization"))
	if len(value) <= len(bearer) || !strings.EqualFold(value[:len(bearer)], bearer) {
		return "", false
	}
	token = strings.TrimSpace(value[len(bearer):])
	return token, token != ""
}
