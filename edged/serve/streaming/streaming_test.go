package streaming

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/pkg/filewatch/filewatchtest"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// device is a node with one pod, and a runtime that streams at url.
type device struct {
	mu   sync.Mutex
	pod  *v1.Pod
	obs  *observed.Pod
	logs string
	url  string
	err  error
	asks []string
}

func newDevice(t *testing.T) *device {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
	pod.Spec.Containers = []v1.Container{{Name: "c"}, {Name: "t", TTY: true}, {Name: "later"}}
	for _, name := range []string{"c", "t"} {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, v1.ContainerStatus{
			Name: name, ContainerID: "containerd://id-" + name,
			State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}})
	}
	pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, v1.ContainerStatus{
		Name: "later", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}})
	d := &device{pod: pod, logs: t.TempDir()}
	d.set(runtimeapi.ContainerState_CONTAINER_RUNNING)
	return d
}

// set has the containers be in a state.
func (d *device) set(state runtimeapi.ContainerState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.obs = &observed.Pod{
		UID: "u", Sandboxes: []*observed.Sandbox{{ID: "box", Ready: true}}, Containers: []*observed.Container{
			{ID: "id-c", Name: "c", State: state}, {ID: "id-t", Name: "t", State: state}},
	}
}

func (d *device) Pods() []*v1.Pod       { return []*v1.Pod{d.pod} }
func (d *device) LogDir(*v1.Pod) string { return d.logs }
func (d *device) Observed(types.UID) *observed.Pod {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.obs
}

func (d *device) Refresh(_ context.Context, uid types.UID) (*observed.Pod, error) {
	return d.Observed(uid), nil
}

func (d *device) asked(format string, args ...any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asks = append(d.asks, fmt.Sprintf(format, args...))
	return d.err
}

func (d *device) Exec(
	_ context.Context, r *runtimeapi.ExecRequest, _ ...grpc.CallOption,
) (*runtimeapi.ExecResponse, error) {
	err := d.asked("exec %s %v tty=%t in=%t out=%t err=%t", r.ContainerId, r.Cmd, r.Tty, r.Stdin, r.Stdout, r.Stderr)
	return &runtimeapi.ExecResponse{Url: d.url}, err
}

func (d *device) Attach(
	_ context.Context, r *runtimeapi.AttachRequest, _ ...grpc.CallOption,
) (*runtimeapi.AttachResponse, error) {
	err := d.asked("attach %s tty=%t in=%t out=%t err=%t", r.ContainerId, r.Tty, r.Stdin, r.Stdout, r.Stderr)
	return &runtimeapi.AttachResponse{Url: d.url}, err
}

func (d *device) PortForward(
	_ context.Context, r *runtimeapi.PortForwardRequest, _ ...grpc.CallOption,
) (*runtimeapi.PortForwardResponse, error) {
	err := d.asked("portforward %s %v", r.PodSandboxId, r.Port)
	return &runtimeapi.PortForwardResponse{Url: d.url}, err
}

func (d *device) ExecSync(
	_ context.Context, r *runtimeapi.ExecSyncRequest, _ ...grpc.CallOption,
) (*runtimeapi.ExecSyncResponse, error) {
	err := d.asked("run %s %q", r.ContainerId, r.Cmd)
	resp := &runtimeapi.ExecSyncResponse{Stdout: []byte("out\n"), Stderr: []byte("err\n")}
	if r.Cmd[0] == "false" {
		resp.ExitCode = 1
	}
	return resp, err
}

