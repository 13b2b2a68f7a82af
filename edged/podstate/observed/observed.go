// Package observed holds snapshots of pods in the container runtime: what is there, not what is desired. The runtime
// package fills it, and pleg, status and podworker decide from it. Values are immutable once they are handed out; a
// newer snapshot replaces an older one as a whole.
package observed

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Pod is every sandbox and container that carries one pod UID in its labels.
type Pod struct {
	UID       types.UID
	Namespace string
	Name      string
	// Sandboxes, newest first (by attempt, then by creation).
	Sandboxes []*Sandbox
	// Containers of all names, init containers among them, newest first.
	Containers []*Container
	// Detailed is true when the snapshot was made with the status calls of the runtime
	// (IPs, start and finish times, exit codes); false when it was made from its lists only.
	Detailed bool
	// At is when the snapshot was begun: whatever happened before it is in it.
	At time.Time
}

// Sandbox is one attempt at the pod's sandbox.
type Sandbox struct {
	ID             string
	Attempt        uint32
	Ready          bool
	CreatedAt      time.Time
	RuntimeHandler string
	// IPs of the pod, the primary one first; empty on the host network. Detailed only.
	IPs []string
	// HostNetwork reports whether the sandbox shares the node's network. Detailed only.
	HostNetwork bool
	// PID is the sandbox's process on the node, 0 where the runtime does not say. Detailed only.
	PID int
}

// Container is one attempt at a container.
type Container struct {
	ID        string
	Name      string
	SandboxID string
	Attempt   uint32
	State     runtimeapi.ContainerState
	// Image is the name that was asked for; ImageRef what the runtime resolved it to, by
	// digest where it has one; ImageID the runtime's own id of the image.
	Image    string
	ImageRef string
	ImageID  string
	// Hash is the container hash in the kubelet's annotation; 0 when there is none.
	Hash uint64
	// RestartCount as annotated at creation.
	RestartCount int32
	CreatedAt    time.Time

	// The rest is Detailed only.
	StartedAt  time.Time
	FinishedAt time.Time
	ExitCode   int32
	Reason     string
	Message    string
	LogPath    string
	// StopSignal is the signal by which the runtime stops the container ("SIGTERM"); "" where it does not say.
	StopSignal string
	// PID is the container's first process on the node, 0 where the runtime does not say.
	PID       int
	Resources *runtimeapi.LinuxContainerResources
	// User is who the container's first process began as; nil where the runtime does not say.
	User *runtimeapi.LinuxContainerUser
	// Images are the images that are mounted, by path in the container.
	Images map[string]string
}

// Reason is why a container or a pod does not go on, in the kubelet's words.
type Reason struct {
	Reason  string
	Message string
}

// Running reports whether the container's process runs.
func (c *Container) Running() bool {
	return c != nil && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING
}

// Exited reports whether the container has ended.
func (c *Container) Exited() bool {
	return c != nil && c.State == runtimeapi.ContainerState_CONTAINER_EXITED
}

// Sandbox returns the newest sandbox, or nil.
func (p *Pod) Sandbox() *Sandbox {
	if p == nil || len(p.Sandboxes) == 0 {
		return nil
	}
	return p.Sandboxes[0]
}

// SandboxReady reports whether one of the sandboxes is ready.
func (p *Pod) SandboxReady() bool {
	return p != nil && slices.ContainsFunc(p.Sandboxes, func(s *Sandbox) bool { return s.Ready })
}

// SandboxUsable reports whether containers can be started in the newest sandbox: it is the only one that is ready, and
// is on the network that the pod asks for.
func (p *Pod) SandboxUsable(hostNetwork bool) bool {
	box := p.Sandbox()
	if box == nil || !box.Ready || box.HostNetwork != hostNetwork || !hostNetwork && len(box.IPs) == 0 {
		return false
	}
	return !slices.ContainsFunc(p.Sandboxes[1:], func(s *Sandbox) bool { return s.Ready })
}

// Container returns the newest container of a name, or nil.
func (p *Pod) Container(name string) *Container {
	if p == nil {
		return nil
	}
	if i := slices.IndexFunc(p.Containers, func(c *Container) bool { return c.Name == name }); i >= 0 {
		return p.Containers[i]
	}
	return nil
}

// Attempts returns the containers of a name, newest first.
func (p *Pod) Attempts(name string) []*Container {
	if p == nil {
		return nil
	}
	var out []*Container
	for _, c := range p.Containers {
		if c.Name == name {
			out = append(out, c)
		}
	}
	return out
}

// Alive reports whether anything of the pod still runs: a ready sandbox or a container that
// runs or is in a state that the runtime does not know.
func (p *Pod) Alive() bool {
	if p == nil {
		return false
	}
	return p.SandboxReady() || p.ContainersAlive()
}

// ContainersAlive reports whether a container runs or is in an unknown state.
func (p *Pod) ContainersAlive() bool {
	return p != nil && slices.ContainsFunc(p.Containers, func(c *Container) bool {
		return c.State == runtimeapi.ContainerState_CONTAINER_RUNNING ||
			c.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN
	})
}

// Sort puts sandboxes and containers into the order that Pod promises.
func (p *Pod) Sort() {
	smallsort.SortStableFunc(p.Sandboxes, func(a, b *Sandbox) int {
		if a.Attempt != b.Attempt {
			return int(int64(b.Attempt) - int64(a.Attempt))
		}
		return b.CreatedAt.Compare(a.CreatedAt)
	})
	smallsort.SortStableFunc(p.Containers, func(a, b *Container) int {
		if a.Name == b.Name && a.Attempt != b.Attempt {
			return int(int64(b.Attempt) - int64(a.Attempt))
		}
		return b.CreatedAt.Compare(a.CreatedAt)
	})
}
