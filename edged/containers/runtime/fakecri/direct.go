package fakecri

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
)

// Direct returns a runtime and a client that calls it without a socket, for tests with a simulated clock. The calls
// have no deadline of their own.
func Direct() (*Runtime, *cri.Client) {
	r := newRuntime()
	return r, cri.New(direct{r, &runtimeapi.RuntimeService_ServiceDesc},
		direct{r, &runtimeapi.ImageService_ServiceDesc})
}

// direct is a connection to one service of a runtime.
type direct struct {
	runtime *Runtime
	service *grpc.ServiceDesc
}

// Invoke implements grpc.ClientConnInterface.
func (d direct) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	name := filepath.Base(method)
	i := slices.IndexFunc(d.service.Methods, func(m grpc.MethodDesc) bool { return m.MethodName == name })
	if i < 0 {
		return status.Errorf(codes.Unimplemented, "unknown method %s", name)
	}
	decode := func(into any) error {
		proto.Merge(into.(proto.Message), args.(proto.Message))
		return nil
	}
	resp, err := d.service.Methods[i].Handler(d.runtime, ctx, decode, d.runtime.intercept)
	if err != nil {
		return asStatus(err)
	}
	proto.Merge(reply.(proto.Message), resp.(proto.Message))
	return nil
}

// NewStream implements grpc.ClientConnInterface.
func (d direct) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "no streams")
}

// asStatus makes the error that a gRPC client would see.
func asStatus(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Unknown, err.Error())
}
