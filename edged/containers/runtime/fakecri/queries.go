package fakecri

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func selected(labels, selector map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func nano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func (s *sandbox) state() runtimeapi.PodSandboxState {
	if s.ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

// ListPodSandbox implements the CRI.
func (r *Runtime) ListPodSandbox(
	_ context.Context, req *runtimeapi.ListPodSandboxRequest,
) (*runtimeapi.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &runtimeapi.ListPodSandboxResponse{}
	for _, s := range r.sandboxes {
		if selected(s.config.Labels, req.GetFilter().GetLabelSelector()) {
			out.Items = append(out.Items, &runtimeapi.PodSandbox{
				Id:          s.id,
				Metadata:    s.config.Metadata,
				State:       s.state(),
				CreatedAt:   nano(s.created),
				Labels:      s.config.Labels,
				Annotations: s.config.Annotations,
			})
		}
	}
	return out, nil
}

// PodSandboxStatus implements the CRI.
func (r *Runtime) PodSandboxStatus(
	_ context.Context, req *runtimeapi.PodSandboxStatusRequest,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandbox(req.PodSandboxId)
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "sandbox %q not found", req.PodSandboxId)
	}
	st := &runtimeapi.PodSandboxStatus{
		Id:          s.id,
		Metadata:    s.config.Metadata,
		State:       s.state(),
		CreatedAt:   nano(s.created),
		Labels:      s.config.Labels,
		Annotations: s.config.Annotations,
		Network:     &runtimeapi.PodSandboxNetworkStatus{},
		Linux: &runtimeapi.LinuxPodSandboxStatus{
			Namespaces: &runtimeapi.Namespace{Options: s.config.GetLinux().GetSecurityContext().GetNamespaceOptions()},
		},
	}
	if s.ready {
		st.Network.Ip = s.ip
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: st}, nil
}

// ListContainers implements the CRI.
func (r *Runtime) ListContainers(
	_ context.Context, req *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &runtimeapi.ListContainersResponse{}
	for _, c := range r.containers {
		if selected(c.config.Labels, req.GetFilter().GetLabelSelector()) {
			out.Containers = append(out.Containers, &runtimeapi.Container{
				Id:           c.id,
				PodSandboxId: c.sandbox,
				Metadata:     c.config.Metadata,
				Image:        c.config.Image,
				ImageRef:     c.config.Image.GetImage(),
				State:        c.state,
				CreatedAt:    nano(c.created),
				Labels:       c.config.Labels,
				Annotations:  c.config.Annotations,
			})
		}
	}
	return out, nil
}

// ContainerStatus implements the CRI.
func (r *Runtime) ContainerStatus(
	_ context.Context, req *runtimeapi.ContainerStatusRequest,
) (*runtimeapi.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.container(req.ContainerId)
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "container %q not found", req.ContainerId)
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
		Id:          c.id,
		Metadata:    c.config.Metadata,
		State:       c.state,
		CreatedAt:   nano(c.created),
		StartedAt:   nano(c.started),
		FinishedAt:  nano(c.finished),
		ExitCode:    c.exitCode,
		Reason:      c.reason,
		Message:     c.message,
		Image:       c.config.Image,
		ImageRef:    c.config.Image.GetImage(),
		Labels:      c.config.Labels,
		Annotations: c.config.Annotations,
		Mounts:      c.config.Mounts,
		LogPath:     c.logPath,
	}}, nil
}

// ImageStatus implements the CRI.
func (r *Runtime) ImageStatus(
	context.Context, *runtimeapi.ImageStatusRequest,
) (*runtimeapi.ImageStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.ImageStatusResponse{Image: r.image}, nil
}

// Version implements the CRI.
func (r *Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: r.version}, nil
}

// Status implements the CRI.
func (r *Runtime) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status == nil {
		return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{}}, nil
	}
	return r.status, nil
}

// Is sets what the runtime says of itself.
func (r *Runtime) Is(version string, status *runtimeapi.StatusResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version, r.status = version, status
}
