package runtime

import (
	"context"

	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/runtimelimit"
)

// limitedBy returns a client whose calls that start and end pods pass through a limiter; it returns client itself if
// the limiter is nil.
func limitedBy(limiter *runtimelimit.Limiter, client *cri.Client) *cri.Client {
	if limiter == nil {
		return client
	}
	kinds := map[string]runtimelimit.Kind{
		runtimeapi.RuntimeService_RunPodSandbox_FullMethodName:    runtimelimit.RunPodSandbox,
		runtimeapi.RuntimeService_CreateContainer_FullMethodName:  runtimelimit.CreateContainer,
		runtimeapi.RuntimeService_StartContainer_FullMethodName:   runtimelimit.StartContainer,
		runtimeapi.RuntimeService_StopContainer_FullMethodName:    runtimelimit.StopContainer,
		runtimeapi.RuntimeService_StopPodSandbox_FullMethodName:   runtimelimit.StopPodSandbox,
		runtimeapi.RuntimeService_RemoveContainer_FullMethodName:  runtimelimit.RemoveContainer,
		runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName: runtimelimit.RemovePodSandbox,
	}
	return client.Through(func(ctx context.Context, method string, call func() error) error {
		kind, limited := kinds[method]
		if !limited {
			return call()
		}
		called := false
		err := limiter.Do(ctx, kind, func() error {
			called = true
			return call()
		})
		if err != nil && !called {
			err = status.FromContextError(err).Err()
		}
		return err
	})
}
