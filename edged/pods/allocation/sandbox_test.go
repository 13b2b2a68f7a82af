package allocation

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/runtime/fakecri"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// TestResizePodCgroup: the runtime is called before the cgroup is changed. A refusal stops the resize; a runtime that
// lacks the call does not.
func TestResizePodCgroup(t *testing.T) {
	for name, c := range map[string]struct {
		answer  error
		refuses bool
	}{
		"unimplemented":  {answer: status.Error(codes.Unimplemented, "unknown method")},
		"containerd 2.2": {answer: status.Error(codes.Unknown, "not implemented yet")},
		"refused":        {answer: status.Error(codes.Unknown, "no such memory slot"), refuses: true},
		"unavailable":    {answer: status.Error(codes.Unavailable, "not implemented"), refuses: true},
	} {
		e, pod, obs := resizing("500m")
		fake, client := fakecri.Direct()
		e.opts.Runtime = client
		if err := e.resizePodCgroup(t.Context(), pod, obs); err != nil ||
			len(fake.Calls("UpdatePodSandboxResources")) != 0 {
			t.Errorf("%s: without a sandbox: %v, %d calls; want none", name, err,
				len(fake.Calls("UpdatePodSandboxResources")))
		}
		obs.Sandboxes = []*observed.Sandbox{{ID: "s"}}
		if err := e.resizePodCgroup(t.Context(), pod, obs); err != nil ||
			len(fake.Calls("UpdatePodSandboxResources")) != 0 {
			t.Errorf("%s: with a sandbox that has ended: %v, %d calls; want none",
				name, err, len(fake.Calls("UpdatePodSandboxResources")))
		}
		obs.Sandboxes[0].Ready = true
		fake.Fail("UpdatePodSandboxResources", 1, c.answer)
		if err := e.resizePodCgroup(t.Context(), pod, obs); (err != nil) != c.refuses ||
			(c.refuses && !errors.Is(err, c.answer)) {
			t.Errorf("%s: resizePodCgroup = %v, want an error: %v", name, err, c.refuses)
		}
		calls := fake.Calls("UpdatePodSandboxResources")
		if len(calls) != 1 {
			t.Errorf("%s: %d calls, want 1", name, len(calls))
			continue
		}
		req, ok := calls[0].Request.(*runtimeapi.UpdatePodSandboxResourcesRequest)
		if !ok || req.PodSandboxId != "s" || req.Resources.CpuShares != 512 || req.Overhead == nil {
			t.Errorf("%s: request %+v, want sandbox s with 512 shares and an overhead", name, calls[0].Request)
		}
	}
}
