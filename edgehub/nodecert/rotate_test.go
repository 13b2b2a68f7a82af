package nodecert_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	cloud "github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/edgehub/nodecert"
	"github.com/edgecore-io/edgecore/pkg/certs"
)

// join gets the first certificate.
func join(t *testing.T, opts nodecert.Options) *certs.Identity {
	t.Helper()
	if err := nodecert.New(opts).Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	return load(t, opts.Files)
}

func load(t *testing.T, f certs.Files) *certs.Identity {
	t.Helper()
	id, err := f.Load()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// sleeper ends a Rotate at a time of the fake clock, and notes how long each sleep was.
type sleeper struct {
	*clock
	until time.Time
	slept []time.Duration
}

func (s *sleeper) sleep(ctx context.Context, d time.Duration) error {
	s.slept = append(s.slept, d)
	s.add(d)
	if s.now().After(s.until) {
		return context.Canceled
	}
	return ctx.Err()
}

func shortLived(o *cloud.Options) { o.NodeLifetime = 100 * time.Hour }

// TestRotate lives through ten certificates: each certificate is renewed between 70 and 90 % of its life, with a
// new key, and each renewal is told of once.
func TestRotate(t *testing.T) {
	clk := newClock()
	c := newCloud(t, clk, shortLived)
	opts := c.options(t, c.token(t, ""))
	id := join(t, opts)
	s := &sleeper{clock: clk, until: clk.now().Add(1000 * time.Hour)}
	opts.Sleep, opts.Token = s.sleep, nil
	opts.Report = func(err error) { t.Errorf("reported %v, want no report", err) }
	renewals, keys := 0, map[string]bool{}
	nodecert.New(opts).Rotate(t.Context(), func() {
		renewals++
		next := load(t, opts.Files)
		lived := clk.now().Sub(id.Cert().NotBefore).Hours() / id.Cert().NotAfter.Sub(id.Cert().NotBefore).Hours()
		if lived < 0.7 || lived > 0.91 {
			t.Errorf("renewed after %.2f of its life, want 0.7 to 0.91", lived)
		}
		if keys[next.Key.X.String()] || next.Key.Equal(id.Key) {
			t.Error("the renewed certificate has an old key, want a new one")
		}
		keys[next.Key.X.String()] = true
		id = next
	})
	if renewals < 1000/91 || renewals > 1000/69 {
		t.Errorf("%d renewals in 10 lives, want %d to %d", renewals, 1000/91, 1000/69)
	}
	for _, d := range s.slept {
		if d > time.Hour {
			t.Errorf("slept for %v, want at most 1 h: a clock that jumps must be noticed", d)
		}
	}
}

// TestRotateTriesAgain: what fails is reported and tried again with growing waits, the certificate in use
// stays, and the end of the trouble is reported, too.
func TestRotateTriesAgain(t *testing.T) {
	clk := newClock()
	c := newCloud(t, clk, shortLived)
	o := &oldCloud{t: t, ca: c.Authority, now: clk.now}
	failures := 0
	o.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/edge.crt" || len(r.TLS.PeerCertificates) == 0 || failures == 12 {
			return false
		}
		failures++
		http.Error(w, "failed to sign certs", http.StatusInternalServerError)
		return true
	}
	opts := c.options(t, c.token(t, ""))
	opts.Server = o.start(t)
	first := join(t, opts)
	s := &sleeper{clock: clk, until: clk.now().Add(100 * time.Hour)}
	var reported []error
	opts.Report = func(err error) {
		reported = append(reported, err)
		if id := load(t, opts.Files); err != nil && !id.Cert().Equal(first.Cert()) {
			t.Errorf("certificate after failure %v = %v, want %v as before", err, id.Cert().SerialNumber,
				first.Cert().SerialNumber)
		}
	}
	opts.Sleep = s.sleep
	ctx, cancel := context.WithCancel(t.Context())
	nodecert.New(opts).Rotate(ctx, cancel)
	if len(reported) != 13 || reported[12] != nil {
		t.Fatalf("%d reports %v, want 13 with the last one nil", len(reported), reported)
	}
	wantProblem(t, reported[0], nodecert.Busy, "look at cloudcore's log")
	waits := s.slept[len(s.slept)-13:] // the last is after the renewal
	for i, want := 0, 2*time.Second; i < 12; i, want = i+1, min(2*want, 10*time.Minute) {
		if waits[i] < want || waits[i] > want*5/4 {
			t.Errorf("wait %d = %v, want %v to %v", i, waits[i], want, want*5/4)
		}
	}
}