// stream is a runtime's stream: it answers each line, and ends at "bye".
func (d *device) stream(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.Header.Get("Upgrade") != "SPDY/3.1" {
			http.Error(w, "headers", http.StatusBadRequest)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nhello\n")
		for rw.Flush() == nil {
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprintf(rw, "%s %s: %s", r.Method, r.URL.Path, line)
			if line == "bye\n" {
				rw.Flush()
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	d.url = s.URL + "/token"
}

// serve serves a device's streams and returns the address.
func serve(t *testing.T, ctx context.Context, d *device, opts Options) (*Server, string) {
	t.Helper()
	opts.Node, opts.Runtime, opts.Watcher = d, d, filewatchtest.New(t)
	s := New(ctx, opts)
	mux := http.NewServeMux()
	mux.Handle("/exec/{namespace}/{pod}/{container}", s.Exec())
	mux.Handle("/attach/{namespace}/{pod}/{container}", s.Attach())
	mux.Handle("/run/{namespace}/{pod}/{container}", s.Run())
	mux.Handle("/portForward/{namespace}/{pod}", s.PortForward())
	mux.Handle("/containerLogs/{namespace}/{pod}/{container}", s.Logs())
	h := httptest.NewServer(mux)
	t.Cleanup(h.Close)
	return s, h.URL
}

// dial asks for a stream, and returns the connection where it was upgraded.
func dial(t *testing.T, base, path string) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(wait.Max())); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer secret\r\nConnection: "+
		"Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\nearly\n", path)
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	return conn, r, resp
}

func expectLine(t *testing.T, r *bufio.Reader, want string) {
	t.Helper()
	if line, err := r.ReadString('\n'); err != nil || line != want+"\n" {
		t.Fatalf("%q, %v; want %q", line, err, want)
	}
}

// TestJoin passes bytes both ways, also those that came with the head, until the runtime ends the stream.
func TestJoin(t *testing.T) {
	d := newDevice(t)
	d.stream(t)
	s, base := serve(t, t.Context(), d, Options{})
	for _, path := range []string{
		"/exec/ns/p/c?command=sh&input=1&output=1&error=1&tty=1", "/attach/ns/p/t?input=1&output=1&error=1",
		"/portForward/ns/p",
	} {
		conn, r, resp := dial(t, base, path)
		if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != "SPDY/3.1" {
			t.Fatalf("%s: %s, want SwitchingProtocols, \"SPDY/3.1\"", path, resp.Status)
		}
		expectLine(t, r, "hello")
		expectLine(t, r, "POST /token: early")
		if _, err := io.WriteString(conn, "bye\n"); err != nil {
			t.Fatal(err)
		}
		expectLine(t, r, "POST /token: bye")
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
			t.Errorf("%s: %q, %v after the end; want no error, none", path, rest, err)
		}
		conn.Close()
	}
	want := []string{
		"exec id-c [sh] tty=true in=true out=true err=false", "attach id-t tty=true in=true out=true err=false",
		"portforward box []",
	}
	if diff := cmp.Diff(want, d.asks); diff != "" {
		t.Errorf("asked of the runtime (-want +got):\n%s", diff)
	}
	s.Wait()
}

// TestEnds: a stream ends with the client, with the server, and when nothing flows.
func TestEnds(t *testing.T) {
	d := newDevice(t)
	d.stream(t)
	t.Run("client", func(t *testing.T) {
		s, base := serve(t, t.Context(), d, Options{})
		conn, r, _ := dial(t, base, "/portForward/ns/p")
		expectLine(t, r, "hello")
		conn.Close()
		s.Wait()
	})
	t.Run("server", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s, base := serve(t, ctx, d, Options{})
		_, r, _ := dial(t, base, "/portForward/ns/p")
		expectLine(t, r, "hello")
		cancel()
		if _, err := io.ReadAll(r); os.IsTimeout(err) {
			t.Errorf("ReadAll: %v, want the end of the connection", err)
		}
		s.Wait()
		if _, _, resp := dial(t, base, "/portForward/ns/p"); resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("a stream after the end: %s, want ServiceUnavailable", resp.Status)
		}
	})
	t.Run("idle", func(t *testing.T) {
		s, base := serve(t, t.Context(), d, Options{IdleTimeout: 100 * time.Millisecond})
		_, r, resp := dial(t, base, "/portForward/ns/p")
		if resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("the answer is %s, want 101", resp.Status)
		}
		if _, err := io.ReadAll(r); os.IsTimeout(err) {
			t.Errorf("ReadAll: %v, want the end of the connection", err)
		}
		s.Wait()
	})
}

// TestBound takes no more streams than it may.
func TestBound(t *testing.T) {
	d := newDevice(t)
	d.stream(t)
	s, base := serve(t, t.Context(), d, Options{MaxStreams: 1})
	conn, r, _ := dial(t, base, "/portForward/ns/p")
	expectLine(t, r, "hello")
	if streams, logs := s.Open(); streams != 1 || logs != 0 {
		t.Errorf("%d streams and %d logs are open, want 1, 0", streams, logs)
	}
	_, _, resp := dial(t, base, "/portForward/ns/p")
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("the second stream: %s, want 429 with Retry-After", resp.Status)
	}
	conn.Close()
	s.Wait()
}

