package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// cloud knows token "good" as user sa of group g, and lets users do what allowed says ("user verb subresource").
type cloud struct {
	mu      sync.Mutex
	down    error
	known   map[string]string
	allowed map[string]bool
	denied  bool
	// takes is how long an answer takes.
	takes time.Duration
	asked []string
}

func (c *cloud) ReviewToken(_ context.Context, r *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	time.Sleep(c.takes)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, "token "+r.Spec.Token)
	if c.down != nil {
		return nil, c.down
	}
	out := &authenticationv1.TokenReview{}
	if name, ok := c.known[r.Spec.Token]; ok {
		out.Status = authenticationv1.TokenReviewStatus{
			Authenticated: true, User: authenticationv1.UserInfo{
				Username: name, Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}},
			},
		}
	}
	return out, nil
}

func (c *cloud) ReviewAccess(
	_ context.Context, r *authorizationv1.SubjectAccessReview,
) (*authorizationv1.SubjectAccessReview, error) {
	time.Sleep(c.takes)
	c.mu.Lock()
	defer c.mu.Unlock()
	a := r.Spec.ResourceAttributes
	what := r.Spec.User + " " + a.Verb + " " + a.Subresource
	c.asked = append(c.asked, what+" of "+a.Resource+"/"+a.Name+" "+strings.Join(r.Spec.Groups, ","))
	if c.down != nil {
		return nil, c.down
	}
	return &authorizationv1.SubjectAccessReview{
		Status: authorizationv1.SubjectAccessReviewStatus{Allowed: c.allowed[what], Denied: c.denied, Reason: "RBAC"},
	}, nil
}

func (c *cloud) questions() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.asked
	c.asked = nil
	return q
}

func (c *cloud) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// code is how a check ends: 200, or the refusal's.
func code(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 200
	}
	r, ok := errors.AsType[*Refusal](err)
	if !ok {
		t.Fatalf("%v, want a refusal", err)
	}
	return r.Code
}

func withToken(token string) *http.Request {
	r := httptest.NewRequest("GET", "/pods", nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

func options(c *cloud) Options {
	return Options{
		Node:       "n1",
		Cloud:      c,
		Tokens:     true,
		TokenAge:   2 * time.Minute,
		AllowedAge: 5 * time.Minute,
		DeniedAge:  30 * time.Second,
	}
}

// TestWhatTheClusterSaysIsKept: for its time while the cloud can be asked, for an hour while it cannot; a no is never
// kept longer than its time.
func TestWhatTheClusterSaysIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{known: map[string]string{"good": "sa"}, allowed: map[string]bool{"sa get pods": true}}
		a := New(options(c))
		check := func(want int, questions int, token, verb string, subs ...string) {
			t.Helper()
			err := a.Check(withToken(token), verb, subs...)
			asked := c.questions()
			if got := code(t, err); got != want || len(asked) != questions {
				t.Errorf("%d (%v), asked %q; want %d and %d questions", got, err, asked, want, questions)
			}
		}
		check(200, 2, "good", "get", "pods", "proxy")
		check(200, 0, "good", "get", "pods", "proxy")
		check(403, 1, "good", "create", "proxy")
		check(403, 0, "good", "create", "proxy")
		check(401, 1, "bad", "get", "pods")
		check(401, 0, "bad", "get", "pods")

		time.Sleep(time.Minute)
		check(403, 1, "good", "create", "proxy") // a no is asked again
		check(401, 1, "bad", "get", "pods")
		check(200, 0, "good", "get", "pods") // a yes is not

		c.set(func() { c.down = errors.New("not connected") })
		time.Sleep(30 * time.Minute)
		check(200, 2, "good", "get", "pods")     // what was so is so
		check(503, 2, "good", "create", "proxy") // what was not is not
		check(503, 1, "bad", "get", "pods")      // who was nobody is nobody
		check(503, 2, "good", "get", "stats")    // what was never asked
		check(503, 1, "unknown", "get", "pods")  // who was never here
		time.Sleep(30 * time.Minute)             // an hour and more
		check(503, 1, "good", "get", "pods")     // is too long

		c.set(func() { c.down = nil; delete(c.known, "good") })
		check(401, 1, "good", "get", "pods") // gone
		c.set(func() { c.down = errors.New("not connected") })
		check(401, 0, "good", "get", "pods")
	})
}

// TestWhatIsAsked: about this node, in whose name, one subresource after another.
func TestWhatIsAsked(t *testing.T) {
	c := &cloud{known: map[string]string{"good": "sa"}, allowed: map[string]bool{"sa get proxy": true}}
	a := New(options(c))
	if err := a.Check(withToken("good"), "get", "pods", "proxy"); err != nil {
		t.Error(err)
	}
	want := "[token good sa get pods of nodes/n1 g sa get proxy of nodes/n1 g]"
	if got := fmt.Sprint(c.questions()); got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	err := a.Check(withToken("good"), "create", "proxy")
	if want := "Forbidden (user=sa, verb=create, resource=nodes, subresource=proxy): RBAC"; err == nil ||
		err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	c.denied = true
	if err := New(options(c)).Check(withToken("good"), "get", "proxy"); code(t, err) != 403 {
		t.Errorf("allowed and denied at once: %v, want 403", err)
	}
}

