// Package pluginrpc bounds what the gRPC messages of plugins take: drivers of volumes and devices, and the mappers of
// devices, are pods, and what they send is not to be trusted.
//
// The size of a message alone is not enough: an empty element of a list has two bytes on the wire and becomes a struct
// of about a hundred, so that gRPC's own limit of 4 MiB would let a plugin make the agent allocate 250 MiB. Hence the
// elements of a message are counted before it is decoded.
package pluginrpc

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that messages are sent with
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// MaxHeader bounds the headers and the trailers of an answer; the text of an error is among them. gRPC takes 16 MiB
	// by itself.
	MaxHeader = 64 << 10
	// maxDepth bounds how deep a message may be nested; those of plugins are four deep.
	maxDepth = 32
)

// Limits are the bounds of each message of a plugin.
type Limits struct {
	// Bytes is how long a message may be.
	Bytes int
	// Elements is how many messages may be in a message: elements of lists and maps, and those in them.
	Elements int
}

// DialOptions are for the connection to a plugin. A message that is above the limits is an error of its call.
func DialOptions(l Limits) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithMaxHeaderListSize(MaxHeader), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(l.Bytes),
			grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto"), l.Elements})),
	}
}

// ServerOptions are for a server whose callers are plugins. A request that is above the limits is an error of its call.
func ServerOptions(l Limits) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxHeaderListSize(MaxHeader), grpc.MaxRecvMsgSize(l.Bytes),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto"), l.Elements}),
	}
}

// codec is gRPC's own, but counts the elements of what it decodes.
type codec struct {
	encoding.CodecV2
	elements int
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if old, is := v.(protoadapt.MessageV1); !ok && is {
		m, ok = protoadapt.MessageV2Of(old), true
	}
	if !ok {
		return fmt.Errorf("%T is not a message of protobuf", v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	left := c.elements
	if err := count(buf.ReadOnlyData(), m.ProtoReflect().Descriptor(), &left, maxDepth); err != nil {
		return err
	}
	return proto.Unmarshal(buf.ReadOnlyData(), m)
}

// count takes the messages in a message from left, and fails when that is used up. What is damaged is for the decoder
// to say.
func count(data []byte, kind protoreflect.MessageDescriptor, left *int, depth int) error {
	if depth == 0 {
		return fmt.Errorf("a message is nested deeper than %d", maxDepth)
	}
	for len(data) > 0 {
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return nil
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, wire, data); n < 0 {
			return nil
		}
		field := kind.Fields().ByNumber(number)
		if field != nil && field.Message() != nil && wire == protowire.BytesType {
			if *left--; *left < 0 {
				return fmt.Errorf("a message has more elements than are taken")
			}
			value, _ := protowire.ConsumeBytes(data)
			if err := count(value, field.Message(), left, depth-1); err != nil {
				return err
			}
		}
		data = data[n:]
	}
	return nil
}
