package lookups

import (
	"container/list"
	"strconv"
	"sync"

	"golang.org/x/sync/singleflight"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// contentBytes bounds the ConfigMaps and Secrets that are kept encoded, contentMax one of them.
const (
	contentBytes = 64 << 20
	contentMax   = 8 << 20
)

// Contents has the ConfigMaps and Secrets that nodes were sent or compared with last, encoded. The informers have only
// their metadata: what is missing is read from the API server when a pod of a connected node names it, once for all
// nodes that need it at the same time.
type Contents struct {
	caches  *caches.Caches
	lookups *Lookups

	reads singleflight.Group

	mu      sync.Mutex
	bytes   int
	entries map[resource.Key]*list.Element
	used    list.List // of content, the longest unused first
}

type content struct {
	key    resource.Key
	object cloudhub.Object
}

// NewContents makes contents that keep nothing yet.
func NewContents(caches *caches.Caches, lookups *Lookups) *Contents {
	return &Contents{caches: caches, lookups: lookups, entries: map[resource.Key]*list.Element{}}
}

// get returns an object in the version that its metadata has, or in a later one; nil if it is not kept.
func (c *Contents) get(key resource.Key, now *metav1.PartialObjectMetadata) *cloudhub.Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	if e == nil {
		return nil
	}
	object := e.Value.(*content).object
	if object.UID != now.UID || !atLeast(object.ResourceVersion, now.ResourceVersion) {
		return nil
	}
	c.used.MoveToBack(e)
	return &object
}

// Put keeps an object, unless a later version is kept.
func (c *Contents) Put(object *cloudhub.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[object.Key]; e != nil {
		kept := &e.Value.(*content).object
		if kept.UID == object.UID && atLeast(kept.ResourceVersion, object.ResourceVersion) {
			return
		}
		c.remove(e)
	}
	if len(object.JSON) > contentMax {
		return
	}
	c.entries[object.Key] = c.used.PushBack(&content{object.Key, *object})
	for c.bytes += len(object.JSON); c.bytes > contentBytes; {
		c.remove(c.used.Front())
	}
}

// Expire drops an object that is kept in another version than the one that its metadata has now. A later one is
// dropped, too: after the restore of a backup of etcd, versions begin again at lower numbers.
func (c *Contents) Expire(key resource.Key, version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[key]; e != nil && e.Value.(*content).object.ResourceVersion != version {
		c.remove(e)
	}
}

// Forget drops an object that is gone.
func (c *Contents) Forget(key resource.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[key]; e != nil {
		c.remove(e)
	}
}

// remove is called under the lock.
func (c *Contents) remove(e *list.Element) {
	gone := c.used.Remove(e).(*content)
	delete(c.entries, gone.key)
	c.bytes -= len(gone.object.JSON)
}

// atLeast reports whether a resource version is the other one, or later. Versions that are not numbers do not compare.
func atLeast(version, other string) bool {
	if version == other {
		return true
	}
	v, err := strconv.ParseUint(version, 10, 64)
	o, errOther := strconv.ParseUint(other, 10, 64)
	return err == nil && errOther == nil && v >= o
}

// Object returns a ConfigMap or Secret: what is kept of it, or else what the API server has; nil if it does not exist.
func (c *Contents) Object(key resource.Key) (*cloudhub.Object, error) {
	now := c.caches.Named(key)
	if now == nil { // just created, just deleted, or of a kind that is not cached: who asks must have the newest
		return c.read(key)
	}
	if object := c.get(key, now); object != nil {
		return object, nil
	}
	// A read that began when this version was known returns it or a later one.
	object, err, _ := c.reads.Do(key.String()+" "+now.ResourceVersion, func() (any, error) {
		object, err := c.read(key)
		if object != nil && err == nil {
			c.Put(object)
		}
		return object, err
	})
	shared, _ := object.(*cloudhub.Object)
	if shared == nil || err != nil {
		return nil, err
	}
	out := *shared
	return &out, nil
}

// read reads a ConfigMap or Secret from the API server; nil if it does not exist.
func (c *Contents) read(key resource.Key) (*cloudhub.Object, error) {
	if key.Type == resource.TypeConfigMap {
		o, err := Confirmed(c.lookups, key, c.lookups.Own.CoreV1().ConfigMaps(key.Namespace).Get)
		if o == nil || err != nil {
			return nil, err
		}
		return caches.ToSend(key, o)
	}
	o, err := Confirmed(c.lookups, key, c.lookups.Own.CoreV1().Secrets(key.Namespace).Get)
	if o == nil || err != nil {
		return nil, err
	}
	return caches.ToSend(key, o)
}
