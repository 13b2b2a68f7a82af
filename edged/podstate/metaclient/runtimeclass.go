package metaclient

import (
	"context"

	nodev1 "k8s.io/api/node/v1"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// RuntimeClass returns a RuntimeClass as the cloud has it, or as it was when there was a link.
func (c *Client) RuntimeClass(ctx context.Context, name string) (*nodev1.RuntimeClass, error) {
	key := resource.Key{Namespace: resource.NullNamespace, Type: resource.TypeRuntimeClass, Name: name}
	return Get[nodev1.RuntimeClass](ctx, c, key)
}
