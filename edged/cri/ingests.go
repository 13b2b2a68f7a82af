package cri

import (
	"context"
	"errors"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// CRI says nothing of a pull before it ends. containerd serves more than CRI on its socket: the blobs that it is fetching,
// with their sizes, are in its content service (services/content/v1/content.proto of its API).

// Ingest is a blob that containerd is fetching.
type Ingest struct {
	// Ref names it, as "layer-sha256:...".
	Ref string
	// Offset is how many bytes have come, of Total; that is 0 where it is not known.
	Offset, Total int64
}

const (
	contentStatuses     = "/containerd.services.content.v1.Content/ListStatuses"
	namespaceHeader     = "containerd-namespace"
	kubernetesNamespace = "k8s.io"
)

// Ingests returns the blobs that are being fetched. Runtimes other than containerd do not know the question: see IsUnimplemented.
func (c *Client) Ingests(ctx context.Context) ([]Ingest, error) {
	ctx = metadata.AppendToOutgoingContext(ctx, namespaceHeader, kubernetesNamespace)
	// The answer's fields are all unknown to Empty, which keeps them as they came.
	var answer emptypb.Empty
	if err := c.conns[len(c.conns)-1].Invoke(ctx, contentStatuses, &emptypb.Empty{}, &answer); err != nil {
		return nil, err
	}
	return decodeIngests(answer.ProtoReflect().GetUnknown())
}

var errIngests = errors.New("containerd's list of what it fetches cannot be read")

// decodeIngests reads a ListStatusesResponse.
func decodeIngests(data []byte) ([]Ingest, error) {
	var list []Ingest
	err := fields(data, func(field protowire.Number, _ uint64, value []byte) error {
		if field != 1 {
			return nil
		}
		var in Ingest
		err := fields(value, func(field protowire.Number, number uint64, value []byte) error {
			switch field {
			case 3:
				in.Ref = string(value)
			case 4:
				in.Offset = int64(number)
			case 5:
				in.Total = int64(number)
			}
			return nil
		})
		list = append(list, in)
		return err
	})
	return list, err
}

// fields calls f with each field of a message, with its number or its bytes.
func fields(data []byte, f func(field protowire.Number, number uint64, value []byte) error) error {
	for len(data) > 0 {
		field, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return errIngests
		}
		data = data[n:]
		var number uint64
		var value []byte
		switch kind {
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(data)
		default:
			n = protowire.ConsumeFieldValue(field, kind, data)
		}
		if n < 0 {
			return errIngests
		}
		data = data[n:]
		if err := f(field, number, value); err != nil {
			return err
		}
	}
	return nil
}
