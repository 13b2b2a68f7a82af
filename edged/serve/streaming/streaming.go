// Package streaming serves what kubectl asks a node for a pod: logs, exec, attach, port-forward and the older run. Who
// may ask is the business of package server.
//
// Logs are read from their files, so they are there while the container runtime is down. For the rest, the runtime
// opens a stream and says where; the connection of the client is then joined to it, byte for byte, whatever the two
// speak (SPDY or WebSocket). Credentials of the client stay here. How many streams and logs are open at once is
// bounded, and a stream on which nothing flows for the idle timeout is ended. All of them end with the context of New.
package streaming

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/pkg/filewatch"
	"github.com/edgecore-io/edgecore/pkg/shares"
)

// Defaults of Options.
const (
	// DefaultIdleTimeout is the kubelet's.
	DefaultIdleTimeout = 4 * time.Hour
	// DefaultMaxOpen is how many streams and how many logs may be open at least.
	DefaultMaxOpen = 32
)

// MaxOpen returns how many streams, and how many logs, a node of so many pods with so much memory may have open: one of
// each kind for two containers of each pod, but no more than take a 32nd of the memory. Each takes some 150 KB.
func MaxOpen(pods, memory int64) int {
	const each, part, mostPods = 150 << 10, 32, 1024
	return int(max(DefaultMaxOpen, min(2*min(pods, mostPods), memory/part/each)))
}

// Runtime is what is asked of the container runtime.
type Runtime interface {
	Exec(ctx context.Context, in *runtimeapi.ExecRequest, opts ...grpc.CallOption) (*runtimeapi.ExecResponse, error)
	Attach(ctx context.Context, in *runtimeapi.AttachRequest, opts ...grpc.CallOption) (*runtimeapi.AttachResponse,
		error)
	PortForward(ctx context.Context, in *runtimeapi.PortForwardRequest,
		opts ...grpc.CallOption) (*runtimeapi.PortForwardResponse, error)
	ExecSync(ctx context.Context, in *runtimeapi.ExecSyncRequest,
		opts ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error)
}

// Node is what is asked of the node.
type Node interface {
	// Pods returns the pods with their newest status.
	Pods() []*v1.Pod
	// Observed returns what is known of a pod's containers, nil when that is nothing; it does not wait.
	Observed(uid types.UID) *observed.Pod
	// Refresh asks the runtime for it.
	Refresh(ctx context.Context, uid types.UID) (*observed.Pod, error)
	// LogDir is the folder with a folder of logs for each container.
	LogDir(pod *v1.Pod) string
}

// Options make a Server.
type Options struct {
	Node    Node
	Runtime Runtime
	// Watcher tells of what is written to logs that are followed.
	Watcher *filewatch.Watcher
	// IdleTimeout is how long a stream may be silent; 0 is DefaultIdleTimeout.
	IdleTimeout time.Duration
	// MaxStreams and MaxLogs are how many may be open at once; 0 is DefaultMaxOpen. The pods of a namespace may have
	// half of them, so that no tenant takes them all.
	MaxStreams, MaxLogs int
}

// Server has the handlers. Each takes the values of its pattern's path: namespace, pod, container and, where the path
// has it, uid.
type Server struct {
	opts          Options
	runCtx        context.Context
	streams, logs *places
	// mu orders what begins with the wait for the end.
	mu   sync.Mutex
	open sync.WaitGroup
}

// New makes a Server, all of whose streams end with ctx.
func New(ctx context.Context, opts Options) *Server {
	opts.IdleTimeout = cmp.Or(opts.IdleTimeout, DefaultIdleTimeout)
	opts.MaxStreams, opts.MaxLogs = cmp.Or(opts.MaxStreams, DefaultMaxOpen), cmp.Or(opts.MaxLogs, DefaultMaxOpen)
	return &Server{
		opts:    opts,
		runCtx:  ctx,
		streams: newPlaces("streams", opts.MaxStreams),
		logs:    newPlaces("logs", opts.MaxLogs),
	}
}

// places bound how many streams or logs are open at once, on the node and of each namespace.
type places struct {
	*shares.Budget[string]
	what         string
	total, share int
}

func newPlaces(what string, total int) *places {
	share := (total + 1) / 2
	return &places{shares.NewBudget[string](int64(total), int64(share)), what, total, share}
}

// acquire counts a stream of a namespace, or returns why there is no room for it.
func (p *places) acquire(namespace string) error {
	if p.Take(namespace, 1) {
		return nil
	}
	if have := p.Of(namespace); have >= int64(p.share) {
		return refuse(http.StatusTooManyRequests, "this node has %d %s of namespace %q open, which is the limit for "+
			"one namespace; try again when one has closed", have, p.what, namespace)
	}
	return refuse(http.StatusTooManyRequests,
		"this node has %d %s open, which is the limit; try again when one has closed", p.total, p.what)
}

// Wait waits until all streams have ended. Where the context of New has, no more begin.
func (s *Server) Wait() {
	s.waitStarted()
	s.open.Wait()
}

// waitStarted waits until all callers that passed the gate have started.
func (s *Server) waitStarted() {
	s.mu.Lock()
	defer s.mu.Unlock()
}

// beginStream counts a stream that begins. It returns false if the server is stopping.
func (s *Server) beginStream() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runCtx.Err() != nil {
		return false
	}
	s.open.Add(1)
	return true
}

