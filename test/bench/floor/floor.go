// Package floor is the least that any node agent must do to run a pod: the bare CRI calls, in
// order, with nothing between them. The benchmarks set edgecore's times beside it, and the tests
// of the test environment use it to have pods.
package floor

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// Client makes pods of one container each.
type Client struct {
	CRI *cri.Client
	// CgroupParent is the cgroup of the pods; nobody else may keep pods in it.
	CgroupParent string
	// LogDir is where containers log.
	LogDir string
	// Image and Command of the container.
	Image   string
	Command []string
	// Like, if not nil, is what the pods are like: see Like.
	Like *Like
}

// Pod is a running pod.
type Pod struct {
	Name      string
	Sandbox   string
	Container string

	sandbox *runtimeapi.PodSandboxConfig
}

// Port is a port of a pod that the host offers too.
type Port struct{ Container, Host int32 }

// Create makes a pod and returns when its container runs.
func (c *Client) Create(ctx context.Context, name string, ports ...Port) (*Pod, error) {
	pod := &Pod{Name: name, sandbox: c.sandbox(name)}
	for _, p := range ports {
		pod.sandbox.PortMappings = append(pod.sandbox.PortMappings, &runtimeapi.PortMapping{ContainerPort: p.Container,
			HostPort: p.Host})
	}
	sandbox, err := c.CRI.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod.sandbox})
	if err != nil {
		return nil, fmt.Errorf("run sandbox of %s: %w", name, err)
	}
	pod.Sandbox = sandbox.GetPodSandboxId()
	return pod, c.start(ctx, pod)
}

func (c *Client) sandbox(name string) *runtimeapi.PodSandboxConfig {
	if c.Like != nil {
		return c.Like.sandbox(name, filepath.Join(c.LogDir, name), c.CgroupParent)
	}
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "floor", Uid: name},
		Hostname:     name,
		LogDirectory: filepath.Join(c.LogDir, name),
		DnsConfig:    &runtimeapi.DNSConfig{},
		Labels:       map[string]string{"io.kubernetes.pod.name": name, "io.kubernetes.pod.uid": name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: filepath.Join(c.CgroupParent, name),
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			},
		},
	}
}

func (c *Client) container(name string) *runtimeapi.ContainerConfig {
	if c.Like != nil {
		return c.Like.container(name)
	}
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
		Image:    &runtimeapi.ImageSpec{Image: c.Image},
		Command:  c.Command,
		LogPath:  "main_0.log",
		Labels:   map[string]string{"io.kubernetes.pod.name": name, "io.kubernetes.pod.uid": name},
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{CpuShares: 2},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			},
		},
	}
}

func (c *Client) start(ctx context.Context, pod *Pod) error {
	created, err := c.CRI.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId:  pod.Sandbox,
		SandboxConfig: pod.sandbox,
		Config:        c.container(pod.Name),
	})
	if err != nil {
		return fmt.Errorf("create container of %s: %w", pod.Name, err)
	}
	pod.Container = created.GetContainerId()
	if _, err := c.CRI.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: pod.Container}); err != nil {
		return fmt.Errorf("start container of %s: %w", pod.Name, err)
	}
	status, err := c.CRI.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: pod.Container})
	if err != nil {
		return fmt.Errorf("status of the container of %s: %w", pod.Name, err)
	}
	if s := status.GetStatus(); s.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return fmt.Errorf("the container of %s is %s (exit code %d): %s", pod.Name, s.GetState(), s.GetExitCode(),
			s.GetMessage())
	}
	return nil
}

// Stop stops a pod, with grace for its container. Then nothing of it runs, and its address is free: an agent may report
// its end.
func (c *Client) Stop(ctx context.Context, pod *Pod, grace time.Duration) error {
	if _, err := c.CRI.StopContainer(ctx, &runtimeapi.StopContainerRequest{
		ContainerId: pod.Container, Timeout: int64(grace.Seconds()),
	}); err != nil {
		return fmt.Errorf("stop container of %s: %w", pod.Name, err)
	}
	if _, err := c.CRI.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.Sandbox}); err != nil {
		return fmt.Errorf("stop sandbox of %s: %w", pod.Name, err)
	}
	return nil
}

// Remove removes a stopped pod.
func (c *Client) Remove(ctx context.Context, pod *Pod) error {
	if _, err := c.CRI.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{
		ContainerId: pod.Container,
	}); err != nil {
		return fmt.Errorf("remove container of %s: %w", pod.Name, err)
	}
	if _, err := c.CRI.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{
		PodSandboxId: pod.Sandbox,
	}); err != nil {
		return fmt.Errorf("remove sandbox of %s: %w", pod.Name, err)
	}
	return nil
}

// Deletion is how long it took until pods were stopped, and until they were removed, too. An agent reports the end of a
// pod of the API server when it is stopped. A static pod is gone when it is removed.
type Deletion struct{ Stopped, Removed time.Duration }

// Delete stops and removes a pod.
func (c *Client) Delete(ctx context.Context, pod *Pod, grace time.Duration) (Deletion, error) {
	return c.DeleteAll(ctx, []*Pod{pod}, grace, 1)
}

// Burst makes count pods, at most parallel at a time, and returns when all of them run.
func (c *Client) Burst(ctx context.Context, prefix string, count, parallel int) ([]*Pod, error) {
	pods := make([]*Pod, count)
	return pods, each(ctx, parallel, count, func(ctx context.Context, n int) (err error) {
		pods[n], err = c.Create(ctx, fmt.Sprintf("%s-%d", prefix, n))
		return err
	})
}

// Again makes pods again, by names that end in "again", after the machine lost its power: each has its dead sandbox
// stopped first, which frees its address. It returns when all of them run.
func (c *Client) Again(ctx context.Context, dead []*Pod, parallel int) ([]*Pod, error) {
	pods := make([]*Pod, len(dead))
	return pods, each(ctx, parallel, len(dead), func(ctx context.Context, n int) (err error) {
		if _, err := c.CRI.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{
			PodSandboxId: dead[n].Sandbox,
		}); err != nil {
			return fmt.Errorf("stop sandbox of %s: %w", dead[n].Name, err)
		}
		pods[n], err = c.Create(ctx, dead[n].Name+"-again")
		return err
	})
}

// DeleteAll stops pods, at most parallel at a time, and then removes them.
func (c *Client) DeleteAll(
	ctx context.Context, pods []*Pod, grace time.Duration, parallel int,
) (d Deletion, err error) {
	began := time.Now()
	if err := each(ctx, parallel, len(pods), func(ctx context.Context, n int) error {
		return c.Stop(ctx, pods[n], grace)
	}); err != nil {
		return d, err
	}
	d.Stopped = time.Since(began)
	err = each(ctx, parallel, len(pods), func(ctx context.Context, n int) error { return c.Remove(ctx, pods[n]) })
	d.Removed = time.Since(began)
	return d, err
}

// UntilRemoved waits until the runtime has no sandboxes of pods with some names. An agent removes them when it has
// reported the end of the pods.
func UntilRemoved(ctx context.Context, client *cri.Client, names []string) error {
	ctx, cancel := daemon.Within(ctx)
	defer cancel()
	return daemon.Poll(ctx, func() error {
		list, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		for _, sandbox := range list.GetItems() {
			if name := sandbox.GetMetadata().GetName(); slices.Contains(names, name) {
				return fmt.Errorf("the runtime still has pod %s", name)
			}
		}
		return nil
	})
}

func each(ctx context.Context, parallel, count int, do func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for n := range count {
		group.Go(func() error { return do(ctx, n) })
	}
	return group.Wait()
}
