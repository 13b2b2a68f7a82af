package devicecontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
)

// Indexes of the cached devices.
const (
	byNode  = "node"  // spec.nodeName
	byModel = "model" // NAMESPACE/NAME of the model
)

// caches holds the Devices and DeviceModels of the cluster in informers, as *devices.Device and *devices.DeviceModel.
type caches struct {
	objects         dynamic.Interface
	devices, models cache.SharedIndexInformer
}

func newCaches(objects dynamic.Interface) (*caches, error) {
	c := &caches{objects: objects}
	for _, x := range []struct {
		informer  *cache.SharedIndexInformer
		gvr       schema.GroupVersionResource
		indexers  cache.Indexers
		transform cache.TransformFunc
	}{
		{&c.devices, devices.Devices, deviceIndexers(), typedAs(func(d *devices.Device, n int) { d.Bytes = n })},
		{&c.models, devices.DeviceModels, nil, typedAs(func(m *devices.DeviceModel, n int) { m.Bytes = n })},
	} {
		informer := dynamicinformer.NewFilteredDynamicInformer(objects, x.gvr, "", 0, x.indexers, nil).Informer()
		if err := informer.SetTransform(x.transform); err != nil {
			return nil, fmt.Errorf("watch %s: %w", x.gvr.Resource, err)
		}
		if err := informer.SetWatchErrorHandlerWithContext(watchFailed(x.gvr.Resource)); err != nil {
			return nil, fmt.Errorf("watch %s: %w", x.gvr.Resource, err)
		}
		*x.informer = informer
	}
	return c, nil
}

// watchFailed logs why objects cannot be watched, at most every ten minutes.
func watchFailed(what string) cache.WatchErrorHandlerWithContext {
	var mu sync.Mutex
	var logged time.Time
	return func(ctx context.Context, _ *cache.Reflector, err error) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || errors.Is(err, io.EOF) ||
			errors.Is(err, io.ErrUnexpectedEOF) || time.Since(logged) < 10*time.Minute {
			return
		}
		logged = time.Now()
		klog.InfoS("Devices cannot be watched; until then nodes get no changes of them: apply deploy/cloudcore/crds "+
			"and check cloudcore's role", "resource", what, "err", err)
	}
}

// typedAs converts objects of the API into their Go type, without managedFields. setBytes sets their size.
func typedAs[T any](setBytes func(*T, int)) cache.TransformFunc {
	return func(obj any) (any, error) {
		u, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return obj, nil // converted before
		}
		u.SetManagedFields(nil)
		out, size, err := fromUnstructured[T](u)
		if err == nil && size > maxObjectBytes {
			err = fmt.Errorf("it has %d bytes, limit %d", size, maxObjectBytes)
		}
		if err != nil {
			// An object that does not fit is cached without its spec: it is bound to no node, and stops nothing else.
			klog.InfoS("Object is not readable as v1beta1, or too large; ignoring it", "kind", u.GetKind(), "object",
				klog.KObj(u), "err", err)
			bare := &unstructured.Unstructured{}
			bare.SetName(u.GetName())
			bare.SetNamespace(u.GetNamespace())
			bare.SetUID(u.GetUID())
			bare.SetResourceVersion(u.GetResourceVersion())
			if out, _, err = fromUnstructured[T](bare); err != nil {
				return nil, err
			}
		}
		setBytes(out, size)
		return out, nil
	}
}

// fromUnstructured converts an object, and returns its size in bytes of JSON.
func fromUnstructured[T any](u *unstructured.Unstructured) (*T, int, error) {
	data, err := json.Marshal(u.Object)
	if err != nil {
		return nil, 0, err
	}
	out := new(T)
	return out, len(data), json.Unmarshal(data, out)
}

func deviceIndexers() cache.Indexers {
	index := func(key func(d *devices.Device) string) cache.IndexFunc {
		return func(obj any) ([]string, error) {
			if d, ok := obj.(*devices.Device); ok {
				if k := key(d); k != "" {
					return []string{k}, nil
				}
			}
			return nil, nil
		}
	}
	return cache.Indexers{
		byNode:  index(func(d *devices.Device) string { return d.Spec.NodeName }),
		byModel: index(modelOf),
	}
}

