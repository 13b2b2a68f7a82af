package monitor

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// ask returns the status and the text of an answer.
func ask(t *testing.T, h http.Handler, method, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
	return w.Code, w.Body.String()
}

func TestProbes(t *testing.T) {
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		set                        func(*Parts)
		healthz, readyz            string
		healthzStatus, readyStatus int
	}{
		"starting": {func(p *Parts) { p.Set("a", nil); p.SetWaiting("b", broken) },
			"[+]a ok\n[+]b ok\nhealthz check passed\n", "[+]a ok\n[-]b failed: starting: broken\nreadyz check failed\n",
			200, 503},
		"well": {func(p *Parts) { p.Set("a", nil); p.SetCheck("b", func() error { return nil }) },
			"[+]a ok\n[+]b ok\nhealthz check passed\n", "[+]a ok\n[+]b ok\nreadyz check passed\n", 200, 200},
		"failed": {
			func(p *Parts) { p.Set("a", nil); p.SetCheck("b", func() error { return broken }) },
			"[+]a ok\n[-]b failed: broken\nhealthz check failed\n",
			"[+]a ok\n[-]b failed: broken\nreadyz check failed\n", 503, 503,
		},
		"ending": {
			func(p *Parts) { p.Set("a", nil); p.SetCheck("b", func() error { return broken }); p.SetStopping() },
			"[+]a ok\n[+]b ok\nhealthz check passed\n",
			"[+]a ok\n[-]b failed: broken\n[-]shutdown failed: cloudcore is ending\nreadyz check failed\n", 200, 503,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewParts("a", "b")
			tc.set(p)
			h := Handler(p, NewRegistry(), false)
			type answer struct {
				Status int
				Text   string
			}
			for path, want := range map[string]answer{
				"/healthz?verbose": {tc.healthzStatus, tc.healthz},
				"/readyz?verbose":  {tc.readyStatus, tc.readyz},
			} {
				status, text := ask(t, h, http.MethodGet, path)
				if diff := cmp.Diff(want, answer{status, text}); diff != "" {
					t.Errorf("%s mismatch (-want +got):\n%s", path, diff)
				}
			}
			// In short, "ok" or what is wrong.
			if status, text := ask(t, h, http.MethodGet, "/readyz"); status == 200 && text != "ok" ||
				status != 200 && strings.Contains(text, "[+]") {
				t.Errorf("in short: %d, %q; want ok, or only what is wrong", status, text)
			}
		})
	}
}

// TestExcluded: a part that a restart cannot repair fails readyz alone, and a probe may leave it out. It leaves out no
// other part.
func TestExcluded(t *testing.T) {
	p := NewParts("a", "b")
	p.Set("a", nil)
	p.SetReadyCheck("b", func() error { return errors.New("broken") })
	h := Handler(p, NewRegistry(), false)
	check := func(path string, want int, wantText string) {
		t.Helper()
		if status, text := ask(t, h, http.MethodGet, path); status != want || text != wantText {
			t.Errorf("%s = %d %q, want %d %q", path, status, text, want, wantText)
		}
	}
	check("/healthz", 200, "ok")
	check("/readyz", 503, "[-]b failed: broken\nreadyz check failed\n")
	check("/readyz?exclude=b", 200, "ok")
	check("/readyz?verbose&exclude=b", 200, "[+]a ok\n[+]b excluded: ok\nreadyz check passed\n")
	check("/readyz?exclude=a", 503, "[-]b failed: broken\nreadyz check failed\n")
	p.SetStopping()
	check("/readyz?exclude=b", 503, "[-]shutdown failed: cloudcore is ending\nreadyz check failed\n")
}

func TestHandler(t *testing.T) {
	p := NewParts()
	h := Handler(p, NewRegistry(), false)
	profiled := Handler(p, NewRegistry(), true)
	for _, tc := range []struct {
		handler      http.Handler
		method, path string
		status       int
		holds        string
	}{
		{h, "GET", "/metrics", 200, "process_resident_memory_bytes"},
		{h, "HEAD", "/healthz", 200, ""},
		{h, "POST", "/healthz", 405, "read-only"},
		{h, "GET", "/debug/pprof/", 404, ""},
		{h, "GET", "/", 404, ""},
		{profiled, "GET", "/debug/pprof/", 200, "goroutine"},
		{profiled, "GET", "/debug/pprof/goroutine?debug=1", 200, "TestHandler"},
		{profiled, "GET", "/debug/pprof/cmdline", 200, "monitor.test"},
	} {
		status, text := ask(t, tc.handler, tc.method, tc.path)
		if status != tc.status || !strings.Contains(text, tc.holds) {
			t.Errorf("%s %s: %d %.200q; want %d with %q", tc.method, tc.path, status, text, tc.status, tc.holds)
		}
	}
}

// TestServeHTTP: the server answers, and is gone when its context ends.
func TestServeHTTP(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l, err := Listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, Handler(NewParts(), NewRegistry(), false)) }()
	client := &http.Client{}
	defer client.CloseIdleConnections()
	res, err := client.Get("http://" + l.Addr().String() + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || res.StatusCode != 200 || string(body) != "ok" {
		t.Errorf("readyz: %d %q, %v; want 200 ok", res.StatusCode, body, err)
	}
	if got := res.Header.Get("X-Content-Type-Options"); got != "nosniff" {
		t.Errorf("X-Content-Type-Options: %q, want nosniff", got)
	}
	cancel()
	if err := wait.Receive(t, "the end of the server", ended); err != nil {
		t.Errorf("ended with %v, want no error", err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("Dial after the end of the server = nil, want an error")
	}
}

// TestPortInUse: the error names the key, the address and the remedy.
func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = Listen(t.Context(), l.Addr().String())
	for _, want := range []string{
		"commonConfig.monitorServer.bindAddress", l.Addr().String(), "in use", "free the port",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	if l, err := Listen(t.Context(), ""); l != nil || err != nil {
		t.Errorf("without an address: %v, %v; want no listener and no error", l, err)
	}
}

func TestLocal(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:9091": true, "[::1]:9091": true, "localhost:1": true, ":9091": false, "0.0.0.0:9091": false,
		"192.0.2.1:1": false,
	} {
		if got := Local(addr) == nil; got != want {
			t.Errorf("Local(%s) = nil: %v, want %v", addr, got, want)
		}
	}
}
