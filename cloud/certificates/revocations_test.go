package certificates

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// applied runs what follows the secrets until the test ends.
func applied(t *testing.T, replicas ...*Authority) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, a := range replicas {
		wg.Go(func() {
			if err := a.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func revoke(t *testing.T, secrets Secrets, node string, c *clock) time.Time {
	t.Helper()
	since, err := Revoke(t.Context(), secrets, node, c.now())
	if err != nil {
		t.Fatal(err)
	}
	return since
}

// joinAs gets a certificate with a token.
func (d *device) joinAs(node string, token *certs.Token) (answer, *tls.Certificate) {
	d.t.Helper()
	csr, cert := request(d.t, node)
	got := d.get("/edge.crt", csr, map[string]string{"NodeName": node, "Authorization": "Bearer " + token.Bearer})
	cert.Certificate = [][]byte{[]byte(got.body)}
	if got.status == http.StatusOK {
		var err error
		if cert.Leaf, err = x509.ParseCertificate([]byte(got.body)); err != nil {
			d.t.Fatal(err)
		}
	}
	return got, &cert
}

func (d *device) renewAs(node string, cert *tls.Certificate) answer {
	d.t.Helper()
	csr, _ := request(d.t, node)
	with := *d
	with.cert = cert
	return with.get("/edge.crt", csr, map[string]string{"NodeName": node})
}

func newTokenFor(t *testing.T, secrets Secrets, node string, c *clock) *certs.Token {
	t.Helper()
	token, err := NewNodeToken(t.Context(), secrets, node, c.now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// TestRevoked: all replicas refuse what a device had before its node was revoked, and accept what a new token gives.
func TestRevoked(t *testing.T) {
	secrets, c := newFakeSecrets(), newClock()
	a, b := newTestAuthority(t, secrets, c), newTestAuthority(t, secrets, c)
	d := &device{t: t, address: serve(t, a, fakeNodes{}), a: a}
	oldToken, general := newTokenFor(t, secrets, "edge1", c), newTokenFor(t, secrets, "", c)
	got, old := d.joinAs("edge1", general)
	if got.status != http.StatusOK {
		t.Fatalf("join: status %d %s, want %d", got.status, got.body, http.StatusOK)
	}
	other := certFor(t, a, "edge2")
	changed := make(chan struct{}, 10)
	a.OnChange(func() { changed <- struct{}{} })
	applied(t, a, b)

	since := revoke(t, secrets, "edge1", c)
	wait.Receive(t, "word that revocations have changed", changed)
	for _, replica := range []*Authority{a, b} {
		wait.True(t, "the revocation on each replica", func() bool { return replica.Check("edge1", old.Leaf) != nil })
		var revoked *RevokedError
		err := replica.Check("edge1", old.Leaf)
		if !errors.As(err, &revoked) || revoked.Node != "edge1" || !revoked.Since.Equal(since) ||
			!strings.Contains(err.Error(), "`cloudcore gettoken --node edge1`") {
			t.Errorf("Check = %v, want a revocation of edge1 at %v that names the remedy", err, since)
		}
		if err := replica.Check("edge2", other.Leaf); err != nil {
			t.Errorf("Check of another node = %v, want nil", err)
		}
	}
	for name, tc := range map[string]struct {
		answer
		status int
		body   string
	}{
		"renewal": {
			d.renewAs("edge1", old), http.StatusUnauthorized, "node edge1 was revoked at 2026-11-21T12:00:00Z",
		},
		"renewal, another node": {d.renewAs("edge2", other), http.StatusOK, ""},
		"token of before": {
			first(d.joinAs("edge1", oldToken)), http.StatusUnauthorized, "the token is older than the last revocation",
		},
		"general token": {
			first(d.joinAs("edge1", general)), http.StatusConflict, "`cloudcore gettoken --node edge1`",
		},
		"general, another node": {first(d.joinAs("edge3", general)), http.StatusOK, ""},
	} {
		if tc.answer.status != tc.status || tc.status != http.StatusOK && !strings.Contains(tc.answer.body, tc.body) {
			t.Errorf("%s: status %d %q, want %d %q", name, tc.answer.status, tc.answer.body, tc.status, tc.body)
		}
	}

	got, replacement := d.joinAs("edge1", newTokenFor(t, secrets, "edge1", c))
	if got.status != http.StatusOK {
		t.Fatalf("join with a new token: status %d %s, want %d", got.status, got.body, http.StatusOK)
	}
	for _, replica := range []*Authority{a, b} {
		if err := replica.Check("edge1", replacement.Leaf); err != nil {
			t.Errorf("Check of the new certificate = %v, want nil", err)
		}
	}
	if got := d.renewAs("edge1", replacement); got.status != http.StatusOK {
		t.Errorf("renewal of the new certificate: status %d %s, want %d", got.status, got.body, http.StatusOK)
	}
	// Within the same second, and within the time that certificates are dated back.
	again := revoke(t, secrets, "edge1", c)
	wait.True(t, "the second revocation", func() bool { return a.Check("edge1", replacement.Leaf) != nil })
	if !again.After(since) {
		t.Errorf("the second revocation is of %v, want it later than the first, %v", again, since)
	}
}

func first(got answer, _ *tls.Certificate) answer { return got }

// TestRevokedElsewhere: a cloudcore that has not heard of a revocation yet issues nothing that outlives it, and takes
// the token that was made after it.
func TestRevokedElsewhere(t *testing.T) {
	secrets, c := newFakeSecrets(), newClock()
	knows, behind := newTestAuthority(t, secrets, c), newTestAuthority(t, secrets, c)
	d := &device{t: t, address: serve(t, behind, fakeNodes{}), a: behind}
	stolen := certFor(t, knows, "edge1")
	revoke(t, secrets, "edge1", c)
	applied(t, knows)
	wait.True(t, "the revocation", func() bool { return knows.Check("edge1", stolen.Leaf) != nil })
	c.add(4 * time.Second)

	got := d.renewAs("edge1", stolen)
	if got.status != http.StatusOK {
		t.Fatalf("renewal by the cloudcore that has not heard of it: status %d %s, want %d", got.status, got.body,
			http.StatusOK)
	}
	renewed, err := x509.ParseCertificate([]byte(got.body))
	if err != nil {
		t.Fatal(err)
	}
	if err := knows.Check("edge1", renewed); err == nil {
		t.Error("the certificate that was renewed after the revocation is accepted, want it refused")
	}
	got, replacement := d.joinAs("edge1", newTokenFor(t, secrets, "edge1", c))
	if got.status != http.StatusOK {
		t.Fatalf("join: status %d %s, want %d", got.status, got.body, http.StatusOK)
	}
	if err := knows.Check("edge1", replacement.Leaf); err != nil {
		t.Errorf("Check of the replacement's certificate = %v, want nil", err)
	}
}

// TestRevokedKubeEdge: certificates of KubeEdge's cloudcore, which are not dated back, are told apart by the second.
func TestRevokedKubeEdge(t *testing.T) {
	since := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	r := parseRevocations(map[string][]byte{"edge1": []byte(since.Format(time.RFC3339)), "broken": []byte("yesterday")})
	for _, tc := range []struct {
		node   string
		begins time.Time
		want   bool
	}{
		{"edge1", since.Add(-time.Second), true}, {"edge1", since, false}, {"edge1", since.Add(time.Second), false},
		{"edge2", since.Add(-time.Hour), false}, {"broken", since.AddDate(100, 0, 0), true},
	} {
		if err := r.check(tc.node, &x509.Certificate{NotBefore: tc.begins}); (err != nil) != tc.want {
			t.Errorf("certificate of %s that begins at %v: %v, want refused = %v", tc.node, tc.begins, err, tc.want)
		}
	}
}

func TestRevocationMoment(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 5e8, time.UTC)
	second := now.Truncate(time.Second)
	for name, tc := range map[string]struct{ before, want time.Time }{
		"first":               {time.Time{}, second},
		"again":               {second.Add(-time.Hour), second},
		"in the same second":  {second, second.Add(time.Second)},
		"and once more":       {second.Add(time.Second), second.Add(2 * time.Second)},
		"after a wrong clock": {second.AddDate(1, 0, 0), second},
	} {
		if got := revocationMoment(tc.before, now); !got.Equal(tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestRevokedAhead: a revocation by a clock that is ahead says so, until its time has come.
func TestRevokedAhead(t *testing.T) {
	secrets, c := newFakeSecrets(), newClock()
	if _, err := Revoke(t.Context(), secrets, "edge1", c.now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	a := newTestAuthority(t, secrets, c)
	d := &device{t: t, address: serve(t, a, fakeNodes{}), a: a}
	token := newTokenFor(t, secrets, "edge1", c)
	if got, _ := d.joinAs("edge1", token); got.status != http.StatusServiceUnavailable ||
		!strings.Contains(got.body, "Try again in 1m1s") {
		t.Errorf("status %d %s, want %d and how long to wait", got.status, got.body, http.StatusServiceUnavailable)
	}
	c.add(time.Minute)
	if got, _ := d.joinAs("edge1", token); got.status != http.StatusOK {
		t.Errorf("status %d %s a minute later, want %d", got.status, got.body, http.StatusOK)
	}
}

// TestRevocationsAreBounded: old ones go, and a full secret says so.
func TestRevocationsAreBounded(t *testing.T) {
	secrets, c := newFakeSecrets(), newClock()
	a := newTestAuthority(t, secrets, c)
	revoke(t, secrets, "edge1", c)
	c.add(longestLifetime)
	revoke(t, secrets, "edge2", c)
	c.add(time.Hour)
	if err := a.loadRevocations(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.pruneRevocations(t.Context()); err != nil {
		t.Fatal(err)
	}
	if one, two := secrets.data(revocationsSecret, "edge1"), secrets.data(revocationsSecret, "edge2"); one != nil ||
		two == nil {
		t.Errorf("the secret holds %q and %q, want the second alone", one, two)
	}
	full := map[string][]byte{strings.Repeat("x", maxRevocations): nil}
	if _, _, err := update(t.Context(), secrets, revocationsSecret, func(map[string][]byte) (map[string][]byte, error) {
		return full, nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := Revoke(t.Context(), secrets, "edge3", c.now()); err == nil ||
		!strings.Contains(err.Error(), "no room") {
		t.Errorf("Revoke with a full secret = %v, want an error that says so", err)
	}
	if _, err := Revoke(t.Context(), secrets, "Edge_3", c.now()); err == nil {
		t.Error("a name that no node can have is revoked, want an error")
	}
}

// TestRevokedTwice: a device that joins within the second after two revocations waits for that second to end.
func TestRevokedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secrets := newFakeSecrets()
		for range 2 {
			if _, err := Revoke(t.Context(), secrets, "edge1", time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		a, err := New(t.Context(), secrets, Options{Addresses: []string{"127.0.0.1"}})
		if err != nil {
			t.Fatal(err)
		}
		token, err := NewNodeToken(t.Context(), secrets, "edge1", time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		csr, _ := request(t, "edge1")
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/edge.crt", bytes.NewReader(csr))
		req.Header.Set("NodeName", "edge1")
		req.Header.Set("Authorization", "Bearer "+token.Bearer)
		began, answer := time.Now(), httptest.NewRecorder()
		a.Handler(fakeNodes{}).ServeHTTP(answer, req)
		if answer.Code != http.StatusOK {
			t.Fatalf("status %d %s, want %d", answer.Code, answer.Body, http.StatusOK)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("answered after %v of the bubble's clock, want 1s", took)
		}
		cert, err := x509.ParseCertificate(answer.Body.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Check("edge1", cert); err != nil {
			t.Error(err)
		}
	})
}
