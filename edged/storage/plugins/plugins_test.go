package plugins

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/edgecore-io/edgecore/pkg/filewatch/filewatchtest"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// handler records its calls.
type handler struct {
	mu     sync.Mutex
	log    []string
	refuse map[string]error                           // by name: Validate
	fail   map[string]int                             // by name: how often Register fails
	hang   map[string]chan struct{}                   // by name: Register waits for it
	then   map[string]func(ctx context.Context) error // by endpoint: what Register does once the plugin is taken
}

func (h *handler) note(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, text)
}

func (h *handler) seen() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.log)
}

func (h *handler) Validate(name, _ string, _ []string) error { return h.refuse[name] }

func (h *handler) Register(ctx context.Context, name, endpoint string, versions []string) error {
	if c := h.hang[name]; c != nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c:
		}
	}
	h.mu.Lock()
	h.fail[name]--
	failing := h.fail[name] >= 0
	h.mu.Unlock()
	if failing {
		return errors.New("not now")
	}
	h.note("+" + name + " " + filepath.Base(endpoint) + " " + strings.Join(versions, ","))
	if then := h.then[endpoint]; then != nil {
		return then(ctx)
	}
	return nil
}

func (h *handler) Deregister(name, endpoint string) {
	h.note("-" + name + " " + filepath.Base(endpoint))
}

// plug is a plugin's side.
type plug struct {
	registration.UnimplementedRegistrationServer
	info   *registration.PluginInfo
	silent chan struct{} // GetInfo waits for it
	told   chan *registration.RegistrationStatus
	server *grpc.Server
}