// TestStrangers: no flood of bad tokens asks the cloud without bound, fills the memory, or drives out those who are
// known.
func TestStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{
			known:   map[string]string{"good": "sa", "late": "sa2"},
			allowed: map[string]bool{"sa get pods": true, "sa2 get pods": true},
		}
		a := New(options(c))
		if err := a.Check(withToken("good"), "get", "pods"); err != nil {
			t.Fatal(err)
		}
		c.questions()
		var flood sync.WaitGroup
		for i := range 10 * cacheSize {
			flood.Go(func() {
				if err := a.Check(withToken(fmt.Sprint("bad", i)), "get", "pods"); err == nil {
					t.Errorf("Check(token bad%d) = nil, want an error", i)
				}
			})
		}
		synctest.Wait()
		if n := len(c.questions()); n > reviewsBurst {
			t.Errorf("%d questions at once, want at most %d", n, reviewsBurst)
		}
		if err := a.Check(withToken("good"), "get", "pods"); err != nil {
			t.Errorf("who was known: %v, want admitted", err)
		}
		if err := a.Check(withToken("late"), "get", "pods"); code(t, err) != 503 {
			t.Errorf("in the flood: %v, want 503", err)
		}
		flood.Wait()
		if n, want := len(c.questions()), int(reviewWait.Seconds()*reviewsPerSecond); n > want {
			t.Errorf("%d questions have waited, want at most %d", n, want)
		}
		if n := a.strangers.len() + a.tokens.len() + a.access.len(); n > 3*cacheSize {
			t.Errorf("%d answers kept, want at most %d", n, 3*cacheSize)
		}
		if err := a.Check(withToken("late"), "get", "pods"); err != nil {
			t.Errorf("after the flood: %v, want admitted", err)
		}
		if err := a.Check(withToken(strings.Repeat("x", maxToken+1)), "get", "pods"); code(t, err) != 401 {
			t.Errorf("a huge token: %v, want 401", err)
		}
	})
}

// TestKnownInAFlood: callers that the cluster has let in before are asked about again while strangers flood, and keep
// what they were allowed. A source that floods leaves questions to others.
func TestKnownInAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{
			known:   map[string]string{"good": "sa", "new": "sa", "tenant": "tenant"},
			allowed: map[string]bool{"sa get pods": true},
		}
		o := options(c)
		a := New(o)
		if err := a.Check(withToken("good"), "get", "pods"); err != nil {
			t.Fatal(err)
		}
		var flood sync.WaitGroup
		attack := func() {
			for i := range 2 * reviewsBurst {
				flood.Go(func() { _ = a.Check(withToken(fmt.Sprint("bad", i, time.Now())), "get", "pods") })
				flood.Go(func() { _ = a.Check(withToken("tenant"), "get", fmt.Sprint("x", i, time.Now())) })
			}
			synctest.Wait()
		}
		for round := range 20 {
			time.Sleep(o.TokenAge + o.AllowedAge) // what was reviewed is too old each time
			attack()
			if err := a.Check(withToken("good"), "get", "pods"); err != nil {
				t.Errorf("round %d: a known token: %v, want admitted", round, err)
			}
		}
		attack()
		other := withToken("new")
		other.RemoteAddr = "192.0.2.77:1"
		if err := a.Check(other, "get", "pods"); err != nil {
			t.Errorf("a new token of another source: %v, want admitted", err)
		}
		flood.Wait()
	})
}

// TestKnownWhileTooMany: a token that was known is good for some minutes more while questions about known ones are too
// many, and no longer.
func TestKnownWhileTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{known: map[string]string{"good": "sa"}, allowed: map[string]bool{"sa get pods": true}}
		o := options(c)
		o.AllowedAge = 24 * time.Hour
		a := New(o)
		if err := a.Check(withToken("good"), "get", "pods"); err != nil {
			t.Fatal(err)
		}
		drain := func() {
			for a.knownTokenPace.AllowN(time.Now(), 1) {
			}
			a.knownTokenPace.ReserveN(time.Now(), reviewsBurst)
		}
		time.Sleep(o.TokenAge + busyAge - time.Second)
		drain()
		if err := a.Check(withToken("good"), "get", "pods"); err != nil {
			t.Errorf("soon after its time: %v, want admitted", err)
		}
		time.Sleep(time.Second)
		drain()
		if err := a.Check(withToken("good"), "get", "pods"); code(t, err) != 503 {
			t.Errorf("long after its time: %v, want 503", err)
		}
	})
}

