package lifecycle

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// commands answers for a container: the exit code, an error, or nothing until the caller gives up.
type commands struct {
	code int32
	err  error
	hang bool
	got  *runtimeapi.ExecSyncRequest
}

func (c *commands) ExecSync(
	ctx context.Context, in *runtimeapi.ExecSyncRequest, _ ...grpc.CallOption,
) (*runtimeapi.ExecSyncResponse, error) {
	c.got = in
	if c.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &runtimeapi.ExecSyncResponse{ExitCode: c.code, Stderr: []byte("secret")}, c.err
}

// TestDescribe: what is said of a failed hook is the kubelet's, but for what the command printed.
func TestDescribe(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "1"}}
	err := errors.New("no")
	for want, h := range map[string]v1.LifecycleHandler{
		`Exec lifecycle hook ([a b]) for Container "c" in Pod "p_n(1)" failed - error: no, message: ""`: {
			Exec: &v1.ExecAction{Command: []string{"a", "b"}},
		},
		`HTTP lifecycle hook (/x) for Container "c" in Pod "p_n(1)" failed - error: no`: {
			HTTPGet: &v1.HTTPGetAction{Path: "/x"},
		},
		`Sleep lifecycle hook (3) for Container "c" in Pod "p_n(1)" failed - error: no`: {
			Sleep: &v1.SleepAction{Seconds: 3},
		},
		`Cannot run handler: no`: {},
	} {
		if got := Describe(pod, "c", &h, err); got != want {
			t.Errorf("Describe = %q, want %q", got, want)
		}
	}
}

func TestExec(t *testing.T) {
	for name, c := range map[string]struct {
		run  commands
		want string
	}{
		"well":   {commands{}, ""},
		"failed": {commands{code: 7}, "command 'a b' exited with 7: "},
		"no way": {commands{err: errors.New("no such container")}, "no such container"},
	} {
		err := New(&c.run, "").Run(t.Context(), Target{ID: "c1"},
			&v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"a", "b"}}})
		if got := text(err); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if c.run.got.ContainerId != "c1" || !cmp.Equal(c.run.got.Cmd, []string{"a", "b"}) || c.run.got.Timeout != 0 {
			t.Errorf("%s: asked %+v, want a b in c1 without a timeout", name, c.run.got)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestHooksEndWithTheirContext: none outlives anyone who wanted it.
func TestHooksEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, h := range []*v1.LifecycleHandler{
			{Exec: &v1.ExecAction{}}, {Sleep: &v1.SleepAction{Seconds: 1000}},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			began := time.Now()
			err := New(&commands{hang: true}, "").Run(ctx, Target{}, h)
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
				t.Errorf("%+v: %v after %v, want the deadline after 3s", h, err, time.Since(began))
			}
			cancel()
		}
		began := time.Now()
		if err := New(nil, "").Run(t.Context(), Target{}, &v1.LifecycleHandler{
			Sleep: &v1.SleepAction{Seconds: 5},
		}); err != nil || time.Since(began) != 5*time.Second {
			t.Errorf("slept %v: %v, want 5s", time.Since(began), err)
		}
	})
}

func TestHandlersThatAlwaysFail(t *testing.T) {
	for _, h := range []*v1.LifecycleHandler{{}, {TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(80)}}} {
		if err := New(nil, "").Run(t.Context(), Target{Address: "127.0.0.1"}, h); !strings.HasPrefix(text(err),
			"invalid handler") {
			t.Errorf("%+v: %v, want invalid handler", h, err)
		}
	}
}

// seen is what a server was asked.
type seen struct{ URL, Host, Agent, Accept, Auth, Mine string }

func server(t *testing.T, start func(http.Handler) *httptest.Server) (*httptest.Server, *[]seen) {
	t.Helper()
	var all []seen
	s := start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all = append(all, seen{
			r.URL.String(), r.Host, r.UserAgent(), r.Header.Get("Accept"), r.Header.Get("Authorization"),
			strings.Join(r.Header["X-Mine"], ","),
		})
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
		case "/near":
			http.Redirect(w, r, "/there", http.StatusFound)
		case "/bad":
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(s.Close)
	return s, &all
}

// deaf returns a port on which nobody listens, and which nobody else gets until the test ends.
func deaf(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return name.(*unix.SockaddrInet4).Port
}