// TestShareOfNamespace: the pods of a namespace cannot take all places.
func TestShareOfNamespace(t *testing.T) {
	p := newPlaces("logs", 3)
	for _, c := range []struct{ namespace, refused string }{
		{"a", ""}, {"a", ""}, {"a", `2 logs of namespace "a"`}, {"b", ""}, {"b", "3 logs open"}, {"c", "3 logs open"},
	} {
		err := p.acquire(c.namespace)
		if refused := err != nil; refused != (c.refused != "") ||
			refused && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("a place for namespace %s: %v, want %q", c.namespace, err, c.refused)
		}
	}
	p.Return("a", 1)
	if err := p.acquire("c"); err != nil {
		t.Errorf("a place for namespace c after one was given back: %v, want none", err)
	}
}

func TestMaxOpen(t *testing.T) {
	for _, c := range []struct {
		pods, memory int64
		want         int
	}{
		{110, 4 << 30, 220}, {110, 512 << 20, 109}, {110, 64 << 20, 32}, {10, 4 << 30, 32}, {250, 64 << 30, 500},
		{1 << 60, 1 << 60, 2048}, {0, 0, 32},
	} {
		if got := MaxOpen(c.pods, c.memory); got != c.want {
			t.Errorf("MaxOpen(%d, %d) = %d, want %d", c.pods, c.memory, got, c.want)
		}
	}
}

// ask returns the answer to a plain request.
func get(t *testing.T, method, address string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait.Max()}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestRefusals(t *testing.T) {
	d := newDevice(t)
	_, base := serve(t, t.Context(), d, Options{})
	for path, want := range map[string]string{
		"/exec/ns/p/c?output=1":               "400 no command: ask with ?command=PROGRAM&command=ARGUMENT",
		"/exec/ns/p/c?command=x":              "400 you must specify at least 1 of stdin, stdout, stderr",
		"/exec/ns/q/c?command=x&output=1":     `404 pod "q" does not exist in namespace "ns" on this node`,
		"/exec/ns/p/d?command=x&output=1":     `500 container not found ("d"): pod p has c, t, later`,
		"/exec/ns/p/later?command=x&output=1": `500 container not found ("later"): it waits (ContainerCreating)`,
		"/exec/ns/p/c?command=x&output=1":     "400 " + errUpgrade.Error(),
		"/attach/ns/p/c?output=1":             "400 " + errUpgrade.Error(),
		"/portForward/ns/p?port=x":            `400 port "x": want a number between 1 and 65535`,
		"/portForward/ns/p":                   "400 " + errUpgrade.Error(),
		"/run/ns/p/c?cmd=ls%20-l":             "200 out\nerr\n",
		"/run/ns/p/c?cmd=false":               "500 command 'false' exited with 1: out\nerr\n",
		"/run/ns/p/c": "400 no command, or one that is too long: ask with ?cmd=PROGRAM " +
			"ARGUMENT",
		"/containerLogs/ns/p/c?tailLines=x":     `400 tailLines "x": want a number of at least 0`,
		"/containerLogs/ns/p/c?tailLines=-1":    `422 tailLines "-1": want a number of at least 0`,
		"/containerLogs/ns/p/c?sinceTime=x":     `400 sinceTime "x": want a time such as 2026-01-02T15:04:05Z`,
		"/containerLogs/ns/q/c":                 `404 pod "q" does not exist in namespace "ns" on this node`,
		"/containerLogs/ns/p/d":                 `404 container "d" not found in pod "p"; it has c, t, later`,
		"/containerLogs/ns/p/later":             `400 container "later" in pod "p" is waiting to start: ContainerCreating`,
		"/containerLogs/ns/p/c?previous=true":   `400 previous terminated container "c" in pod "p" not found`,
		"/containerLogs/ns/p/c?sinceSeconds=10": `400 container "c" of pod "p" has no log any more: it was removed, or rotated away`,
	} {
		if code, body := get(t, http.MethodPost, base+path); fmt.Sprint(code, " ", body) != want {
			t.Errorf("%s: %d %s, want %s", path, code, body, want)
		}
	}
}

