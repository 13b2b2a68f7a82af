package mapper

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits of what a mapper keeps, in encoded bytes. A namespace has a share, so that the Devices of one cannot keep
// those of others away.
const (
	maxObject    = 1 << 20
	maxNamespace = 4 << 20
	maxObjects   = 12 << 20
	// objectCost is what an object takes besides its text: a device has a goroutine.
	objectCost = 2 << 10
)

// budget counts the devices and models that a mapper has.
type budget struct {
	sizes      map[string]int // by object
	namespaces map[string]int
	total      int
}

func newBudget() *budget { return &budget{sizes: map[string]int{}, namespaces: map[string]int{}} }

// reserve counts an object, in place of an earlier one of that name. On an error the earlier one counts on.
func (b *budget) reserve(namespace, object string, size int) error {
	size += objectCost
	grows := size - b.sizes[object]
	switch {
	case size > maxObject:
		return status.Errorf(codes.ResourceExhausted, "%s has %d bytes, the limit is %d: make its configData smaller",
			object, size, maxObject)
	case b.namespaces[namespace]+grows > maxNamespace && grows > 0:
		return status.Errorf(codes.ResourceExhausted, "%s: namespace %s has %d bytes of devices and models on this "+
			"node, the limit is %d: remove some, or make their configData smaller", object, namespace,
			b.namespaces[namespace]+grows, maxNamespace)
	case b.total+grows > maxObjects && grows > 0:
		return status.Errorf(codes.ResourceExhausted, "%s: the devices and models of this node have %d bytes, the "+
			"limit is %d: remove some, or make their configData smaller", object, b.total+grows, maxObjects)
	}
	b.sizes[object] = size
	b.namespaces[namespace] += grows
	b.total += grows
	return nil
}

// drop counts an object no more.
func (b *budget) drop(namespace, object string) {
	size := b.sizes[object]
	delete(b.sizes, object)
	b.total -= size
	if b.namespaces[namespace] -= size; b.namespaces[namespace] == 0 {
		delete(b.namespaces, namespace)
	}
}