func TestHTTPGet(t *testing.T) {
	plain, asked := server(t, httptest.NewServer)
	_, port, err := net.SplitHostPort(plain.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	target := Target{Address: "127.0.0.1", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: int32(number)}}}
	at := "127.0.0.1:" + port
	for name, c := range map[string]struct {
		h    v1.HTTPGetAction
		want []seen
	}{
		"named port": {
			v1.HTTPGetAction{Path: "/x?a=b", Port: intstr.FromString("web")},
			[]seen{{"/x?a=b", at, "agent", "*/*", "", ""}},
		},
		"number": {
			v1.HTTPGetAction{Port: intstr.FromInt(number)}, []seen{{"/", at, "agent", "*/*", "", ""}},
		},
		"number as text": {
			v1.HTTPGetAction{Path: "x", Port: intstr.FromString(port), Host: "localhost"},
			[]seen{{"/x", "localhost:" + port, "agent", "*/*", "", ""}},
		},
		"a failure is answer": {
			v1.HTTPGetAction{Path: "/bad", Port: intstr.FromString("web")},
			[]seen{{"/bad", at, "agent", "*/*", "", ""}},
		},
		"redirect": {
			v1.HTTPGetAction{Path: "/near", Port: intstr.FromString("web")},
			[]seen{{"/near", at, "agent", "*/*", "", ""}, {"/there", at, "agent", "*/*", "", ""}},
		},
		"redirect elsewhere": {
			v1.HTTPGetAction{Path: "/away", Port: intstr.FromString("web")},
			[]seen{{"/away", at, "agent", "*/*", "", ""}},
		},
		"headers": {v1.HTTPGetAction{Port: intstr.FromString("web"), HTTPHeaders: []v1.HTTPHeader{
			{Name: "Host", Value: "shop"}, {Name: "user-agent", Value: "me"}, {Name: "Accept", Value: "text/plain"},
			{Name: "X-Mine", Value: "1"}, {Name: "x-mine", Value: "2"},
		}}, []seen{{"/", "shop", "me", "text/plain", "", "1,2"}}},
	} {
		*asked = nil
		if err := New(nil, "agent").Run(t.Context(), target, &v1.LifecycleHandler{HTTPGet: &c.h}); err != nil {
			t.Errorf("%s: %v, want no error", name, err)
		}
		if diff := cmp.Diff(c.want, *asked); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
	for name, h := range map[string]v1.HTTPGetAction{
		"unknown name": {Port: intstr.FromString("nope")}, "port 0": {},
		"port too large": {Port: intstr.FromInt(70000)},
	} {
		if err := New(nil, "").Run(t.Context(), target, &v1.LifecycleHandler{HTTPGet: &h}); !strings.Contains(text(err),
			"neither a number") {
			t.Errorf("%s: %v, want neither a number", name, err)
		}
	}
	if err := New(nil, "").Run(t.Context(), Target{}, &v1.LifecycleHandler{
		HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(1)},
	}); !strings.Contains(text(err), "no address") {
		t.Errorf("Run for a pod without an address: %v, want \"no address\"", err)
	}
	silent := &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt(deaf(t))}}
	if err := New(nil, "").Run(t.Context(), target, silent); err == nil {
		t.Error("Run of a hook that is not answered = nil, want an error")
	}
}

// TestHTTPS: any certificate will do, and a server without TLS is asked again without, and without secrets.
func TestHTTPS(t *testing.T) {
	for name, start := range map[string]func(http.Handler) *httptest.Server{
		"tls": httptest.NewTLSServer, "plain": httptest.NewServer,
	} {
		s, asked := server(t, start)
		fellBack := ""
		h := &v1.HTTPGetAction{Scheme: v1.URISchemeHTTPS, Port: intstr.FromInt(s.Listener.Addr().(*net.TCPAddr).Port),
			HTTPHeaders: []v1.HTTPHeader{{Name: "Authorization", Value: "secret"}}}
		target := Target{Address: "127.0.0.1", FellBack: func(url string) { fellBack = url }}
		if err := New(nil, "").Run(t.Context(), target, &v1.LifecycleHandler{HTTPGet: h}); err != nil {
			t.Errorf("%s: %v, want no error", name, err)
		}
		if len(*asked) != 1 || (fellBack != "") != (name == "plain") || ((*asked)[0].Auth == "") != (name == "plain") {
			t.Errorf("%s: asked %+v, fell back to %q; want one request, the secret and no fallback with TLS",
				name, *asked, fellBack)
		}
	}
}

// TestHTTP2: without TLS, where a hook asks for it.
func TestHTTP2(t *testing.T) {
	version := make(chan string, 1)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		version <- r.Proto
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	protocol := v1.HTTPProtocolHTTP2
	h := &v1.HTTPGetAction{Port: intstr.FromInt(s.Listener.Addr().(*net.TCPAddr).Port), Protocol: &protocol}
	if err := New(nil, "").Run(t.Context(), Target{Address: "127.0.0.1"},
		&v1.LifecycleHandler{HTTPGet: h}); err != nil {
		t.Fatal(err)
	}
	if got := <-version; got != "HTTP/2.0" {
		t.Errorf("protocol %s, want HTTP/2.0", got)
	}
}