// TestExpired: the device was off for too long. It says so, the files stay, and a token helps - also one
// that is put there while the agent runs.
func TestExpired(t *testing.T) {
	clk := newClock()
	c := newCloud(t, clk, nil)
	opts := c.options(t, c.token(t, ""))
	first := join(t, opts)
	clk.add(400 * 24 * time.Hour)
	token := ""
	opts.Token = func() (string, error) { return token, nil }
	k := nodecert.New(opts)
	wantProblem(t, k.Ensure(t.Context()), nodecert.Expired,
		"expired at 2027-11-21T12:00:00Z (the clock says 2027-12-26T12:00:00Z)", "edgecore join",
		"no state is lost, and the pods keep running")
	if !load(t, opts.Files).Cert().Equal(first.Cert()) {
		t.Errorf("certificate = %v, want %v as before", load(t, opts.Files).Cert().SerialNumber,
			first.Cert().SerialNumber)
	}
	var reported []error
	opts.Report = func(err error) {
		reported = append(reported, err)
		if len(reported) == 3 {
			token = c.token(t, "")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	nodecert.New(opts).Rotate(ctx, cancel)
	if len(reported) != 4 || reported[3] != nil {
		t.Fatalf("reported %v, want 4 with the last one nil", reported)
	}
	wantProblem(t, reported[0], nodecert.Expired)
	if err := nodecert.New(opts).Check(); err != nil {
		t.Error(err)
	}
}

// TestRenewalRefused: the cloud was set up again, or does not know the certificate.
func TestRenewalRefused(t *testing.T) {
	clk := newClock()
	c, anew := newCloud(t, clk, nil), newCloud(t, clk, nil)
	for name, tc := range map[string]struct {
		server func(o *oldCloud) string
		reason nodecert.Reason
		text   string
	}{
		"set up again": {func(*oldCloud) string {
			return "https://" + anew.address
		}, nodecert.WrongCA, "join again with a new token"},
		"unknown": {func(o *oldCloud) string {
			o.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if len(r.TLS.PeerCertificates) > 0 {
					http.Error(w, "failed to verify the certificate for edgenode: edge1, err: revoked",
						http.StatusUnauthorized)
				}
				return len(r.TLS.PeerCertificates) > 0
			}
			return o.start(t)
		}, nodecert.Refused, "does not accept this device's certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			opts := c.options(t, c.token(t, ""))
			join(t, opts)
			o := &oldCloud{t: t, ca: c.Authority, now: clk.now}
			opts.Server = tc.server(o)
			at := clk.now()
			defer func() { clk.add(at.Sub(clk.now())) }()
			clk.add(360 * 24 * time.Hour)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var got error
			opts.Report = func(err error) { got = err; cancel() }
			nodecert.New(opts).Rotate(ctx, func() { t.Errorf("renewed, want a report of %s", tc.reason) })
			wantProblem(t, got, tc.reason, tc.text)
		})
	}
}

// TestClockOfTheCertificate: a device whose clock starts in 1970 still dials, since it cannot be before its
// own certificate; and one whose bound is not enough says what the matter is.
func TestClockOfTheCertificate(t *testing.T) {
	clk := newClock()
	c := newCloud(t, clk, nil)
	opts := c.options(t, c.token(t, ""))
	join(t, opts)
	opts.Now = func() time.Time { return time.Unix(0, 0) }
	k := nodecert.New(opts)
	if err := k.Check(); err != nil {
		t.Error(err)
	}
	if taken, err := k.NameTaken(t.Context(), c.token(t, "")); taken || err != nil {
		t.Errorf("it does not dial: %v", err)
	}
	clk.add(500 * 24 * time.Hour) // the cloud renews its certificate, which the device has not heard of
	if err := c.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := k.NameTaken(t.Context(), c.token(t, ""))
	wantProblem(t, err, nodecert.Clock, "behind the cloud's", "date -s")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	opts.Report = func(err error) {
		wantProblem(t, err, nodecert.Clock, "and the cloud's certificate is valid from", "timedatectl")
		cancel()
	}
	opts.Now = func() time.Time { return clk.now().Add(-200 * 24 * time.Hour) }
	nodecert.New(opts).Rotate(ctx, func() { t.Errorf("renewed, want a report of %s", nodecert.Clock) })
	if ctx.Err() == nil {
		t.Errorf("reported nothing, want a report of %s", nodecert.Clock)
	}
}