// TestRuntimeRefuses passes on what the runtime has against it.
func TestRuntimeRefuses(t *testing.T) {
	d := newDevice(t)
	_, base := serve(t, t.Context(), d, Options{})
	gone := httptest.NewServer(http.NotFoundHandler())
	d.url = gone.URL
	_, _, resp := dial(t, base, "/portForward/ns/p")
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusNotFound ||
		string(body) != "404 page not found" {
		t.Errorf("a stream that is not there: %s %s, want NotFound, \"404 page not found\"", resp.Status, body)
	}
	gone.Close()
	d.url = "http://127.0.0.1:1" // its port may be another's by now
	if _, _, resp = dial(t, base, "/portForward/ns/p"); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("nobody listens: %s, want BadGateway", resp.Status)
	}
	for code, want := range map[codes.Code]int{
		codes.NotFound: http.StatusNotFound, codes.ResourceExhausted: http.StatusTooManyRequests,
		codes.Unavailable: http.StatusServiceUnavailable, codes.Internal: http.StatusInternalServerError,
	} {
		d.err = status.Error(code, "why")
		_, _, resp := dial(t, base, "/portForward/ns/p")
		if body, _ := io.ReadAll(resp.Body); resp.StatusCode != want ||
			string(body) != "the container runtime refuses: why" {
			t.Errorf("%s: %s %s, want %d", code, resp.Status, body, want)
		}
	}
}

func TestLogs(t *testing.T) {
	d := newDevice(t)
	s, base := serve(t, t.Context(), d, Options{})
	if err := os.Mkdir(filepath.Join(d.logs, "c"), 0o755); err != nil {
		t.Fatal(err)
	}
	add := func(name, text string) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(d.logs, "c", name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	add("0.log",
		"2026-01-01T00:00:01Z stdout F one\n2026-01-01T00:00:02Z stderr F two\n2026-01-01T00:00:03Z stdout F three\n")
	for query, want := range map[string]string{
		"": "one\ntwo\nthree\n", "?tailLines=1": "three\n", "?limitBytes=5": "one\nt", "?stream=Stderr": "two\n",
		"?timestamps=true&tailLines=1":    "2026-01-01T00:00:03.000000000Z three\n",
		"?sinceTime=2026-01-01T00:00:02Z": "two\nthree\n",
	} {
		if code, body := get(t, http.MethodGet, base+"/containerLogs/ns/p/c"+query); code != http.StatusOK ||
			body != want {
			t.Errorf("%s: %d %q, want %q", query, code, body, want)
		}
	}
	t.Run("followed until the container ends", func(t *testing.T) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			base+"/containerLogs/ns/p/c?follow=true&tailLines=0", nil)
		if err != nil {
			t.Fatal(err)
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait.Max()}
		resp, err := client.Do(req) // the head comes before the first line
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		r := bufio.NewReader(resp.Body)
		add("0.log", "2026-01-01T00:00:04Z stdout F four\n")
		expectLine(t, r, "four")
		d.set(runtimeapi.ContainerState_CONTAINER_EXITED)
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
			t.Errorf("%q, %v after the end; want no error, none", rest, err)
		}
	})
	t.Run("forgotten by the runtime", func(t *testing.T) {
		d.mu.Lock()
		d.obs = nil
		d.mu.Unlock()
		add("1.log", "2026-01-01T00:00:05Z stdout F newest\n")
		if code, body := get(t, http.MethodGet, base+"/containerLogs/ns/p/c"); code != http.StatusOK ||
			body != "newest\n" {
			t.Errorf("%d %q, want OK, \"newest\\n\"", code, body)
		}
		if !s.alive(d.pod, "c", "id-c") || s.alive(d.pod, "c", "id-other") || s.alive(d.pod, "later", "id-c") {
			t.Errorf("alive(c, id-c), (c, id-other), (later, id-c) = %t, %t, %t, want true, false, false by the status",
				s.alive(d.pod, "c", "id-c"), s.alive(d.pod, "c", "id-other"), s.alive(d.pod, "later", "id-c"))
		}
	})
	s.Wait()
}