// modelOf returns NAMESPACE/NAME of a device's model; "" is none.
func modelOf(d *devices.Device) string {
	if d.Spec.DeviceModelRef.Name == "" {
		return ""
	}
	return d.Namespace + "/" + d.Spec.DeviceModelRef.Name
}

// run runs the informers until ctx ends.
func (c *caches) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { c.devices.RunWithContext(ctx) })
	wg.Go(func() { c.models.RunWithContext(ctx) })
	wg.Wait()
}

// filled reports whether both caches have synced.
func (c *caches) filled() bool { return c.devices.HasSynced() && c.models.HasSynced() }

// device returns a cached device, or nil.
func (c *caches) device(namespace, name string) *devices.Device {
	return cached[devices.Device](c.devices, namespace, name)
}

// model returns a cached model, or nil.
func (c *caches) model(namespace, name string) *devices.DeviceModel {
	return cached[devices.DeviceModel](c.models, namespace, name)
}

// currentModel returns the model of a device, not older than the device; nil if there is none. An error means that the
// model is unknown: then nothing may be decided about the device. The two caches are not
// ordered: the model may have changed before the device, and the cache not have it yet. Then the API server is asked.
// It is not asked for devices without desired values, to which the model does not matter.
func (c *caches) currentModel(ctx context.Context, d *devices.Device) (*devices.DeviceModel, error) {
	m := c.model(d.Namespace, d.Spec.DeviceModelRef.Name)
	if d.Spec.DeviceModelRef.Name == "" || m != nil && !c.behind(d) ||
		!slices.ContainsFunc(d.Spec.Properties, func(p devices.DeviceProperty) bool { return desires(&p) }) {
		return m, nil
	}
	now, err := read[devices.DeviceModel](ctx, c.objects, devices.DeviceModels, d.Namespace, d.Spec.DeviceModelRef.Name)
	if err != nil {
		return nil, fmt.Errorf("read DeviceModel %s/%s, which decides which desired values of device %s are sent: %w",
			d.Namespace, d.Spec.DeviceModelRef.Name, d.Name, err)
	}
	return now, nil
}

// behind reports whether the cache of models may lack a change that was made before a device was written.
func (c *caches) behind(d *devices.Device) bool {
	order, err := resourceversion.CompareResourceVersion(c.models.LastSyncResourceVersion(), d.ResourceVersion)
	return err != nil || order < 0
}

func cached[T any](informer cache.SharedIndexInformer, namespace, name string) *T {
	obj, ok, err := informer.GetStore().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil
	}
	t, _ := obj.(*T)
	return t
}

// devicesOn lists the devices that are bound to a node.
func (c *caches) devicesOn(node string) []*devices.Device { return c.indexed(byNode, node) }

// devicesOf lists the devices of a model.
func (c *caches) devicesOf(namespace, model string) []*devices.Device {
	return c.indexed(byModel, namespace+"/"+model)
}

func (c *caches) indexed(index, key string) []*devices.Device {
	objs, err := c.devices.GetIndexer().ByIndex(index, key)
	if err != nil {
		return nil // the index always exists
	}
	out := make([]*devices.Device, 0, len(objs))
	for _, o := range objs {
		if d, ok := o.(*devices.Device); ok {
			out = append(out, d)
		}
	}
	return out
}

// read gets an object from the API server; nil if there is none. Without the CRD there is none either.
func read[T any](
	ctx context.Context, objects dynamic.Interface, gvr schema.GroupVersionResource, namespace, name string,
) (*T, error) {
	u, err := objects.Resource(gvr).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	u.SetManagedFields(nil)
	out, size, err := fromUnstructured[T](u)
	if err == nil && size > maxObjectBytes && gvr != devices.DeviceStatuses {
		return nil, nil // as in the cache: no node gets it
	}
	return out, err
}
