// Package fakecri is a CRI runtime in memory, on a real unix socket, for tests: it keeps sandboxes and containers with
// the rules by which containerd keeps them (names are reserved, a dead sandbox takes no containers, stopping twice is
// not an error), runs nothing, and fails where a test says so.
//
// A container runs until Exit, StopContainer or the end of its sandbox. The runtime has its own clock,
// which a test may move.
package fakecri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// Runtime is the fake. Its methods may be called from any goroutine.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	endpoint string

	mu         sync.Mutex
	now        func() time.Time
	next       int
	sandboxes  []*sandbox
	containers []*container
	image      *runtimeapi.Image
	calls      []Call
	faults     []*fault
	version    string
	status     *runtimeapi.StatusResponse
	exec       func(context.Context, *runtimeapi.ExecSyncRequest) (int32, error)
	deaf       map[string]bool
}

type sandbox struct {
	id      string
	config  *runtimeapi.PodSandboxConfig
	ready   bool
	stops   int
	ip      string
	created time.Time
}

type container struct {
	id, sandbox                string
	config                     *runtimeapi.ContainerConfig
	state                      runtimeapi.ContainerState
	created, started, finished time.Time
	exitCode                   int32
	reason, message, logPath   string
}

// Call is a request that the runtime got.
type Call struct {
	Method  string // such as "StopContainer"
	Request proto.Message
}

type fault struct {
	method string
	err    error
	times  int
	// after runs the call and fails then, as when an answer is lost.
	after bool
}

func newRuntime() *Runtime {
	return &Runtime{
		now: time.Now, version: "v1.6.20", image: &runtimeapi.Image{Id: "sha256:image", Uid: &runtimeapi.Int64Value{}},
	}
}

// Start runs a runtime for the test and returns a client of it.
func Start(t testing.TB) (*Runtime, *cri.Client) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "cri.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	r := newRuntime()
	r.endpoint = "unix://" + socket
	server := grpc.NewServer(grpc.UnaryInterceptor(r.intercept))
	runtimeapi.RegisterRuntimeServiceServer(server, r)
	runtimeapi.RegisterImageServiceServer(server, r)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	client, err := cri.Dial(r.endpoint, "", wait.Max())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return r, client
}

// Endpoint is where it listens.
func (r *Runtime) Endpoint() string { return r.endpoint }

// intercept records the call and fails it where a fault says so.
func (r *Runtime) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	method := filepath.Base(info.FullMethod)
	r.mu.Lock()
	if m, ok := req.(proto.Message); ok {
		r.calls = append(r.calls, Call{method, m})
	}
	var hit *fault
	for _, f := range r.faults {
		if f.method == method && f.times > 0 {
			f.times--
			hit = f
			break
		}
	}
	r.mu.Unlock()
	if hit != nil && !hit.after {
		return nil, hit.err
	}
	resp, err := handle(ctx, req)
	if hit != nil && err == nil {
		return nil, hit.err
	}
	return resp, err
}

// Fail makes the next calls of a method fail without effect.
func (r *Runtime) Fail(method string, times int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, &fault{method: method, err: err, times: times})
}

// FailAfter makes the next calls of a method take effect and fail nevertheless.
func (r *Runtime) FailAfter(method string, times int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, &fault{method: method, err: err, times: times, after: true})
}

// SetClock makes the runtime take its times from now.
func (r *Runtime) SetClock(now func() time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = now
}

// SetImage sets what ImageStatus says of every image; nil: there is none.
func (r *Runtime) SetImage(image *runtimeapi.Image) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.image = image
}

// Calls returns the requests of the given methods so far, in order; of all methods when none is given.
func (r *Runtime) Calls(methods ...string) []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Call
	for _, c := range r.calls {
		if len(methods) == 0 || slices.Contains(methods, c.Method) {
			out = append(out, c)
		}
	}
	return out
}

// ForgetCalls empties the record of calls.
func (r *Runtime) ForgetCalls() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = nil
}

// Exit ends a container's process, as if by itself.
func (r *Runtime) Exit(id string, code int32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.container(id)
	if c == nil || c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return fmt.Errorf("container %s does not run", id)
	}
	c.exit(r.now(), code, "")
	return nil
}

// KillSandbox ends a sandbox and its containers, as when its pause process dies. The runtime was
// not told to stop it.
func (r *Runtime) KillSandbox(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandbox(id)
	if s == nil {
		return fmt.Errorf("no sandbox %s", id)
	}
	r.endSandbox(s)
	return nil
}

// SetState puts a container into a state, as when the runtime lost sight of it.
func (r *Runtime) SetState(id string, state runtimeapi.ContainerState) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.container(id)
	if c == nil {
		return fmt.Errorf("no container %s", id)
	}
	c.state = state
	return nil
}

// Stops returns how often a sandbox was stopped by a call; -1 if it does not exist.
func (r *Runtime) Stops(sandboxID string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandbox(sandboxID); s != nil {
		return s.stops
	}
	return -1
}