// Open returns how many streams and logs are open.
func (s *Server) Open() (streams, logs int) { return int(s.streams.Taken()), int(s.logs.Taken()) }

// refusal is an answer other than what was asked for.
type refusal struct {
	code int
	text string
}

func (r *refusal) Error() string { return r.text }

func refuse(code int, format string, args ...any) error {
	return &refusal{code: code, text: fmt.Sprintf(format, args...)}
}

// answer tells the client of an error. The text is all of the body: kubectl shows it.
func answer(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	var r *refusal
	if errors.As(err, &r) {
		code = r.code
	} else if st, ok := status.FromError(err); ok {
		switch st.Code() {
		case codes.NotFound:
			code = http.StatusNotFound
		case codes.ResourceExhausted:
			code = http.StatusTooManyRequests
		case codes.InvalidArgument:
			code = http.StatusBadRequest
		case codes.Unavailable, codes.DeadlineExceeded:
			code = http.StatusServiceUnavailable
		}
		err = fmt.Errorf("the container runtime refuses: %s", st.Message())
	}
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(err.Error())) // the client went away
}

// handler makes a handler that holds one of the places of what may be open at once, and whose request ends with the
// server.
func (s *Server) handler(
	open *places, serve func(w http.ResponseWriter, r *http.Request) error,
) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		namespace := r.PathValue("namespace")
		if err := open.acquire(namespace); err != nil {
			answer(w, err)
			return
		}
		defer open.Return(namespace, 1)
		if !s.beginStream() {
			answer(w,
				refuse(http.StatusServiceUnavailable,
					"the agent of this node is stopping; try again when it has started"))
			return
		}
		defer s.open.Done()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(s.runCtx, cancel)()
		if err := serve(w, r.WithContext(ctx)); err != nil {
			answer(w, err)
		}
	})
}

// pod finds the pod of a request: among several of a name the one that stays.
func (s *Server) pod(r *http.Request) (*v1.Pod, error) {
	namespace, name, uid := r.PathValue("namespace"), r.PathValue("pod"), types.UID(r.PathValue("uid"))
	pod := choosePod(s.opts.Node.Pods(), namespace, name, uid)
	if pod == nil {
		return nil, refuse(http.StatusNotFound, "pod %q does not exist in namespace %q on this node", name, namespace)
	}
	return pod, nil
}

// choosePod is pure. A static pod has another UID in the cloud, which names this one's in an annotation.
func choosePod(pods []*v1.Pod, namespace, name string, uid types.UID) *v1.Pod {
	var found *v1.Pod
	for _, p := range pods {
		if p.Namespace != namespace || p.Name != name {
			continue
		}
		if uid != "" && p.UID != uid && p.Annotations["kubernetes.io/config.hash"] != string(uid) {
			continue
		}
		if found == nil || found.DeletionTimestamp != nil && p.DeletionTimestamp == nil {
			found = p
		}
	}
	return found
}

// container finds the running container of a request. One that does not run is not found, which is an error of the
// server for a kubelet, too: clients know its text and its code. The cause follows.
func (s *Server) container(ctx context.Context, pod *v1.Pod, name string) (*observed.Container, error) {
	if spec(pod, name) == nil {
		return nil, refuse(http.StatusInternalServerError, "container not found (%q): pod %s has %s", name, pod.Name,
			strings.Join(containers(pod), ", "))
	}
	if c := s.opts.Node.Observed(pod.UID).Container(name); c.Running() {
		return c, nil
	}
	obs, err := s.opts.Node.Refresh(ctx, pod.UID)
	if err != nil {
		return nil, err
	}
	c := obs.Container(name)
	if !c.Running() {
		return nil, refuse(http.StatusInternalServerError, "container not found (%q): %s", name, whyNot(pod, name))
	}
	return c, nil
}

// spec is a container of a pod, of any kind, nil when there is none of that name.
func spec(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		if i := slices.IndexFunc(list, func(c v1.Container) bool { return c.Name == name }); i >= 0 {
			return &list[i]
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == name {
			return new(v1.Container(e.EphemeralContainerCommon))
		}
	}
	return nil
}

func containers(pod *v1.Pod) []string {
	var names []string
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			names = append(names, list[i].Name)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		names = append(names, pod.Spec.EphemeralContainers[i].Name)
	}
	return names
}

// statusOf is the status of a container of any kind; ok is false when there is none yet.
func statusOf(pod *v1.Pod, name string) (st v1.ContainerStatus, ok bool) {
	all := slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses,
		pod.Status.EphemeralContainerStatuses)
	if i := slices.IndexFunc(all, func(c v1.ContainerStatus) bool { return c.Name == name }); i >= 0 {
		return all[i], true
	}
	return st, false
}

// whyNot says in a word why a container does not run.
func whyNot(pod *v1.Pod, name string) string {
	st, ok := statusOf(pod, name)
	switch {
	case !ok:
		return "it has not been started yet"
	case st.State.Waiting != nil:
		return "it waits (" + cmp.Or(st.State.Waiting.Reason, "no reason given") + ")"
	case st.State.Terminated != nil:
		return fmt.Sprintf("it has ended with exit code %d (%s)", st.State.Terminated.ExitCode,
			st.State.Terminated.Reason)
	}
	return "it has just ended"
}
