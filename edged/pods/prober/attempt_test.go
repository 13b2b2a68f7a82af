package prober

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// quiet records no events.
type quiet struct {
	events.Interface
	list []string
}

func (q *quiet) ContainerEventf(_ *v1.Pod, _ *v1.Container, _, reason, format string, args ...any) {
	q.list = append(q.list, reason+": "+fmt.Sprintf(format, args...))
}

// try makes one attempt against an address, and returns its result and what the event says of it. It has time enough.
func try(t *testing.T, h v1.ProbeHandler, c v1.Container, address string) string {
	t.Helper()
	return tryWithin(t, 60, h, c, address)
}

// tryWithin makes one attempt within so many seconds.
func tryWithin(t *testing.T, seconds int32, h v1.ProbeHandler, c v1.Container, address string) string {
	t.Helper()
	q := &quiet{}
	a := newAttempts(Options{Recorder: q, UserAgent: "kube-probe/1.37"})
	got := a.attempt(t.Context(), ask{
		target: target{pod: podOf(c), container: &c, address: address},
		kind:   liveness, spec: &v1.Probe{ProbeHandler: h, TimeoutSeconds: seconds},
	})
	return strings.TrimSuffix(got.String()+" "+strings.Join(q.list, "\n"), " ")
}

// where splits the address of a server.
func where(t testing.TB, address string) (string, int) {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return host, n
}

// pages is a server that shows what a probe looks like from the other side.
func pages(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/status":
		code, err := strconv.Atoi(r.URL.Query().Get("code"))
		if err != nil {
			code = 500
		}
		w.WriteHeader(code)
	case "/here":
		http.Redirect(w, r, "/status?code=204", http.StatusFound)
	case "/away":
		http.Redirect(w, r, "http://elsewhere.example/", http.StatusFound)
	case "/loop":
		http.Redirect(w, r, "/loop", http.StatusFound)
	case "/hang":
		<-r.Context().Done()
	case "/huge":
		_, _ = w.Write(make([]byte, 1<<20)) // the probe reads only its part
	case "/headers":
		ok := r.Host == "me.example" && r.Header.Get("X-Twice") == "a" && len(r.Header["X-Twice"]) == 2 &&
			r.UserAgent() == "kube-probe/1.37" && r.Header.Get("Accept") == "*/*" &&
			r.Header.Get("Accept-Encoding") == ""
		if !ok || r.Close != (r.ProtoMajor == 1) {
			http.Error(w, fmt.Sprint(r.Host, r.Header, r.Close), http.StatusTeapot)
		}
	case "/own-headers":
		_, accept := r.Header["Accept"]
		if _, agent := r.Header["User-Agent"]; agent || accept {
			http.Error(w, fmt.Sprint(r.Header), http.StatusTeapot)
		}
	case "/plain path":
	default:
		http.NotFound(w, r)
	}
}

// allClosed waits until no connection is open.
func allClosed(t *testing.T, open *atomic.Int32) {
	t.Helper()
	wait.Until(t, "all connections to be closed", func() error {
		if n := open.Load(); n != 0 {
			return fmt.Errorf("%d connections are open, want none", n)
		}
		return nil
	})
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.HandlerFunc(pages))
	t.Cleanup(plain.Close)
	safe := httptest.NewUnstartedServer(http.HandlerFunc(pages))
	safe.EnableHTTP2 = true
	safe.StartTLS()
	t.Cleanup(safe.Close)
	twice := []v1.HTTPHeader{
		{Name: "Host", Value: "me.example"}, {Name: "X-Twice", Value: "a"}, {Name: "x-twice", Value: "b"},
	}
	none := []v1.HTTPHeader{{Name: "Accept", Value: ""}, {Name: "User-Agent", Value: ""}}
	for _, server := range []struct {
		scheme  v1.URIScheme
		address string
	}{{v1.URISchemeHTTP, plain.Listener.Addr().String()}, {v1.URISchemeHTTPS, safe.Listener.Addr().String()}} {
		t.Run(string(server.scheme), func(t *testing.T) {
			t.Parallel()
			host, port := where(t, server.address)
			for name, c := range map[string]struct {
				path    string
				headers []v1.HTTPHeader
				want    string
			}{
				"ok": {"/status?code=200", nil, "success"},
				"399": {
					"/status?code=399", nil,
					"warning ProbeWarning: Liveness probe warning: Probe terminated redirects, Response body:",
				},
				"not found": {
					"/nothing", nil, "failure Unhealthy: Liveness probe failed: HTTP probe failed with statuscode: 404",
				},
				"broken": {
					"/status?code=500", nil,
					"failure Unhealthy: Liveness probe failed: HTTP probe failed with statuscode: 500",
				},
				"redirect to itself": {"/here", nil, "success"},
				"redirect to another": {
					"/away", nil, "warning ProbeWarning: Liveness probe warning: Probe terminated redirects, " +
						"Response body: <a href=\"http://elsewhere.example/\">Found</a>.\n\n",
				},
				"redirects without end": {
					"/loop", nil,
					"failure Unhealthy: Liveness probe failed: Get \"/loop\": ...stopped after 10 redirects",
				},
				"no answer in time":      {"/hang", nil, "failure Unhealthy: Liveness probe failed: Get \"..."},
				"an answer without end":  {"/huge", nil, "success"},
				"headers":                {"/headers", twice, "success"},
				"headers set to nothing": {"/own-headers", none, "success"},
				"no leading slash":       {"status?code=200", nil, "success"},
				"a path that is no URL":  {"/plain path", nil, "success"},
				"a path like a URL":      {"http://elsewhere.example/status?code=200", nil, "success"},
			} {
				h := v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{
					Path:        c.path,
					Port:        intstr.FromString("web"),
					Scheme:      server.scheme,
					HTTPHeaders: c.headers,
				}}
				within := int32(60)
				if c.path == "/hang" {
					within = 1
				}
				got := tryWithin(t, within, h, v1.Container{
					Name: "a", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: int32(port)}},
				}, host)
				begin, end, open := strings.Cut(c.want, "...")
				if !strings.HasPrefix(got, begin) || !strings.HasSuffix(got, end) || !open && got != begin {
					t.Errorf("%s, %s: %q, want %q", server.scheme, name, got, c.want)
				}
			}
		})
	}
}