// TestFloodedAccessIsNoGrace: who makes the cloud's questions too many gets no older answers by it.
func TestFloodedAccessIsNoGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{known: map[string]string{"good": "sa"}, allowed: map[string]bool{"sa get pods": true}}
		o := options(c)
		o.TokenAge = time.Hour
		a := New(o)
		if err := a.Check(withToken("good"), "get", "pods"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		c.set(func() { c.allowed = nil })
		var flood sync.WaitGroup
		for i := range 2 * reviewsBurst {
			flood.Go(func() {
				if err := a.Check(withToken("good"), "get", fmt.Sprint("x", i)); err == nil {
					t.Errorf("Check(a good token, get x%d) = nil, want an error", i)
				}
			})
		}
		synctest.Wait()
		if err := a.Check(withToken("good"), "get", "pods"); code(t, err) != 403 {
			t.Errorf("Check by an expired approval in the flood = %v, want 403", err)
		}
		flood.Wait()
	})
}

// TestReviewsWait: a few reviews more than the burst wait for the rate limit.
func TestReviewsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{known: map[string]string{"good": "sa"}, allowed: map[string]bool{}}
		for i := range reviewsBurst + 1 {
			c.allowed[fmt.Sprintf("sa get x%d", i)] = true
		}
		a := New(options(c))
		start := time.Now()
		for i := range reviewsBurst + 1 {
			if err := a.Check(withToken("good"), "get", fmt.Sprint("x", i)); err != nil {
				t.Errorf("Check(get x%d) = %v, want admitted", i, err)
			}
		}
		if took := time.Since(start); took != time.Second/reviewsPerSecond {
			t.Errorf("one question too many waited %s, want %s", took, time.Second/reviewsPerSecond)
		}
		var waiting sync.WaitGroup
		for i := range int(reviewWait.Seconds() * reviewsPerSecond) {
			waiting.Go(func() {
				if err := a.Check(withToken("good"), "get", fmt.Sprint("y", i)); err == nil {
					t.Errorf("Check(get y%d) = nil, want an error", i)
				}
			})
		}
		synctest.Wait()
		start = time.Now()
		if err := a.Check(withToken("good"), "get", "z"); code(t, err) != 503 || time.Since(start) != 0 {
			t.Errorf("a question for which there is no room: %v after %s, want 503 at once", err, time.Since(start))
		}
		waiting.Wait()
	})
}

// TestOneReviewForAllThatWait: requests that waited for the rate limit use the answer that another one has received.
func TestOneReviewForAllThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cloud{
			known:   map[string]string{"good": "sa"},
			allowed: map[string]bool{"sa get pods": true},
			takes:   time.Millisecond, // so the requests of the burst all ask
		}
		a := New(options(c))
		var all sync.WaitGroup
		for range reviewsBurst + 5 {
			all.Go(func() {
				r := withToken("good")
				r.RemoteAddr = "" // through tunnels: of no one source
				if err := a.Check(r, "get", "pods"); err != nil {
					t.Errorf("Check = %v, want admitted", err)
				}
			})
		}
		all.Wait()
		if n := len(c.questions()); n != 2*reviewsBurst {
			t.Errorf("%d reviews, want %d of each kind", n, reviewsBurst)
		}
	})
}

func TestModes(t *testing.T) {
	c := &cloud{allowed: map[string]bool{AnonymousUser + " get pods": true}}
	for _, tc := range []struct {
		name  string
		opts  Options
		token string
		want  int
		text  string
	}{
		{"nobody", Options{Cloud: c, Tokens: true}, "", 401, "show a client certificate or a token"},
		{"anonymous", Options{Cloud: c, Anonymous: true}, "", 200, ""},
		{"anonymous with a token is no anonymous", Options{Cloud: c, Anonymous: true, Tokens: true}, "bad", 401,
			"does not know this token"},
		{"no tokens", Options{Cloud: c, AlwaysAllow: true}, "good", 401, "accepts no tokens"},
		{"anonymous, always allowed", Options{Anonymous: true, AlwaysAllow: true}, "", 200, ""},
		{"anonymous, no cloud", Options{Anonymous: true}, "", 503, "has not joined a cloud"},
		{"token, no cloud", Options{Tokens: true}, "good", 503, "has not joined a cloud"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := New(tc.opts).Check(withToken(tc.token), "get", "pods")
			if got := code(t, err); got != tc.want || err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%d %v; want %d %s", got, err, tc.want, tc.text)
			}
		})
	}
}

// shows is a request of anyone who has a certificate.
func shows(chain ...*x509.Certificate) *http.Request {
	r := httptest.NewRequest("GET", "/pods", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: chain}
	return r
}

