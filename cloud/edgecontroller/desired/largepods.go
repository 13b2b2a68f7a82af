package desired

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

const (
	// wholeBytes limits the large pods that are read, or on their way to nodes, wholeNodeBytes those of one node.
	wholeBytes     = 64 << 20
	wholeNodeBytes = 16 << 20
)

var errLargePodsOnTheirWay = errors.New("as many large pods as cloudcore holds are on their way to nodes")

// sendLarge returns a trimmed pod in the form that the hub sends.
func (d *Objects) sendLarge(node string, key resource.Key, pod *v1.Pod) (*cloudhub.Object, error) {
	size := min(int64(caches.SizeOf(pod)), d.wholeSent.Share())
	if !d.wholeSent.Take(node, size) {
		return nil, fmt.Errorf("%s has %d KiB: %w", key, size>>10, errLargePodsOnTheirWay)
	}
	done := func() { d.wholeSent.Return(node, size) }
	whole, err := d.lookups.WholePod(d.ctx, pod)
	var object *cloudhub.Object
	if err == nil {
		object, err = caches.ToSend(key, whole)
	}
	if err != nil {
		done()
		return nil, err
	}
	object.Done = done
	return object, nil
}
