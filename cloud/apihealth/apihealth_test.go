package apihealth

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"
)

// server is kube-apiserver; all requests have the same answer.
type server struct {
	code int
	body io.Reader
	err  error
}

func (s *server) RoundTrip(*http.Request) (*http.Response, error) {
	if s.err != nil {
		return nil, s.err
	}
	body := s.body
	if body == nil {
		body = strings.NewReader("")
	}
	return &http.Response{StatusCode: s.code, Body: io.NopCloser(body)}, nil
}

const renewal = "https://192.0.2.1/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/e1"

// renew renews the Lease of a node, and returns what the caller reads.
func renew(t *testing.T, rt http.RoundTripper, node string) (string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, renewal, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(transport.ImpersonateUserHeader, nodeUser+node)
	res, err := rt.RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

const lost = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,` +
	`"message":"leases is forbidden: User \"system:serviceaccount:kubeedge:cloudcore\" cannot impersonate"}`

// TestTracker: rights are lost for three minutes. The log has a line at the beginning, one each minute and one at the
// end; the metrics count.
func TestTracker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer klog.CaptureState().Restore()
		var log bytes.Buffer
		klog.LogToStderr(false)
		klog.SetOutput(&log)
		tracker, registry, api := New(), prometheus.NewRegistry(), &server{code: 200}
		if err := tracker.Register(registry); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go tracker.Run(ctx)
		rt := tracker.Wrap(api)
		renewFor := func(d time.Duration) {
			t.Helper()
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Second) {
				if api.code == http.StatusForbidden {
					api.body = strings.NewReader(lost)
				}
				if got, err := renew(t, rt, "e1"); err != nil || api.code == http.StatusForbidden && got != lost {
					t.Errorf("the answer reads as %q, %v; want it unchanged", got, err)
				}
			}
		}
		lines := func() (out []string) {
			klog.Flush()
			for line := range strings.Lines(log.String()) {
				_, message, _ := strings.Cut(line, "] ")
				out = append(out, strings.Join(strings.Fields(message), " "))
			}
			return slices.Compact(out) // klog writes an error as a warning and an information, too
		}
		renewFor(time.Minute)
		if err := tracker.Err(); err != nil || len(lines()) > 0 {
			t.Errorf("Err = %v, log %q; want neither", err, lines())
		}
		api.code = http.StatusForbidden
		renewFor(3*time.Minute + 5*time.Second)
		err := tracker.Err()
		for _, want := range []string{"lease refused 19 times since 2000-", "for 1 node:", "403 leases is forbidden",
			"deploy/cloudcore/base/rbac.yaml"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Err = %v, want %q in it", err, want)
			}
		}
		got := lines()
		if len(got) != 3 || !strings.Contains(got[0], "rbac.yaml") || !strings.Contains(got[0], "lease refused 4 ") {
			t.Errorf("log:\n%s\nwant three lines, the first of 4 refusals and with the remedy", strings.Join(got, "\n"))
		}
		wantMetrics(t, registry, "cloudcore_api_refused lease 1", "cloudcore_api_writes_total 200 lease 6",
			"cloudcore_api_writes_total 403 lease 19")
		api.code, api.body = 200, nil
		renewFor(time.Minute)
		if err := tracker.Err(); err != nil {
			t.Errorf("Err = %v after a minute of successes, want nil", err)
		}
		if got := lines(); len(got) != 4 || !strings.Contains(got[3], "accepts again") {
			t.Errorf("log:\n%s\nwant a fourth line: accepts again", strings.Join(got, "\n"))
		}
		wantMetrics(t, registry, "cloudcore_api_refused lease 0", "cloudcore_api_writes_total 200 lease 12",
			"cloudcore_api_writes_total 403 lease 19")
	})
}

func wantMetrics(t *testing.T, registry *prometheus.Registry, want ...string) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			words := []string{family.GetName()}
			for _, label := range m.GetLabel() {
				words = append(words, label.GetValue())
			}
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			got = append(got, strings.Join(append(words, strconv.Itoa(int(value))), " "))
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics mismatch (-want +got):\n%s", diff)
	}
}

// TestOutage: an API server that does not answer is no reason to be unready; what callers get is what came.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker, registry, refused := New(), prometheus.NewRegistry(), errors.New("connection refused")
		if err := tracker.Register(registry); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if _, err := renew(t, tracker.Wrap(&server{err: refused}), "e1"); !errors.Is(err, refused) {
				t.Errorf("RoundTrip: %v, want %v", err, refused)
			}
			broken := io.MultiReader(strings.NewReader("half"), iotest.ErrReader(refused))
			if got, err := renew(t, tracker.Wrap(&server{code: 503, body: broken}), "e1"); got != "half" ||
				!errors.Is(err, refused) {
				t.Errorf("the broken body reads as %q, %v; want half of it, and %v", got, err, refused)
			}
			time.Sleep(10 * time.Second)
		}
		if err := tracker.Err(); err != nil {
			t.Errorf("Err = %v during an outage, want nil", err)
		}
		wantMetrics(t, registry, "cloudcore_api_writes_total 503 lease 10", "cloudcore_api_writes_total error lease 10")
	})
}

// TestLargeAnswer: an answer that is longer than what is looked at reaches the caller whole.
func TestLargeAnswer(t *testing.T) {
	want := strings.Repeat("x", 3*maxRead+1)
	got, err := renew(t, New().Wrap(&server{code: 403, body: strings.NewReader(want)}), "e1")
	if err != nil || got != want {
		t.Errorf("the answer reads as %d bytes, %v; want %d and no error", len(got), err, len(want))
	}
}
