package api

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/node/stats"
	"github.com/edgecore-io/edgecore/edged/pods/prober"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/edged/serve/streaming"
	"github.com/edgecore-io/edgecore/pkg/auth"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// snapshots is a PLEG of one pod.
type snapshots struct{ pleg.Interface }

func (snapshots) Healthy() error              { return nil }
func (snapshots) Get(types.UID) *observed.Pod { return &observed.Pod{UID: "a"} }
func (snapshots) Refresh(context.Context, types.UID) (*observed.Pod, error) {
	return &observed.Pod{UID: "a", Detailed: true}, nil
}

// testNode is a node with one pod.
func testNode(h *health.Registry) *Node {
	pods := desired.New()
	pods.Put(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "shop", UID: "a"}}, false)
	return &Node{
		Desired:  pods,
		Statuses: status.NewManager(nil),
		PLEG:     snapshots{},
		Recent:   func() []v1.Event { return []v1.Event{{Reason: "Started"}} },
		LogsOf:   func(*v1.Pod) string { return "/logs" },
		Runtime:  func() (string, string) { return "containerd", "1.6.20" },
		Health:   h,
	}
}

// address returns an address of this machine that nothing listens on.
func address(t *testing.T) string {
	t.Helper()
	port, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// get returns the body of an answer; "" while there is none.
func get(t *testing.T, url string) string {
	t.Helper()
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // the port's certificate is the node's own
	}
	resp, err := (&http.Client{Transport: transport}).Get(url)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// run runs a port until the test ends.
func run(t *testing.T, port func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- port(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
}

// TestReadOnlyPort: a port whose address is in use sets a condition, and serves as soon as the address is free.
func TestReadOnlyPort(t *testing.T) {
	h := &health.Registry{}
	listen := address(t)
	other, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	served := func() server.Options { return server.Options{Node: testNode(h)} }
	if err := (&ReadOnly{Served: served}).Run(t.Context()); err != nil {
		t.Errorf("Run without an address = %v, want nil", err)
	}
	run(t, (&ReadOnly{Listen: listen, Health: h, Served: served}).Run)
	wait.True(t, "the condition of an address in use", func() bool {
		list := h.Snapshot()
		return len(list) == 1 && list[0].Code == health.ReadOnlyServerStopped && list[0].Object == listen
	})
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	wait.True(t, "the pods", func() bool { return strings.Contains(get(t, "http://"+listen+"/pods"), `"name":"a"`) })
}

// TestAuthenticatedPort: the port serves over TLS, without a cloud with the node's own certificate.
func TestAuthenticatedPort(t *testing.T) {
	h := &health.Registry{}
	listen := address(t)
	settings := Settings{Listen: listen, Auth: auth.Options{Anonymous: true, AlwaysAllow: true}, Debugging: true}
	a := New(Options{
		Settings: settings,
		NodeName: "n1",
		RootDir:  t.TempDir(),
		IPs:      func() []string { return []string{"127.0.0.1"} },
		Health:   h,
		Served: func() server.Options {
			return server.Options{Node: testNode(h), Routes: Routes(&settings, &Containers{
				All: func() []*observed.Pod { return nil },
			})}
		},
	})
	run(t, a.Run)
	wait.True(t, "the pods", func() bool { return strings.Contains(get(t, "https://"+listen+"/pods"), `"name":"a"`) })
	if got := get(t, "https://"+listen+"/runningpods/"); !strings.Contains(got, `"PodList"`) {
		t.Errorf("/runningpods/ = %q, want a PodList", got)
	}
	if list := h.Snapshot(); len(list) != 0 {
		t.Errorf("conditions = %v, want none", list)
	}
}

// TestTLSVersion: a version that does not exist ends the run with an error that names it.
func TestTLSVersion(t *testing.T) {
	a := New(Options{
		Settings: Settings{
			Listen: address(t),
			TLS:    server.TLSOptions{MinVersion: "VersionTLS99"},
			Auth:   auth.Options{Anonymous: true},
		},
		RootDir: t.TempDir(),
		IPs:     func() []string { return nil },
		Health:  &health.Registry{},
	})
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "VersionTLS99") {
		t.Errorf("Run = %v, want an error that names VersionTLS99", err)
	}
}

func TestNodeAnswers(t *testing.T) {
	n := testNode(&health.Registry{})
	if err := n.SyncLoop(); err != nil || n.Observed("a").UID != "a" || n.LogDir(nil) != "/logs" {
		t.Errorf("SyncLoop = %v, Observed(a) = %v, LogDir = %q; want nil, a, /logs", err, n.Observed("a"),
			n.LogDir(nil))
	}
	if pod, err := n.Refresh(t.Context(), "a"); err != nil || !pod.Detailed {
		t.Errorf("Refresh(a) = %v, %v; want a detailed snapshot", pod, err)
	}
	if list := n.Events(); len(list) != 1 || list[0].Reason != "Started" {
		t.Errorf("Events = %v, want Started", list)
	}
}

// TestRouteLists: what acts in a container needs the verb create, and the pages of usage the rights of their resource.
func TestRouteLists(t *testing.T) {
	n := testNode(&health.Registry{})
	streams := StreamRoutes(streaming.New(t.Context(), streaming.Options{Node: n}))
	for _, r := range streams {
		if logs := strings.HasPrefix(r.Pattern, "/containerLogs/"); logs == (r.Verb == "create") || !r.Debugging ||
			!r.Stream {
			t.Errorf("route %s has the verb %q, debugging %t, stream %t; want create for all but logs, true, true",
				r.Pattern, r.Verb, r.Debugging, r.Stream)
		}
	}
	has := func(routes []server.Route, pattern string) bool {
		return slices.ContainsFunc(routes, func(r server.Route) bool { return r.Pattern == pattern })
	}
	usage := StatsRoutes(stats.New(stats.Options{}), prober.New(prober.Options{}))
	for pattern, list := range map[string][]server.Route{
		"/exec/{namespace}/{pod}/{container}": streams,
		"/portForward/{namespace}/{pod}":      streams,
		"/stats/summary":                      usage,
		"/metrics/probes":                     usage,
		"/{$}":                                PageRoutes(n),
	} {
		if !has(list, pattern) {
			t.Errorf("%s is not among the routes, want it there", pattern)
		}
	}
}
