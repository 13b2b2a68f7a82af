package fakecri

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (r *Runtime) sandbox(id string) *sandbox {
	if i := slices.IndexFunc(r.sandboxes, func(s *sandbox) bool { return s.id == id }); i >= 0 {
		return r.sandboxes[i]
	}
	return nil
}

func (r *Runtime) container(id string) *container {
	if i := slices.IndexFunc(r.containers, func(c *container) bool { return c.id == id }); i >= 0 {
		return r.containers[i]
	}
	return nil
}

func (r *Runtime) id(kind string) string {
	r.next++
	return fmt.Sprintf("%s%08d", kind, r.next)
}

func (c *container) exit(at time.Time, code int32, reason string) {
	if reason == "" {
		if reason = "Completed"; code != 0 {
			reason = "Error"
		}
	}
	c.state, c.finished, c.exitCode, c.reason = runtimeapi.ContainerState_CONTAINER_EXITED, at, code, reason
}

func (r *Runtime) endSandbox(s *sandbox) {
	s.ready = false
	for _, c := range r.containers {
		if c.sandbox == s.id && (c.state == runtimeapi.ContainerState_CONTAINER_RUNNING ||
			c.state == runtimeapi.ContainerState_CONTAINER_UNKNOWN) {
			c.exit(r.now(), 137, "")
		}
	}
}

func (s *sandbox) name() string {
	m := s.config.GetMetadata()
	return fmt.Sprintf("%s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

// RunPodSandbox implements the CRI.
func (r *Runtime) RunPodSandbox(
	_ context.Context, req *runtimeapi.RunPodSandboxRequest,
) (*runtimeapi.RunPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &sandbox{config: req.Config, ready: true, created: r.now()}
	for _, other := range r.sandboxes {
		if other.name() == s.name() {
			return nil, status.Errorf(codes.Unknown, "failed to reserve sandbox name %q: name %q is reserved for %q",
				s.name(), s.name(), other.id)
		}
	}
	s.id = r.id("5b")
	if s.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_POD {
		s.ip = fmt.Sprintf("10.1.0.%d", r.next%250+2)
	}
	r.sandboxes = append(r.sandboxes, s)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: s.id}, nil
}

// StopPodSandbox implements the CRI.
func (r *Runtime) StopPodSandbox(
	_ context.Context, req *runtimeapi.StopPodSandboxRequest,
) (*runtimeapi.StopPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandbox(req.PodSandboxId); s != nil {
		r.endSandbox(s)
		s.stops++
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox implements the CRI.
func (r *Runtime) RemovePodSandbox(
	_ context.Context, req *runtimeapi.RemovePodSandboxRequest,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sandboxes = slices.DeleteFunc(r.sandboxes, func(s *sandbox) bool { return s.id == req.PodSandboxId })
	r.containers = slices.DeleteFunc(r.containers, func(c *container) bool { return c.sandbox == req.PodSandboxId })
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// CreateContainer implements the CRI.
func (r *Runtime) CreateContainer(
	_ context.Context, req *runtimeapi.CreateContainerRequest,
) (*runtimeapi.CreateContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandbox(req.PodSandboxId)
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "sandbox %q not found", req.PodSandboxId)
	}
	if !s.ready {
		return nil, status.Errorf(codes.Unknown, "sandbox container %q is not running", s.id)
	}
	name := func(m *runtimeapi.ContainerMetadata, s *sandbox) string {
		p := s.config.GetMetadata()
		return fmt.Sprintf("%s_%s_%s_%s_%d", m.GetName(), p.GetName(), p.GetNamespace(), p.GetUid(), m.GetAttempt())
	}
	for _, other := range r.containers {
		if n := name(other.config.Metadata, r.sandbox(other.sandbox)); n == name(req.Config.Metadata, s) {
			return nil, status.Errorf(codes.Unknown, "failed to reserve container name %q: name %q is reserved for %q",
				n, n, other.id)
		}
	}
	c := &container{
		id:      r.id("c0"),
		sandbox: s.id,
		config:  req.Config,
		created: r.now(),
		logPath: filepath.Join(s.config.GetLogDirectory(), req.Config.GetLogPath()),
	}
	r.containers = append(r.containers, c)
	return &runtimeapi.CreateContainerResponse{ContainerId: c.id}, nil
}

// StartContainer implements the CRI.
func (r *Runtime) StartContainer(
	_ context.Context, req *runtimeapi.StartContainerRequest,
) (*runtimeapi.StartContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.container(req.ContainerId)
	switch {
	case c == nil:
		return nil, status.Errorf(codes.NotFound, "container %q not found", req.ContainerId)
	case c.state != runtimeapi.ContainerState_CONTAINER_CREATED:
		return nil, status.Errorf(codes.Unknown, "container %q is in %s state", c.id, c.state)
	}
	c.state, c.started = runtimeapi.ContainerState_CONTAINER_RUNNING, r.now()
	return &runtimeapi.StartContainerResponse{}, nil
}

// StopContainer implements the CRI; the process obeys at once, unless it is deaf.
func (r *Runtime) StopContainer(
	ctx context.Context, req *runtimeapi.StopContainerRequest,
) (*runtimeapi.StopContainerResponse, error) {
	r.mu.Lock()
	deaf := r.deaf[req.ContainerId]
	r.mu.Unlock()
	if deaf && req.Timeout > 0 {
		wait := time.NewTimer(time.Duration(req.Timeout) * time.Second)
		defer wait.Stop()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-wait.C:
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.container(req.ContainerId); c != nil && (c.state == runtimeapi.ContainerState_CONTAINER_RUNNING ||
		c.state == runtimeapi.ContainerState_CONTAINER_UNKNOWN) {
		c.exit(r.now(), 143, "")
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// RemoveContainer implements the CRI.
func (r *Runtime) RemoveContainer(
	_ context.Context, req *runtimeapi.RemoveContainerRequest,
) (*runtimeapi.RemoveContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.containers = slices.DeleteFunc(r.containers, func(c *container) bool { return c.id == req.ContainerId })
	return &runtimeapi.RemoveContainerResponse{}, nil
}
