package desired

import (
	"k8s.io/utils/lru"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/objects"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// encodedObjects is how many encoded objects are cached, and encodedSize the maximum size of one: objects that go to
// many nodes at once are encoded once.
const (
	encodedObjects = 512
	encodedSize    = 32 << 10
)

// encodings caches the most recently encoded objects.
type encodings struct{ cache *lru.Cache }

func newEncodings() encodings { return encodings{lru.New(encodedObjects)} }

type encodingKey struct {
	key     resource.Key
	uid, rv string
}

func (e encodings) get(key resource.Key, obj objects.Object) (*cloudhub.Object, error) {
	at := encodingKey{key, string(obj.GetUID()), obj.GetResourceVersion()}
	if found, ok := e.cache.Get(at); ok {
		out := found.(cloudhub.Object)
		return &out, nil
	}
	out, err := caches.ToSend(key, obj)
	if err == nil && len(out.JSON) <= encodedSize {
		e.cache.Add(at, *out)
	}
	return out, err
}
