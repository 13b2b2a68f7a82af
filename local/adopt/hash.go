package adopt

import (
	"encoding/json"
	"fmt"
	"hash/fnv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"
)

// SpecHash is the hash that kubelets from 1.16 to 1.30 give a container: of its whole spec as JSON. A container that
// carries it was made from this very spec.
func SpecHash(c *v1.Container) uint64 {
	text, err := json.Marshal(c)
	if err != nil {
		return 0 // what came from JSON goes to JSON
	}
	h := fnv.New32a()
	fmt.Fprint(h, dump.ForHash(text))
	return uint64(h.Sum32())
}
