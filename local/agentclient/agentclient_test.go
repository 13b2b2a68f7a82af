package agentclient

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

func TestAddress(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1": "http://127.0.0.1:10255",
		"192.0.2.1": "http://192.0.2.1:10255",
		"::1":       "http://[::1]:10255",
		"0.0.0.0":   "http://127.0.0.1:10255",
		"::":        "http://127.0.0.1:10255",
	} {
		cfg := v1alpha2.Default()
		cfg.Modules.Edged.TailoredKubeletConfig.Address = address
		if got := New(cfg).base; got != want {
			t.Errorf("address %s: the agent is asked at %s, want %s", address, got, want)
		}
	}
}

// agentThat returns a client of a port that answers each path with a text; a path without one is not found.
func agentThat(t *testing.T, answers map[string]string) *Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.URL.Path]
		if !ok {
			http.Error(w, "no such path", http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(s.Close)
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	cfg := v1alpha2.Default()
	cfg.Modules.Edged.TailoredKubeletConfig.Address = host
	cfg.Modules.Edged.TailoredKubeletConfig.ReadOnlyPort = int32(number)
	return New(cfg)
}

func TestAnswers(t *testing.T) {
	c := agentThat(t, map[string]string{
		"/pods":   `{"items":[{"metadata":{"name":"web"}},{"metadata":{"name":"db"}}]}`,
		"/events": `{"items":[{"reason":"Pulled"}]}`,
		"/status": `{"nodeName":"edge1"}`,
	})
	pods, err := c.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range pods.Items {
		names = append(names, pods.Items[i].Name)
	}
	if diff := cmp.Diff([]string{"web", "db"}, names); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	events, err := c.Events(t.Context())
	if diff := cmp.Diff([]v1.Event{{Reason: "Pulled"}}, events); err != nil || diff != "" {
		t.Errorf("Events = %v, want one event (-want +got):\n%s", err, diff)
	}
	info, err := c.Status(t.Context())
	if err != nil || info.NodeName != "edge1" {
		t.Errorf("Status = %+v, %v; want node edge1", info, err)
	}
}

// TestErrors: each says what to check.
func TestErrors(t *testing.T) {
	for name, c := range map[string]struct {
		client *Client
		want   string
	}{
		"nothing listens": {&Client{base: "http://127.0.0.1:1"}, "the agent does not answer at http://127.0.0.1:1 (is"},
		"no such path":    {agentThat(t, nil), "answered 404 Not Found: no such path"},
		"no JSON":         {agentThat(t, map[string]string{"/pods": "<html>"}), "/pods: invalid character"},
	} {
		if _, err := c.client.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Pods = %v, want an error with %q", name, err, c.want)
		}
	}
}