func TestCertificates(t *testing.T) {
	old, cluster, wrong := newCA(t, "old"), newCA(t, "cluster"), newCA(t, "wrong")
	file := filepath.Join(t.TempDir(), "ca.crt")
	write := func(data []byte) {
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(old.pem())
	asked := 0
	var bad error
	now := time.Now()
	cas := NewCAs(CAOptions{File: file, Now: func() time.Time {
		return now
	}, Cluster: func(context.Context) ([]byte, error) { asked++; return cluster.pem(), bad }})
	a := New(Options{CAs: cas, AlwaysAllow: true})
	admin := pkix.Name{CommonName: "admin", Organization: []string{"ops"}}
	for _, tc := range []struct {
		name string
		r    *http.Request
		want int
	}{
		{"of the file", shows(old.sign(t, admin, x509.ExtKeyUsageClientAuth)), 200},
		{"of the cluster", shows(cluster.sign(t, admin, x509.ExtKeyUsageClientAuth)), 200},
		{"of nobody", shows(wrong.sign(t, admin, x509.ExtKeyUsageClientAuth)), 401},
		{"with its own CA beside it", shows(wrong.sign(t, admin, x509.ExtKeyUsageClientAuth), wrong.cert), 401},
		{"a server's", shows(old.sign(t, admin, x509.ExtKeyUsageServerAuth)), 401},
		{
			"without a name",
			shows(old.sign(t, pkix.Name{Organization: []string{"system:masters"}}, x509.ExtKeyUsageClientAuth)), 401,
		},
		{"none", httptest.NewRequest("GET", "/", nil), 401},
	} {
		if got := code(t, a.Check(tc.r, "get", "pods")); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
	if asked != 1 {
		t.Errorf("strangers had the cluster asked %d times, want once", asked)
	}
	user, err := a.byCertificate(shows(old.sign(t, admin, x509.ExtKeyUsageClientAuth)))
	if err != nil || user.Name != "admin" || fmt.Sprint(user.Groups) != "[ops system:authenticated]" {
		t.Errorf("user %+v, %v; want admin of ops", user, err)
	}
	good := old.sign(t, admin, x509.ExtKeyUsageClientAuth)
	now = now.Add(48 * time.Hour)
	if err := a.Check(shows(good), "get", "pods"); code(t, err) != 401 {
		t.Errorf("an expired one: %v, want 401", err)
	}
	now = now.Add(-48 * time.Hour)
	// A file of no use changes nothing; a new one does.
	write([]byte("nothing"))
	if err := a.Check(shows(good), "get", "pods"); err != nil {
		t.Errorf("with a broken file: %v, want admitted", err)
	}
	write(append(wrong.pem(), '\n'))
	if err := a.Check(shows(wrong.sign(t, admin, x509.ExtKeyUsageClientAuth)), "get", "pods"); err != nil {
		t.Errorf("with a new file: %v, want admitted", err)
	}
	// A cloud that does not answer leaves what was known.
	bad = errors.New("not connected")
	if err := cas.Learn(t.Context()); !errors.Is(err, bad) {
		t.Errorf("Learn() = %v, want %v", err, bad)
	}
	if err := a.Check(shows(cluster.sign(t, admin, x509.ExtKeyUsageClientAuth)), "get", "pods"); err != nil {
		t.Errorf("the cluster's after a failure: %v, want admitted", err)
	}
}

// TestCAThatIsNoMore: one that the cluster does not trust any more is not trusted here for ever, however quiet the link
// is.
func TestCAThatIsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, fresh := newCA(t, "old"), newCA(t, "fresh")
		now, asked := old.pem(), 0
		var bad error
		wall := time.Now()
		cas := NewCAs(CAOptions{Now: func() time.Time {
			return wall
		}, Cluster: func(context.Context) ([]byte, error) { asked++; return now, bad }})
		a := New(Options{CAs: cas, AlwaysAllow: true})
		r := shows(old.sign(t, pkix.Name{CommonName: "admin"}, x509.ExtKeyUsageClientAuth))
		if err := a.Check(r, "get", "pods"); err != nil {
			t.Fatal(err)
		}
		now = fresh.pem()
		time.Sleep(caAge / 2)
		if err := a.Check(r, "get", "pods"); err != nil || asked != 1 {
			t.Errorf("%v, asked %d times; want admitted, once", err, asked)
		}
		bad = errors.New("not connected")
		time.Sleep(caAge)
		for range 3 { // a CA is not forgotten for want of a link
			if err := a.Check(r, "get", "pods"); err != nil || asked != 2 {
				t.Errorf("%v, asked %d times; want admitted, twice", err, asked)
			}
		}
		bad = nil
		time.Sleep(2 * refreshPace)
		if err := a.Check(r, "get", "pods"); code(t, err) != 401 {
			t.Errorf("a CA that the cluster does not trust any more: %v, want 401", err)
		}
	})
}