// TestHTTP2: a probe may ask for HTTP/2 from the first byte, without TLS; its connection is not kept either.
func TestHTTP2(t *testing.T) {
	t.Parallel()
	var open atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(pages))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	server.Start()
	defer server.Close()
	host, port := where(t, server.Listener.Addr().String())
	h := v1.HTTPGetAction{Path: "/status?code=200", Port: intstr.FromInt32(int32(port))}
	if got := tryWithin(t, 1, v1.ProbeHandler{HTTPGet: &h}, v1.Container{Name: "a"}, host); !strings.HasPrefix(got,
		"failure") {
		t.Errorf("HTTP/1.1: %q, want a failure", got)
	}
	h.Protocol = ptr.To(v1.HTTPProtocolHTTP2)
	if got := try(t, v1.ProbeHandler{HTTPGet: &h}, v1.Container{Name: "a"}, host); got != "success" {
		t.Errorf("HTTP/2: %q, want success", got)
	}
	allClosed(t, &open)
}

// TestHTTPOtherHost: a probe may name a host of its own.
func TestHTTPOtherHost(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(pages))
	defer server.Close()
	host, port := where(t, server.Listener.Addr().String())
	h := v1.ProbeHandler{
		HTTPGet: &v1.HTTPGetAction{Path: "/status?code=200", Host: host, Port: intstr.FromInt32(int32(port))},
	}
	if got := try(t, h, v1.Container{Name: "a"}, "192.0.2.1"); got != "success" {
		t.Errorf("probe of a host of its own: %q, want success", got)
	}
}

// TestNoConnectionIsKept: what a probe opened is closed when it is over.
func TestNoConnectionIsKept(t *testing.T) {
	t.Parallel()
	var open atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(pages))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	host, port := where(t, server.Listener.Addr().String())
	h := v1.ProbeHandler{
		HTTPGet: &v1.HTTPGetAction{Path: "/huge", Scheme: v1.URISchemeHTTPS, Port: intstr.FromInt32(int32(port))},
	}
	for range 5 {
		if got := try(t, h, v1.Container{Name: "a"}, host); got != "success" {
			t.Errorf("probe: %q, want success", got)
		}
	}
	allClosed(t, &open)
}

func TestTCP(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	host, port := where(t, l.Addr().String())
	const dead = 1 // nobody listens there
	c := v1.Container{Name: "a", Ports: []v1.ContainerPort{{Name: "db", ContainerPort: int32(port)}}}
	for name, row := range map[string]struct {
		port intstr.IntOrString
		want string
	}{
		"open":           {intstr.FromInt32(int32(port)), "success"},
		"named":          {intstr.FromString("db"), "success"},
		"number as text": {intstr.FromString(strconv.Itoa(port)), "success"},
		"closed": {
			intstr.FromInt32(dead),
			fmt.Sprintf("failure Unhealthy: Liveness probe failed: dial tcp 127.0.0.1:%d: connect: connection refused",
				dead),
		},
		"no such name": {
			intstr.FromString("nothing"),
			`unknown Unhealthy: Liveness probe errored and resulted in unknown state: couldn't find a port named "nothing" in container a`,
		},
		"no port": {
			intstr.FromInt32(0),
			"unknown Unhealthy: Liveness probe errored and resulted in unknown state: invalid port number: 0",
		},
		"too large": {
			intstr.FromInt32(70000),
			"unknown Unhealthy: Liveness probe errored and resulted in unknown state: invalid port number: 70000",
		},
	} {
		if got := try(t, v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: row.port}}, c, host); got != row.want {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
	if got := try(t, v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromString("db"), Host: host}}, c,
		"192.0.2.1"); got != "success" {
		t.Errorf("a host of its own: %q, want \"success\"", got)
	}
	const want = "unknown Unhealthy: Liveness probe errored and resulted in unknown state: missing probe handler for " +
		"default/p:a"
	if got := try(t, v1.ProbeHandler{}, c, host); got != want {
		t.Errorf("probe without a handler: %q, want %q", got, want)
	}
}

