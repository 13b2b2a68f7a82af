package outbox

import (
	"context"
	"errors"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// tooLarge are the objects whose last report the cloud refused because it is too large.
type tooLarge struct {
	mu      sync.Mutex
	objects map[string]bool
}

// tooLargeMax bounds them.
const tooLargeMax = 100

// noteRefused tells Options.Refused what became of a report on an object; failure is nil when the cloud took it. Events
// are left out: each is an object of its own, and a later one does not make up for it. So are pods that are not stored:
// they are gone, and no later report makes up for the last one.
func (o *Outbox) noteRefused(ctx context.Context, key resource.Key, failure *metav1.Status) {
	switch key.Type {
	case resource.TypeEvent:
		return
	case resource.TypePodPatch, resource.TypePodStatus:
		key.Type = resource.TypePod
	}
	object := key.String()
	o.tooLarge.mu.Lock()
	defer o.tooLarge.mu.Unlock()
	known := o.tooLarge.objects[object]
	refused := failure != nil && failure.Code == http.StatusRequestEntityTooLarge
	if refused && key.Type == resource.TypePod {
		_, err := o.opts.StoredUID(ctx, key)
		refused = !errors.Is(err, store.ErrNotFound)
	}
	switch {
	case refused && (known || len(o.tooLarge.objects) < tooLargeMax):
		if o.tooLarge.objects == nil {
			o.tooLarge.objects = map[string]bool{}
		}
		o.tooLarge.objects[object] = true
		o.opts.Refused(object, errors.New(failure.Message))
	case !refused && known:
		delete(o.tooLarge.objects, object)
		o.opts.Refused(object, nil)
	}
}

// Forget ends what Options.Refused was told of an object. It is called when the object is not stored any more.
func (o *Outbox) Forget(key resource.Key) {
	object := key.String()
	o.tooLarge.mu.Lock()
	defer o.tooLarge.mu.Unlock()
	if o.tooLarge.objects[object] {
		delete(o.tooLarge.objects, object)
		o.opts.Refused(object, nil)
	}
}
