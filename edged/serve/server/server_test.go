package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/leak"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

type node struct{ bad error }

func (n *node) Pods() []*v1.Pod {
	return []*v1.Pod{
		{
			ObjectMeta: metav1.ObjectMeta{
				Name: "a",
			}, Status: v1.PodStatus{
				Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{
					{State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}, RestartCount: 2},
				},
			},
		},
		{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Status: v1.PodStatus{Phase: v1.PodPending}},
	}
}
func (n *node) Events() []v1.Event        { return []v1.Event{{Reason: "Started"}} }
func (n *node) Info(context.Context) Info { return Info{NodeName: "node1"} }
func (n *node) SyncLoop() error           { return n.bad }

func request(h http.Handler, method, host, path string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Host = host
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHandler(t *testing.T) {
	conditions := &health.Registry{}
	conditions.Set(health.StoreFailing, "", "full")
	n := &node{}
	h := New(Options{Node: n, Registry: NewRegistry("node1", n, conditions)})
	for _, c := range []struct {
		method, host, path string
		code               int
		want               string
	}{
		{"GET", "127.0.0.1:10255", "/pods", 200, `"name":"a"`},
		{"GET", "localhost", "/events", 200, `"reason":"Started"`},
		{"GET", "[::1]:10255", "/status", 200, `"nodeName":"node1"`},
		{"GET", "127.0.0.1", "/healthz", 200, "ok"},
		{"GET", "127.0.0.1", "/healthz?verbose", 200, "[+]syncloop ok\nhealthz check passed"},
		{"GET", "127.0.0.1", "/healthz/ping", 200, "ok"},
		{"GET", "127.0.0.1", "/metrics", 200, "kubelet_running_pods 1\n"},
		{"GET", "127.0.0.1", "/metrics", 200, `kubelet_node_name{node="node1"} 1`},
		{"GET", "127.0.0.1", "/metrics", 200, `edgecore_container_restarts{namespace="",pod="a"} 2`},
		{"GET", "127.0.0.1", "/metrics", 200, `edgecore_condition{code="StoreFailing",severity="Error"} 1`},
		{"GET", "127.0.0.1", "/nothing", 404, ""},
		{"POST", "127.0.0.1", "/pods", 405, "read-only"},
		{"DELETE", "127.0.0.1", "/pods", 405, "read-only"},
		{"GET", "evil.example.com", "/pods", 403, "ask by address"},
		{"GET", "evil.example.com:10255", "/pods", 403, "ask by address"},
	} {
		w := request(h, c.method, c.host, c.path)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s at %s: %d %.400s; want %d with %q", c.method, c.path, c.host, w.Code, w.Body, c.code,
				c.want)
		}
	}
	var list v1.PodList
	if err := json.Unmarshal(request(h, "GET", "127.0.0.1", "/pods").Body.Bytes(), &list); err != nil ||
		list.Kind != "PodList" || len(list.Items) != 2 {
		t.Errorf("/pods is a %+v, %v; want a PodList of 2", list.TypeMeta, err)
	}
	n.bad = errors.New("runtime is down")
	for _, path := range []string{"/healthz", "/healthz/syncloop"} {
		if w := request(h, "GET", "127.0.0.1", path); w.Code != 500 ||
			!strings.Contains(w.Body.String(), "runtime is down") {
			t.Errorf("%s: %d %s, want 500, \"runtime is down\"", path, w.Code, w.Body)
		}
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := Serve(t.Context(), l.Addr().String(), http.NotFoundHandler()); err == nil {
		t.Error("Serve on a port in use = nil, want an error")
	}
	port, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, address, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			text(w, "hello")
		}))
	}()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	wait.Until(t, "the server to answer", func() error {
		resp, err := client.Get("http://" + address)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != "hello" {
			t.Errorf("answer %q, %v; want %q", body, err, "hello")
		}
		return nil
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