// slowHealth answers when the caller has given up.
type slowHealth struct {
	grpc_health_v1.UnimplementedHealthServer
}

func (slowHealth) Check(
	ctx context.Context, _ *grpc_health_v1.HealthCheckRequest,
) (*grpc_health_v1.HealthCheckResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// serveGRPC serves, and returns the port.
func serveGRPC(t *testing.T, register func(*grpc.Server), opts ...grpc.ServerOption) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(opts...)
	register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	_, port := where(t, l.Addr().String())
	return port
}

func TestGRPC(t *testing.T) {
	t.Parallel()
	well := health.NewServer()
	well.SetServingStatus("ill", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	serving := serveGRPC(t, func(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, well) })
	without := serveGRPC(t, func(*grpc.Server) {})
	slow := serveGRPC(t, func(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, slowHealth{}) })
	web := httptest.NewTLSServer(nil) // for its certificate
	defer web.Close()
	secret := serveGRPC(t, func(s *grpc.Server) {
		grpc_health_v1.RegisterHealthServer(s, well)
	}, grpc.Creds(credentials.NewServerTLSFromCert(&web.TLS.Certificates[0])))
	const failed = "failure Unhealthy: Liveness probe failed: "
	for name, c := range map[string]struct {
		port    int
		service *string
		want    string
	}{
		"over TLS":    {secret, ptr.To(""), "success"},
		"serving":     {serving, nil, "success"},
		"not serving": {serving, ptr.To("ill"), failed + `service unhealthy (responded with "NOT_SERVING")`},
		"unknown service": {
			serving, ptr.To("none"),
			failed + "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
		},
		"no health": {
			without, nil, failed + "error: this server does not implement the grpc health protocol " +
				"(grpc.health.v1.Health): unknown service grpc.health.v1.Health",
		},
		"slow": {slow, nil, failed + "timeout: health rpc did not complete within 1s"},
		"nobody": {
			1, nil, failed + `timeout: failed to connect service "127.0.0.1:1" within 1s: context deadline exceeded`,
		},
	} {
		action := &v1.GRPCAction{Port: int32(c.port), Service: c.service}
		if c.port == secret {
			action.Mode = ptr.To(v1.GRPCProbeModeTLS)
		}
		within := int32(60)
		if name == "slow" || name == "nobody" {
			within = 1
		}
		got := tryWithin(t, within, v1.ProbeHandler{GRPC: action}, v1.Container{Name: "a"}, "127.0.0.1")
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestGRPCTriesAgain: a server that refuses the first connection has the whole timeout to come up.
func TestGRPCTriesAgain(t *testing.T) {
	t.Parallel()
	port := serveGRPC(t, func(*grpc.Server) {})
	var dials atomic.Int32
	conn, err := grpc.NewClient(fmt.Sprintf("passthrough:///127.0.0.1:%d", port),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			if dials.Add(1) == 1 {
				return nil, syscall.ECONNREFUSED
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := connected(t.Context(), conn); !got || dials.Load() != 2 {
		t.Errorf("connected = %t after %d connections, want true after 2", got, dials.Load())
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	nowhere, err := grpc.NewClient("passthrough:///127.0.0.1:1",
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer nowhere.Close()
	if connected(ended, nowhere) {
		t.Error("connected to a closed port = true, want false")
	}
}

func TestExpandStatic(t *testing.T) {
	vars := []v1.EnvVar{{Name: "A", Value: "x"}, {Name: "B", ValueFrom: &v1.EnvVarSource{}}}
	const want = "echo x-$(B)-$(C)-$(A)"
	if got := strings.Join(expandStatic([]string{"echo", "$(A)-$(B)-$(C)-$$(A)"}, vars), " "); got != want {
		t.Errorf("expandStatic() = %q, want %q", got, want)
	}
}

func FuzzRequest(f *testing.F) {
	for _, path := range []string{"/", "", "a?b=c", "//host/x", "http://[::1]:namedport", "/%zz", "/a b#c"} {
		f.Add(path, "Host", "x")
	}
	a := newAttempts(Options{})
	f.Fuzz(func(t *testing.T, path, name, value string) {
		q := &ask{target: target{pod: podOf(), container: &v1.Container{}, address: "192.0.2.1"}, spec: &v1.Probe{}}
		req, err := a.request(t.Context(), q, &v1.HTTPGetAction{
			Path: path, Port: intstr.FromInt32(80), HTTPHeaders: []v1.HTTPHeader{{Name: name, Value: value}},
		})
		if err == nil && (req.URL.Host != "192.0.2.1:80" || req.URL.Scheme != "http") {
			t.Errorf("request(%q) goes to %s, want http://192.0.2.1:80", path, req.URL)
		}
	})
}
