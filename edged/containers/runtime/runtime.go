// Package runtime makes the CRI calls for a v1.Pod: the sandbox, init containers in order, containers. It also makes an
// observed.Pod from the runtime's lists. Names, labels, annotations, log paths and the container hash are the
// kubelet's, so that crictl, log collectors and a kubelet recognise what this package made, and it recognises what they
// made: a container whose hash is unchanged is adopted.
//
// What to do next is decided by pure functions over a snapshot (actions.go, init.go, replace.go, restart.go,
// backoff.go); SyncPod and KillPod carry it out. The methods may be called for different pods at once, and for one pod
// by one goroutine at a time. The package keeps no state of a pod but its crash backoff, and which containers have had
// their preStop hook.
package runtime

import (
	"context"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/runtimelimit"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/lifecycle"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// ImageEnsurer brings a container's image onto the node.
type ImageEnsurer interface {
	// EnsureImage returns the reference to run, or why there is none yet and when to try again.
	EnsureImage(ctx context.Context, pod *v1.Pod, container *v1.Container, secrets []v1.Secret,
		sandbox *runtimeapi.PodSandboxConfig) (imageRef string, problem *observed.Reason, retryAt time.Time)
}

// Inputs is what sandboxes and containers need beyond the pod's spec.
type Inputs interface {
	Sandbox(ctx context.Context, pod *v1.Pod) (SandboxInputs, error)
	// Container is asked just before a container is created; an error makes it wait with the
	// reason CreateContainerConfigError.
	Container(ctx context.Context, pod *v1.Pod, container *v1.Container, podIPs []string) (ContainerInputs, error)
}

// SandboxInputs are the inputs of a sandbox.
type SandboxInputs struct {
	Hostname     string
	DNS          *runtimeapi.DNSConfig
	CgroupParent string
	// Groups are those that the pod's volumes ask for, besides the pod's own.
	Groups []int64
	// UserNamespace holds the ids of a pod that has its own; nil is those of the node.
	UserNamespace *runtimeapi.UserNamespace
}

// ContainerInputs are the inputs of a container.
type ContainerInputs struct {
	Envs          []*runtimeapi.KeyValue
	Mounts        []*runtimeapi.Mount
	Command, Args []string
	WorkingDir    string
	// Groups are those that the pod's volumes ask for, besides the pod's own.
	Groups []int64
	// Devices, CDIDevices and Annotations are what device plugins and block volumes add.
	Devices     []*runtimeapi.Device
	CDIDevices  []*runtimeapi.CDIDevice
	Annotations map[string]string
}

// Options configure a Runtime.
type Options struct {
	Client *cri.Client
	// Limiter limits the calls that start and end pods; nil means no limit.
	Limiter  *runtimelimit.Limiter
	Images   ImageEnsurer
	Inputs   Inputs
	Recorder events.Interface
	// Repair puts damaged images right; nil leaves them as they are.
	Repair ImageRepairer
	// Resources converts a container's resources; see package cgroups.
	Resources func(pod *v1.Pod, container *v1.Container) *runtimeapi.LinuxContainerResources
	// SandboxResources says how large a pod is, and its overhead; nil tells the runtime of neither.
	SandboxResources func(pod *v1.Pod) (resources, overhead *runtimeapi.LinuxContainerResources)
	// Handler returns the runtime's handler for the runtime class of a pod; nil is the default one for all. It is
	// asked when a sandbox is made.
	Handler func(ctx context.Context, pod *v1.Pod) (string, error)
	// Hash returns the hash by which a container is judged, given its id and the one in its annotation, for containers
	// that were taken over from an agent with another kind of hash; nil is the annotation's. See package adopt.
	Hash func(id string, carries uint64) uint64
	// RootDir is the folder of the agent, in which pods/<uid>/containers holds termination messages, and seccomp has
	// Localhost seccomp profiles.
	RootDir string
	// PodLogsDir is the folder of pod logs; empty is /var/log/pods.
	PodLogsDir string
	// ContainerLogsDir is the folder of the links that log collectors follow; empty is /var/log/containers.
	ContainerLogsDir string
	// SeccompDefault makes RuntimeDefault the profile of containers that name none.
	SeccompDefault bool
	// HostIP is the node's address, "" while there is none: where hooks of pods on the host network go.
	HostIP func() string
	// UserAgent is what httpGet hooks call themselves.
	UserAgent string
	// MaskedPaths are further paths that containers do not see, beside those that no container does.
	MaskedPaths []string
	// SELinux: the node has it, and what a pod's containers share is labelled for them.
	SELinux bool
	// MaxBackoff bounds the wait before a crashed container is started again; zero is 5 minutes.
	MaxBackoff time.Duration
}

const (
	defaultPodLogsDir       = "/var/log/pods"
	defaultContainerLogsDir = "/var/log/containers"
)

// Runtime drives a CRI runtime.
type Runtime struct {
	// features is what the runtime said last that it can do.
	features atomic.Pointer[Features]
	users    imageUsers
	opts     Options
	client   *cri.Client
	backoff  *backoff
	hooks    *lifecycle.Runner
	// preStopDone are the containers that have had their preStop hook.
	preStopDone once
	// stopped are the sandboxes that were stopped and not removed yet.
	stopped once
	// stopFailures counts how often a dead sandbox could not be stopped.
	stopFailures tries
	// deadAttempts is set by SetDeadAttempts.
	deadAttempts atomic.Int64
}

// New makes a Runtime; it calls nothing.
func New(opts Options) *Runtime {
	if opts.PodLogsDir == "" {
		opts.PodLogsDir = defaultPodLogsDir
	}
	if opts.ContainerLogsDir == "" {
		opts.ContainerLogsDir = defaultContainerLogsDir
	}
	if opts.MaxBackoff <= 0 {
		opts.MaxBackoff = defaultMaxBackoff
	}
	if opts.Hash == nil {
		opts.Hash = func(_ string, carries uint64) uint64 { return carries }
	}
	if opts.HostIP == nil {
		opts.HostIP = func() string { return "" }
	}
	r := &Runtime{
		opts:    opts,
		client:  limitedBy(opts.Limiter, opts.Client),
		backoff: newBackoff(opts.MaxBackoff),
		hooks:   lifecycle.New(opts.Client, opts.UserAgent),
	}
	r.SetDeadAttempts(1)
	return r
}

// SetMaxBackoff changes Options.MaxBackoff. Waits that have begun are not shortened.
func (r *Runtime) SetMaxBackoff(d time.Duration) {
	if d <= 0 {
		d = defaultMaxBackoff
	}
	r.backoff.setMax(d)
}

// Version returns the runtime's name and versions.
func (r *Runtime) Version(ctx context.Context) (*runtimeapi.VersionResponse, error) {
	return r.client.Version(ctx, &runtimeapi.VersionRequest{})
}

// Status returns the runtime's conditions (RuntimeReady, NetworkReady).
func (r *Runtime) Status(ctx context.Context) (*runtimeapi.RuntimeStatus, error) {
	resp, err := r.client.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return nil, err
	}
	return resp.GetStatus(), nil
}

// SyncResult is what a sync did and what stands in the way.
type SyncResult struct {
	// Changed: the runtime's state of the pod is no longer what it was.
	Changed bool
	// Reasons says, by container name, why a container waits.
	Reasons map[string]observed.Reason
	// SandboxErr says why the pod has no sandbox.
	SandboxErr *observed.Reason
	// More: there is work left that no notification announces; the pod is to be synced again at once.
	More bool
	// RetryAt is when the earliest backoff ends; zero when none runs.
	RetryAt time.Time
	// Err is what failed, nil when the pod is in sync or only backs off.
	Err error
}

func (s *SyncResult) wait(container string, why observed.Reason) {
	if s.Reasons == nil {
		s.Reasons = map[string]observed.Reason{}
	}
	s.Reasons[container] = why
}

func (s *SyncResult) retry(at time.Time) {
	if !at.IsZero() && (s.RetryAt.IsZero() || at.Before(s.RetryAt)) {
		s.RetryAt = at
	}
}
