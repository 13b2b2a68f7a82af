package allocation

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// resizePodCgroup changes the limits of a pod's cgroup. The runtime is called first: a sandbox that is a virtual
// machine may refuse the new size. It is not called for a sandbox that has exited: the next one is created with the new
// limits.
func (m *Manager) resizePodCgroup(ctx context.Context, pod *v1.Pod, obs *observed.Pod) error {
	if sandbox := obs.Sandbox(); sandbox != nil && sandbox.Ready {
		resources, overhead := m.opts.Cgroups.SandboxUpdate(pod)
		_, err := m.opts.Runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
			PodSandboxId: sandbox.ID, Resources: resources, Overhead: overhead,
		})
		if err != nil && !notImplemented(err) {
			return fmt.Errorf("resize sandbox of pod %s: %w", klog.KObj(pod), err)
		}
	}
	if err := m.opts.Cgroups.ResizePod(pod); err != nil {
		return fmt.Errorf("resize cgroup of pod %s: %w", klog.KObj(pod), err)
	}
	return nil
}

// notImplemented reports whether a runtime lacks a call. containerd 2.2 answers without the code for that.
func notImplemented(err error) bool {
	switch s := status.Convert(err); s.Code() {
	case codes.Unimplemented:
		return true
	case codes.Unknown:
		return strings.Contains(s.Message(), "not implemented")
	}
	return false
}
