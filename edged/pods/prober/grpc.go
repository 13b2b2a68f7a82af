package prober

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// health asks a server by the gRPC health protocol; it is well when it says that it serves.
func (a *attempts) health(ctx context.Context, q *ask, h *v1.GRPCAction) (result, string, error) {
	address := net.JoinHostPort(q.address, strconv.Itoa(int(h.Port)))
	timeout := q.timeout()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	secrecy := insecure.NewCredentials()
	if ptr.Deref(h.Mode, v1.GRPCProbeModePlaintext) == v1.GRPCProbeModeTLS {
		secrecy = credentials.NewTLS(anyCertificate())
	}
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(secrecy), grpc.WithUserAgent(a.userAgent),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return a.dialer.DialContext(ctx, "tcp", addr)
		}),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		// An answer has a few bytes; by itself, gRPC takes headers of 16 MiB and a message of 4.
		grpc.WithMaxHeaderListSize(maxHead), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxOutput)),
	)
	if err != nil {
		return unknown, "", err
	}
	defer func() { _ = conn.Close() }() // the answer is there
	if !connected(ctx, conn) {
		return failure, fmt.Sprintf("timeout: failed to connect service %q within %v: %v", address, timeout,
			context.DeadlineExceeded), nil
	}
	resp, err := grpc_health_v1.NewHealthClient(conn).
		Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: ptr.Deref(h.Service, "")})
	switch status.Code(err) {
	case codes.OK:
	case codes.Unimplemented:
		return failure,
			fmt.Sprintf("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s",
				status.Convert(err).Message()), nil
	case codes.DeadlineExceeded:
		return failure, fmt.Sprintf("timeout: health rpc did not complete within %v", timeout), nil
	default:
		return failure, fmt.Sprintf("error: health rpc probe failed: %v", err), nil
	}
	if s := resp.GetStatus(); s != grpc_health_v1.HealthCheckResponse_SERVING {
		return failure, fmt.Sprintf("service unhealthy (responded with %q)", s), nil
	}
	return success, "service healthy", nil
}

// connected connects to a server, and tries again for as long as ctx lets it: one that is not up yet may be soon.
func connected(ctx context.Context, conn *grpc.ClientConn) bool {
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			return true
		case connectivity.Idle:
			conn.Connect()
		}
		if !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
}
