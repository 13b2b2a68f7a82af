package metamanager

import (
	"fmt"

	"github.com/edgecore-io/edgecore/metamanager/answer"
	"github.com/edgecore-io/edgecore/pkg/jsonbound"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// The size of messages is bounded on the wire. An element of a list takes as little as two bytes there, and a container
// takes 700 in memory, so that the number of elements is bounded as well, before anything is decoded. The API server
// takes objects of 1.5 MiB: these bounds leave 30 bytes of that for each element of a pod.
const (
	podElementsMax = 50_000
	elementsMax    = answer.ElementsMax
)

// checkElements returns an error for an object, or a list of them, that has too many elements to be decoded.
func checkElements(key resource.Key, data []byte) error {
	most := elementsMax
	if key.Type == resource.TypePod || key.Type == resource.TypePodPatch {
		most = podElementsMax
	}
	if jsonbound.HasMore(data, most) {
		return fmt.Errorf("%s: content has more than %d elements", key, most)
	}
	return nil
}
