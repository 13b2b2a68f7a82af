package v1beta1

import (
	"context"

	"google.golang.org/grpc/metadata"
)

// metaStateMessage is the key of the metadata of ReportDeviceStates that says why a device is in its state. The
// interface is KubeEdge's and has no field for it; KubeEdge's edgecore ignores the metadata. The suffix lets the value
// have any bytes.
const metaStateMessage = "edgecore-state-message-bin"

// WithStateMessage returns a context for ReportDeviceStates that sends the message of the state; "" is none.
func WithStateMessage(ctx context.Context, message string) context.Context {
	if message == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, metaStateMessage, message)
}

// StateMessage returns the message that a mapper sent with ReportDeviceStates; "" if there is none. A mapper may send
// any bytes.
func StateMessage(ctx context.Context) string {
	if values := metadata.ValueFromIncomingContext(ctx, metaStateMessage); len(values) > 0 {
		return values[0]
	}
	return ""
}