// TestOtherFiles: what Check says of files that are invalid.
func TestOtherFiles(t *testing.T) {
	c := newCloud(t, newClock(), nil)
	opts := c.options(t, c.token(t, ""))
	join(t, opts)
	other := opts
	other.Node = "edge2"
	other.Token = nil
	wantProblem(t, nodecert.New(other).Ensure(t.Context()), nodecert.WrongNode, `is that of node "edge1"`,
		"set hostnameOverride back")
	if err := os.WriteFile(opts.Files.Key, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := nodecert.New(opts)
	wantProblem(t, k.Check(), nodecert.BadFiles, "is invalid", "no state is lost")
	if err := k.Ensure(t.Context()); err != nil { // the token repairs it
		t.Fatal(err)
	}
	if err := k.Check(); err != nil {
		t.Error(err)
	}
}

// TestOfAnother: a device with the certificate of another node can never be connected if it has no token, or one that
// does not help. Files that are damaged are no reason.
func TestOfAnother(t *testing.T) {
	clk := newClock()
	c := newCloud(t, clk, nil)
	opts := c.options(t, c.token(t, ""))
	join(t, opts)
	old := c.token(t, "")
	for name, o := range map[string]struct {
		node, token string
		after       time.Duration
		another     bool
	}{
		"its own":         {"edge1", "", 0, false},
		"no token":        {"edge2", "", 0, true},
		"a token":         {"edge2", old, 0, false},
		"its token":       {"edge2", c.token(t, "edge2"), 0, false},
		"another's token": {"edge2", c.token(t, "edge1"), 0, true},
		"an old token":    {"edge2", old, 2000 * time.Hour, true},
		"garbage":         {"edge2", "x", 0, true},
	} {
		this := opts
		this.Node, this.Token = o.node, func() (string, error) { return o.token, nil }
		this.Now = func() time.Time { return clk.now().Add(o.after) }
		err := nodecert.New(this).OfAnother()
		if (err != nil) != o.another {
			t.Errorf("%s: OfAnother = %v, want an error: %v", name, err, o.another)
		}
		if err != nil {
			wantProblem(t, err, nodecert.WrongNode, `is that of node "edge1"`)
		}
	}
	opts.Node, opts.Token = "edge2", func() (string, error) { return "", nil }
	if err := os.WriteFile(opts.Files.Key, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := nodecert.New(opts).OfAnother(); err != nil {
		t.Errorf("OfAnother of damaged files = %v, want nil", err)
	}
}

// TestAwait: an agent without a cloud waits, however long, and goes on at once when it is there.
func TestAwait(t *testing.T) {
	c := newCloud(t, newClock(), nil)
	opts := c.options(t, "")
	var reported []error
	tries := 0
	opts.Token = func() (string, error) {
		if tries++; tries > 20 {
			return c.token(t, ""), nil
		}
		return "", nil
	}
	opts.Report = func(err error) { reported = append(reported, err) }
	if err := nodecert.New(opts).Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(reported) != 21 || reported[20] != nil {
		t.Errorf("%d reports %v, want 21 with the last one nil", len(reported), reported)
	}
	wantProblem(t, reported[0], nodecert.NoToken)
	if took := c.clock.now().Sub(newClock().now()); took > 3*time.Hour {
		t.Errorf("20 tries took %v, want at most 3 h", took)
	}

	// With the real clock it ends with its context.
	opts = c.options(t, "")
	opts.Sleep = nil
	ctx, cancel := context.WithCancel(t.Context())
	opts.Report = func(error) { cancel() }
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := nodecert.New(opts).Await(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Await = %v, want %v", err, context.Canceled)
		}
	})
	wg.Wait()
}

func TestProblem(t *testing.T) {
	cause := errors.New("cause")
	got := &nodecert.Problem{Err: cause}
	if !errors.Is(got, cause) || nodecert.ReasonOf(cause) != "" {
		t.Errorf("problem %v is its cause %v, reason of the cause %q; want true and none", got, errors.Is(got, cause),
			nodecert.ReasonOf(cause))
	}
}
