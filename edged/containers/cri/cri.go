// Package cri is the thin client of a CRI v1 runtime: the generated gRPC clients over one connection to a unix socket,
// with a deadline on every call. It neither retries nor logs: that is for its callers, who know what a failure means.
package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// maxMessage is the largest answer taken from the runtime: the kubelet's own limit.
	maxMessage = 16 << 20
	// reconnectMax bounds the wait before the next dial of a runtime that is down; a restart
	// of the runtime should be noticed in a moment, and a unix socket costs little to try.
	reconnectMax = 2 * time.Second
)

// Client talks to a runtime. The zero value is not usable; see Dial.
type Client struct {
	runtimeapi.RuntimeServiceClient
	Images runtimeapi.ImageServiceClient

	runtime grpc.ClientConnInterface
	conns   []*grpc.ClientConn
}

// New makes a client from connections to the runtime service and to the image service.
func New(runtime, images grpc.ClientConnInterface) *Client {
	return &Client{
		RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(runtime),
		Images:               runtimeapi.NewImageServiceClient(images),
		runtime:              runtime,
	}
}

// Through returns a client that makes its calls to the runtime service with a function. It is told the full name of the
// method, and returns the error of the call. Streams and the image service are not affected.
func (c *Client) Through(do func(ctx context.Context, method string, call func() error) error) *Client {
	through := *c
	through.runtime = throughConn{c.runtime, do}
	through.RuntimeServiceClient = runtimeapi.NewRuntimeServiceClient(through.runtime)
	return &through
}

type throughConn struct {
	grpc.ClientConnInterface
	do func(ctx context.Context, method string, call func() error) error
}

// Invoke implements grpc.ClientConnInterface.
func (c throughConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.do(ctx, method, func() error { return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...) })
}

// Dial makes a client for the runtime at endpoint ("unix:///run/containerd/containerd.sock" or a
// bare path) and the image service at imageEndpoint (empty: the same). It does not wait for the
// runtime: calls fail with code Unavailable until it is there. Every unary call without an
// earlier deadline gets timeout; PullImage, whose length is the network's, gets none.
func Dial(endpoint, imageEndpoint string, timeout time.Duration) (*Client, error) {
	conn, err := dial(endpoint, timeout)
	if err != nil {
		return nil, err
	}
	images, conns := conn, []*grpc.ClientConn{conn}
	if imageEndpoint != "" && imageEndpoint != endpoint {
		if images, err = dial(imageEndpoint, timeout); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		conns = append(conns, images)
	}
	c := New(conn, images)
	c.conns = conns
	return c, nil
}

// Close ends the connections; calls under way fail.
func (c *Client) Close() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// SocketPath returns the path of a unix endpoint.
func SocketPath(endpoint string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !strings.HasPrefix(path, "/") {
		return "", fmt.Errorf("runtime endpoint %q: want a unix socket such as unix:///run/containerd/containerd.sock",
			endpoint)
	}
	return path, nil
}

func dial(endpoint string, timeout time.Duration) (*grpc.ClientConn, error) {
	path, err := SocketPath(endpoint)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+path,
		// The path is not a host name, and newer servers refuse it as one.
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", addr)
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  100 * time.Millisecond,
				Multiplier: 1.6,
				Jitter:     0.2,
				MaxDelay:   reconnectMax,
			},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithUnaryInterceptor(deadline(timeout)),
		// One runtime on one socket: neither proxies nor service configs apply.
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
	)
}

// deadline bounds each call, so that a runtime that hangs cannot hold a pod worker for ever.
func deadline(timeout time.Duration) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		limit := timeout
		switch r := req.(type) {
		case *runtimeapi.PullImageRequest:
			limit = 0
		case *runtimeapi.StopContainerRequest:
			limit += time.Duration(r.Timeout) * time.Second
		case *runtimeapi.CheckpointContainerRequest:
			limit += time.Duration(r.Timeout) * time.Second
		case *runtimeapi.ExecSyncRequest:
			limit += time.Duration(r.Timeout) * time.Second
			if r.Timeout == 0 { // the command may take as long as its caller waits
				limit = 0
			}
		}
		if limit > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, limit)
			defer cancel()
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
}

// IsNotFound reports whether the runtime says that the object does not exist.
func IsNotFound(err error) bool { return status.Code(err) == codes.NotFound }

// isAlreadyThere reports whether the runtime says that there is an object of that name.
func isAlreadyThere(err error) bool { return status.Code(err) == codes.AlreadyExists }

// IsDown reports whether a call failed because the runtime is not there or does not answer,
// rather than because of what was asked.
func IsDown(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// IsUnimplemented reports whether the runtime does not know the call.
func IsUnimplemented(err error) bool { return status.Code(err) == codes.Unimplemented }