func (p *plug) GetInfo(ctx context.Context, _ *registration.InfoRequest) (*registration.PluginInfo, error) {
	if p.silent != nil {
		select {
		case <-p.silent:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return p.info, nil
}

func (p *plug) NotifyRegistrationStatus(
	_ context.Context, s *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	select {
	case p.told <- s:
	default:
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// serve starts a plugin. Its socket is removed when it stops, unless keep is set.
func serve(t *testing.T, path string, p *plug) *plug {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	p.told = make(chan *registration.RegistrationStatus, 64)
	p.server = grpc.NewServer()
	registration.RegisterRegistrationServer(p.server, p)
	done := make(chan struct{})
	go func() { defer close(done); _ = p.server.Serve(l) }()
	t.Cleanup(func() { p.server.Stop(); <-done })
	return p
}

func csi(name string) *plug {
	return &plug{info: &registration.PluginInfo{
		Type:              TypeCSI,
		Name:              name,
		Endpoint:          "/run/" + name + ".sock",
		SupportedVersions: []string{"1.0.0"},
	}}
}

func run(t *testing.T, h *handler) string {
	t.Helper()
	if h.fail == nil {
		h.fail = map[string]int{}
	}
	dir := filepath.Join(t.TempDir(), "plugins_registry")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	start(t, dir, h)
	return dir
}

// start runs a watcher, and returns what stops it.
func start(t *testing.T, dir string, h *handler) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done, watcher := make(chan error, 1), filewatchtest.New(t)
	go func() { done <- New(dir, watcher, map[string]Handler{TypeCSI: h}).Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func wantLog(t *testing.T, h *handler, want ...string) {
	t.Helper()
	wait.Until(t, "the calls of the handler", func() error {
		if diff := cmp.Diff(want, h.seen()); diff != "" {
			return fmt.Errorf("calls mismatch (-want +got):\n%s", diff)
		}
		return nil
	})
}

func told(t *testing.T, p *plug) *registration.RegistrationStatus {
	t.Helper()
	return wait.Receive(t, "the answer to the plugin", p.told)
}

func TestRegistration(t *testing.T) {
	h := &handler{}
	dir := run(t, h)
	a := serve(t, filepath.Join(dir, "a.sock"), csi("a"))
	wantLog(t, h, "+a a.sock 1.0.0")
	if s := told(t, a); !s.PluginRegistered || s.Error != "" {
		t.Errorf("told %v, want it registered without an error", s)
	}
	// In a folder of its own, and without an endpoint: its socket is it.
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	b := csi("b")
	b.info.Endpoint = ""
	serve(t, filepath.Join(dir, "sub", "b-reg.sock"), b)
	wantLog(t, h, "+a a.sock 1.0.0", "+b b-reg.sock 1.0.0")
	a.server.Stop() // removes its socket
	wantLog(t, h, "+a a.sock 1.0.0", "+b b-reg.sock 1.0.0", "-a a.sock")
	serve(t, filepath.Join(dir, "a.sock"), csi("a"))
	wantLog(t, h, "+a a.sock 1.0.0", "+b b-reg.sock 1.0.0", "-a a.sock", "+a a.sock 1.0.0")
}

func TestRefused(t *testing.T) {
	h := &handler{refuse: map[string]error{"bad": errors.New("version 0.3 is too old")}}
	dir := run(t, h)
	for want, p := range map[string]*plug{
		`plugin type "DRAPlugin" is unknown; this node supports CSIPlugin`: {
			info: &registration.PluginInfo{Type: "DRAPlugin", Name: "x"},
		},
		"plugin of type CSIPlugin has no name": {
			info: &registration.PluginInfo{Type: TypeCSI},
		},
		"plugin bad refused: version 0.3 is too old": csi("bad"),
		`plugin r: endpoint "../x" must be an absolute path`: {
			info: &registration.PluginInfo{Type: TypeCSI, Name: "r", Endpoint: "../x"},
		},
	} {
		serve(t, filepath.Join(dir, p.info.Type+p.info.Name+".sock"), p)
		if s := told(t, p); s.PluginRegistered || s.Error != want {
			t.Errorf("told %v, want %q", s, want)
		}
	}
	wantLog(t, h)
}

// A plugin that hangs, one whose handler hangs, one that crashed and left its socket, and what is no socket,
// hold up nobody.
func TestOthersAreNotHeldUp(t *testing.T) {
	h := &handler{hang: map[string]chan struct{}{"slow": make(chan struct{})}, fail: map[string]int{"later": 3}}
	dir := run(t, h)
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, "dead.sock")})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	if err := os.WriteFile(filepath.Join(dir, "file.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mute := csi("mute")
	mute.silent = make(chan struct{})
	serve(t, filepath.Join(dir, "mute.sock"), mute)
	slow := serve(t, filepath.Join(dir, "slow.sock"), csi("slow"))
	serve(t, filepath.Join(dir, "good.sock"), csi("good"))
	wantLog(t, h, "+good good.sock 1.0.0")
	later := serve(t, filepath.Join(dir, "later.sock"), csi("later"))
	if s := told(t, later); s.PluginRegistered || s.Error != "register plugin later: not now" {
		t.Errorf("told %v, want it refused, as the handler said \"not now\"", s)
	}
	wantLog(t, h, "+good good.sock 1.0.0", "+later later.sock 1.0.0")
	close(h.hang["slow"])
	wantLog(t, h, "+good good.sock 1.0.0", "+later later.sock 1.0.0", "+slow slow.sock 1.0.0")
	if s := told(t, slow); !s.PluginRegistered {
		t.Errorf("told %v, want it registered", s)
	}
}

// One name on two sockets: the newer wins, and the name stays when the older goes.
func TestRegisteredTwice(t *testing.T) {
	h := &handler{}
	dir := run(t, h)
	old := serve(t, filepath.Join(dir, "old.sock"), csi("x"))
	wantLog(t, h, "+x x.sock 1.0.0")
	next := csi("x")
	next.info.Endpoint = "/run/next.sock"
	serve(t, filepath.Join(dir, "new.sock"), next)
	wantLog(t, h, "+x x.sock 1.0.0", "+x next.sock 1.0.0")
	told(t, next)
	old.server.Stop()
	// Something that is told after the removal, so that its absence shows.
	serve(t, filepath.Join(dir, "z.sock"), csi("z"))
	wantLog(t, h, "+x x.sock 1.0.0", "+x next.sock 1.0.0", "+z z.sock 1.0.0")
	next.server.Stop()
	wantLog(t, h, "+x x.sock 1.0.0", "+x next.sock 1.0.0", "+z z.sock 1.0.0", "-x next.sock")
}

// The older of two sockets goes while the newer registers: the name stays, unless the newer one fails.
func TestOlderGoesMeanwhile(t *testing.T) {
	for name, result := range map[string]error{"registers": nil, "fails": errors.New("not now")} {
		t.Run(name, func(t *testing.T) {
			goOn := make(chan error)
			h := &handler{
				then: map[string]func(context.Context) error{"/run/next.sock": func(ctx context.Context) error {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case err := <-goOn:
						return err
					}
				}},
			}
			dir := run(t, h)
			old := serve(t, filepath.Join(dir, "old.sock"), csi("x"))
			told(t, old)
			next := csi("x")
			next.info.Endpoint = "/run/next.sock"
			serve(t, filepath.Join(dir, "new.sock"), next)
			want := []string{"+x x.sock 1.0.0", "+x next.sock 1.0.0", "+z z.sock 1.0.0"}
			wantLog(t, h, want[:2]...)
			old.server.Stop()
			serve(t, filepath.Join(dir, "z.sock"), csi("z"))
			wantLog(t, h, want...)
			goOn <- result
			if s := told(t, next); s.PluginRegistered != (result == nil) {
				t.Errorf("told %v, want registered: %v", s, result == nil)
			}
			if result != nil { // it tries again
				want = append(want, "-x x.sock", "+x next.sock 1.0.0")
			}
			wantLog(t, h, want...)
		})
	}
}

// A socket that goes while it is registered is deregistered in the end.
func TestGoesMeanwhile(t *testing.T) {
	h := &handler{then: map[string]func(context.Context) error{"/run/x.sock": func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}}}
	dir := run(t, h)
	x := serve(t, filepath.Join(dir, "x.sock"), csi("x"))
	wantLog(t, h, "+x x.sock 1.0.0")
	x.server.Stop()
	wantLog(t, h, "+x x.sock 1.0.0", "-x x.sock")
}

// A socket that is replaced is registered again without being forgotten in between; under another name, the
// old one goes.
func TestReplaced(t *testing.T) {
	h := &handler{}
	dir := run(t, h)
	at := filepath.Join(dir, "p.sock")
	serve(t, at, csi("p"))
	wantLog(t, h, "+p p.sock 1.0.0")
	replace := func(name string) {
		serve(t, filepath.Join(dir, ".next"), csi(name))
		if err := os.Rename(filepath.Join(dir, ".next"), at); err != nil {
			t.Fatal(err)
		}
	}
	replace("p")
	wantLog(t, h, "+p p.sock 1.0.0", "+p p.sock 1.0.0")
	replace("q")
	wantLog(t, h, "+p p.sock 1.0.0", "+p p.sock 1.0.0", "+q q.sock 1.0.0", "-p p.sock")
}

// The agent comes back: what lies there is registered again. A folder that is missing is made.
func TestAgentComesBack(t *testing.T) {
	h := &handler{fail: map[string]int{}}
	dir := filepath.Join(t.TempDir(), "deep", "plugins_registry")
	stop := start(t, dir, h)
	wait.Until(t, "the folder", func() error {
		_, err := os.Stat(dir)
		return err
	})
	serve(t, filepath.Join(dir, "p.sock"), csi("p"))
	wantLog(t, h, "+p p.sock 1.0.0")
	stop()
	start(t, dir, h)
	wantLog(t, h, "+p p.sock 1.0.0", "+p p.sock 1.0.0")
}
