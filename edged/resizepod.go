package edged

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/observed"
)

// resizePod gives the cgroup of a pod other limits. The runtime is told first, since a virtual machine that cannot take the
// new size refuses it. It is not told of a sandbox that has ended: the next one is made with the new limits.
func (e *Edged) resizePod(ctx context.Context, pod *v1.Pod, obs *observed.Pod) error {
	if sandbox := obs.Sandbox(); sandbox != nil && sandbox.Ready {
		resources, overhead := e.cgroups.SandboxUpdate(pod)
		_, err := e.client.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
			PodSandboxId: sandbox.ID, Resources: resources, Overhead: overhead,
		})
		if err != nil && !notImplemented(err) {
			return fmt.Errorf("resize sandbox of pod %s: %w", klog.KObj(pod), err)
		}
	}
	if err := e.cgroups.ResizePod(pod); err != nil {
		return fmt.Errorf("resize cgroup of pod %s: %w", klog.KObj(pod), err)
	}
	return nil
}

// notImplemented reports whether a runtime does not have a call. containerd 2.2 says so without the code for it.
func notImplemented(err error) bool {
	switch s := status.Convert(err); s.Code() {
	case codes.Unimplemented:
		return true
	case codes.Unknown:
		return strings.Contains(s.Message(), "not implemented")
	}
	return false
}
