// Package apihealth finds out whether kube-apiserver lets cloudcore do its work, from the answers to all requests of
// its clients.
//
// It promises:
//
//   - Err, a part of /readyz, returns an error while one kind of request is refused: three times in a row over 30 s or
//     more, without a success between. It returns nil again after three successes, after one success that no refusal
//     follows for 30 s, or if nothing was refused for longer than nodes wait between attempts. A kind with the same
//     remedy that is accepted again counts as one success.
//   - A refusal counts at once if it concerns cloudcore itself: its rights, its credentials, a CustomResourceDefinition
//     that is missing, an answer that is not kube-apiserver's, or its secrets and its Lease. If it concerns what a node
//     sent, or what cloudcore writes in its own name for a node (the node authorizer, admission policies and webhooks),
//     it counts only once that many nodes are refused that no single one can be the cause, and until enough of them
//     are accepted again. What is accepted of other nodes says nothing about these.
//   - An outage of kube-apiserver is not a refusal: cloudcore serves nodes from memory meanwhile. Neither are answers
//     about the state of an object, such as conflicts.
//   - One line is logged when refusals begin to count, one each minute while they last, and one at their end.
package apihealth

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

const (
	// checkEvery is how often Run decides.
	checkEvery = 5 * time.Second
	// repeatEvery is how often refusals that last are logged.
	repeatEvery = time.Minute
	// maxRead is how much is read of an answer that is an error.
	maxRead = 64 << 10
)

// Tracker watches the answers of kube-apiserver. Its methods may be called from any goroutine.
type Tracker struct {
	writes  *prometheus.CounterVec
	refused *prometheus.GaugeVec

	mu    sync.Mutex
	state *state
	// began is when the first of the problems began that are there now, and logged when they were logged last; zero if
	// there are none.
	began, logged time.Time
	problems      []problem
}

// New returns a Tracker. Its metrics are registered by Register.
func New() *Tracker { return NewFor(minTime) }

// NewFor is New with another time than 30 s, for tests that do not wait as long.
func NewFor(minTime time.Duration) *Tracker {
	return &Tracker{
		state: newState(minTime),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloudcore_api_writes_total",
			Help: "Writes to kube-apiserver, by kind and by code of the answer; error means that there was none",
		}, []string{"kind", "code"}),
		refused: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cloudcore_api_refused",
			Help: "1 while requests of a kind are refused, so that cloudcore is not ready",
		}, []string{"kind"}),
	}
}

// Register registers the metrics.
func (t *Tracker) Register(r prometheus.Registerer) error {
	return errors.Join(r.Register(t.writes), r.Register(t.refused))
}

// Run logs what changes, until ctx ends.
func (t *Tracker) Run(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = t.Err() // it is logged
		}
	}
}

// Err returns why cloudcore cannot do its work; nil if it can.
func (t *Tracker) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	before := t.problems
	t.problems = t.state.decide(now)
	for _, p := range before {
		t.refused.WithLabelValues(p.kind).Set(0)
	}
	if len(t.problems) == 0 {
		if len(before) > 0 {
			klog.InfoS("kube-apiserver accepts again what cloudcore needs", "after",
				now.Sub(t.began).Round(time.Second))
		}
		t.began, t.logged = time.Time{}, time.Time{}
		return nil
	}
	for _, p := range t.problems {
		t.refused.WithLabelValues(p.kind).Set(1)
		if t.began.IsZero() || p.since.Before(t.began) {
			t.began = p.since
		}
	}
	err := errors.New(describe(t.problems))
	if t.logged.IsZero() || now.Sub(t.logged) >= repeatEvery {
		t.logged = now
		klog.ErrorS(err, "kube-apiserver refuses what cloudcore needs; cloudcore is not ready until it is accepted",
			"for", now.Sub(t.began).Round(time.Second))
	}
	return err
}

// Wrap makes a Tracker watch what a transport carries; it is for rest.Config.Wrap.
func (t *Tracker) Wrap(base http.RoundTripper) http.RoundTripper { return &watching{t, base} }

// watching is the transport of Wrap.
type watching struct {
	tracker *Tracker
	base    http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *watching) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := t.base.RoundTrip(r)
	target, ok := targetOf(r)
	if !ok {
		return res, err
	}
	code := "error"
	var a answer
	if err == nil {
		code = strconv.Itoa(res.StatusCode)
		a = target.classify(res.StatusCode, peek(res))
	}
	if target.write {
		t.tracker.writes.WithLabelValues(target.kind, code).Inc()
	}
	t.tracker.mu.Lock()
	defer t.tracker.mu.Unlock()
	t.tracker.state.observe(time.Now(), target, a)
	return res, err
}

// WrappedRoundTripper lets client-go reach the transport below.
func (t *watching) WrappedRoundTripper() http.RoundTripper { return t.base }

// peek reads the beginning of an answer that may be a refusal; the next reader of the answer gets it, too.
func peek(res *http.Response) []byte {
	if res.StatusCode < http.StatusBadRequest {
		return nil
	}
	var seen bytes.Buffer
	_, err := io.Copy(&seen, io.LimitReader(res.Body, maxRead))
	rest := io.Reader(res.Body)
	if err != nil {
		rest = failing{err}
	}
	res.Body = &body{io.MultiReader(bytes.NewReader(seen.Bytes()), rest), res.Body}
	return seen.Bytes()
}

type body struct {
	io.Reader
	io.Closer
}

// failing is what is left of a body that could not be read to its end.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
