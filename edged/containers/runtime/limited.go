package runtime

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/runtimelimit"
)

// limitedClient passes the calls that start and end pods through a Limiter.
type limitedClient struct {
	runtimeapi.RuntimeServiceClient
	limiter *runtimelimit.Limiter
}

// limitedBy returns a client whose calls pass through a limiter; it returns client itself if the limiter is nil.
func limitedBy(limiter *runtimelimit.Limiter, client *cri.Client) *cri.Client {
	if limiter == nil {
		return client
	}
	limited := *client
	limited.RuntimeServiceClient = limitedClient{client.RuntimeServiceClient, limiter}
	return &limited
}

// limited makes one call through a limiter.
func limited[Req, Resp any](
	ctx context.Context, limiter *runtimelimit.Limiter, kind runtimelimit.Kind,
	call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req, opts []grpc.CallOption,
) (resp Resp, err error) {
	called := false
	err = limiter.Do(ctx, kind, func() (err error) {
		called = true
		resp, err = call(ctx, req, opts...)
		return err
	})
	if err != nil && !called {
		err = status.FromContextError(err).Err()
	}
	return resp, err
}

// RunPodSandbox implements runtimeapi.RuntimeServiceClient.
func (c limitedClient) RunPodSandbox(
	ctx context.Context, req *runtimeapi.RunPodSandboxRequest, opts ...grpc.CallOption,
) (*runtimeapi.RunPodSandboxResponse, error) {
	return limited(ctx, c.limiter, runtimelimit.RunPodSandbox, c.RuntimeServiceClient.RunPodSandbox, req, opts)
}

// CreateContainer implements runtimeapi.RuntimeServiceClient.
func (c limitedClient) CreateContainer(
	ctx context.Context, req *runtimeapi.CreateContainerRequest, opts ...grpc.CallOption,
) (*runtimeapi.CreateContainerResponse, error) {
	return limited(ctx, c.limiter, runtimelimit.CreateContainer, c.RuntimeServiceClient.CreateContainer, req, opts)
}

// StartContainer implements runtimeapi.RuntimeServiceClient.
func (c limitedClient) StartContainer(
	ctx context.Context, req *runtimeapi.StartContainerRequest, opts ...grpc.CallOption,
) (*runtimeapi.StartContainerResponse, error) {
	return limited(ctx, c.limiter, runtimelimit.StartContainer, c.RuntimeServiceClient.StartContainer, req, opts)
}

// StopContainer implements runtimeapi.RuntimeServiceClient.
func (c limitedClient) StopContainer(
	ctx context.Context, req *runtimeapi.StopContainerRequest, opts ...grpc.CallOption,
) (*runtimeapi.StopContainerResponse, error) {
	return limited(ctx, c.limiter, runtimelimit.StopContainer, c.RuntimeServiceClient.StopContainer, req, opts)
}

// StopPodSandbox implements runtimeapi.RuntimeServiceClient.
func (c limitedClient) StopPodSandbox(
	ctx context.Context, req *runtimeapi.StopPodSandboxRequest, opts ...grpc.CallOption,
) (*runtimeapi.StopPodSandboxResponse, error) {
	return limited(ctx, c.limiter, runtimelimit.StopPodSandbox, c.RuntimeServiceClient.StopPodSandbox, req, opts)
}

// RemoveContainer implements runtimeapi.RuntimeServiceClient.
func (c limitedClient) RemoveContainer(
	ctx context.Context, req *runtimeapi.RemoveContainerRequest, opts ...grpc.CallOption,
) (*runtimeapi.RemoveContainerResponse, error) {
	return limited(ctx, c.limiter, runtimelimit.RemoveContainer, c.RuntimeServiceClient.RemoveContainer, req, opts)
}

// RemovePodSandbox implements runtimeapi.RuntimeServiceClient.
func (c limitedClient) RemovePodSandbox(
	ctx context.Context, req *runtimeapi.RemovePodSandboxRequest, opts ...grpc.CallOption,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	return limited(ctx, c.limiter, runtimelimit.RemovePodSandbox, c.RuntimeServiceClient.RemovePodSandbox, req, opts)
}
