package cri

import (
	"context"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
)

// CRI says nothing of a pull before it ends. containerd serves more than CRI on its socket: its content service lists
// the blobs that it is fetching, with their sizes.

// Ingest is a blob that containerd is fetching.
type Ingest struct {
	// Ref names it, as "layer-sha256:...".
	Ref string
	// Offset is how many bytes have come, of Total; that is 0 where it is not known.
	Offset, Total int64
}

// Ingests returns the blobs that are being fetched. Runtimes other than containerd do not know the question: see
// IsUnimplemented.
func (c *Client) Ingests(ctx context.Context) ([]Ingest, error) {
	conn, ctx := c.native(ctx)
	answer, err := contentapi.NewContentClient(conn).ListStatuses(ctx, &contentapi.ListStatusesRequest{})
	if err != nil {
		return nil, err
	}
	list := make([]Ingest, 0, len(answer.GetStatuses()))
	for _, s := range answer.GetStatuses() {
		list = append(list, Ingest{Ref: s.GetRef(), Offset: s.GetOffset(), Total: s.GetTotal()})
	}
	return list, nil
}
