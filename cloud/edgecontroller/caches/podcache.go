package caches

import (
	"context"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
)

// podCache caches the pods that are bound to a node. Pods of edge nodes, and of nodes that are connected here, are
// cached as *v1.Pod: whole, but the large ones trimmed. Of the pods of other nodes, which may be many and large, it
// keeps only a *podIdentity each. It decides that itself: no field selector names a set of nodes, and an object's
// metadata does not name its node.
//
// A node may become an edge node after the watch has brought its pods. These pods are then missing, and are listed
// from the API server once for the node. A listed pod is stored only if it has the version that the watch brought
// last. If it is newer, the watch is about to bring the whole pod. If it is older, the API server is behind, or its
// etcd was restored from a backup. So the cache never goes back, and a deleted pod does not return. What is still
// missing is listed again.
//
// It is the store of a reflector. There is one event for each change, in the order of the changes.
type podCache struct {
	// whole reports whether a node's pods are needed whole.
	whole func(node string) bool
	// Changed is called for each change: old is nil for a pod that is new or was not whole before, now for a deleted
	// one. A deletion is reported of any pod, as its node may still hold it. Of a pod that was not whole, old may have
	// no more than a podIdentity.
	Changed func(old, now *v1.Pod)
	// Fetch is called if pods of a node are missing. It must not block.
	Fetch func(node string)

	reflector *cache.Reflector
	synced    atomic.Bool
	indexer   cache.Indexer

	// events keeps the calls of changed in order; mu is never held then.
	events sync.Mutex
	mu     sync.Mutex
	// missing has the newest known version of pods, by node and key, whose content is needed and not here. The indexer
	// has their podIdentity, or an older version of the same pod.
	missing map[string]map[string]podVersion
}

// boundPods selects the pods that are bound to a node.
var boundPods = fields.OneTermNotEqualSelector("spec.nodeName", "").String()

// PodPage is how many pods are listed at a time. A page of the largest pods has about 75 MB, and takes several times
// that while it is read and decoded.
const PodPage = 50

type podVersion struct {
	uid     types.UID
	version string
}

// podIdentity is what is cached of a pod that no edge node needs.
type podIdentity struct {
	namespace, name, node string
	podVersion
}

var _ runtime.Object = (*podIdentity)(nil) // in lists

// GetObjectKind implements runtime.Object.
func (p *podIdentity) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object.
func (p *podIdentity) DeepCopyObject() runtime.Object {
	out := *p
	return &out
}

// GetObjectMeta implements metav1.ObjectMetaAccessor.
func (p *podIdentity) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.namespace, Name: p.name, UID: p.uid, ResourceVersion: p.version}
}

// pod returns a Pod with nothing but the identity.
func (p *podIdentity) pod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.name, UID: p.uid, ResourceVersion: p.version},
		Spec:       v1.PodSpec{NodeName: p.node},
	}
}

func identityOf(pod *v1.Pod) *podIdentity {
	return &podIdentity{
		namespace:  pod.Namespace,
		name:       pod.Name,
		node:       pod.Spec.NodeName,
		podVersion: podVersion{pod.UID, pod.ResourceVersion},
	}
}

// cachedPod returns the whole pod or the identity that an entry of the cache is. The other one is nil.
func cachedPod(obj any) (*v1.Pod, *podIdentity) {
	pod, _ := obj.(*v1.Pod)
	id, _ := obj.(*podIdentity)
	if pod != nil {
		id = nil
	}
	return pod, id
}

var _ cache.TransformingStore = (*podCache)(nil)

func newPodCache(client kubernetes.Interface, whole func(node string) bool) *podCache {
	p := &podCache{
		whole:   whole,
		Changed: func(_, _ *v1.Pod) {},
		Fetch:   func(string) {},
		indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, podIndexers()),
		missing: map[string]map[string]podVersion{},
	}
	pods := client.CoreV1().Pods(metav1.NamespaceAll)
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return p.list(ctx, pods, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = boundPods
			return pods.Watch(ctx, o)
		},
	}, client)
	p.reflector = cache.NewReflectorWithOptions(source, &v1.Pod{}, p, cache.ReflectorOptions{Name: "pods"})
	p.reflector.WatchListPageSize = PodPage
	return p
}

// list lists pods. The reflector calls it if the API server cannot stream its list (feature gate WatchList),
// in pages of PodPage. Each page is made small, so that the pods of other nodes are never in memory together.
func (p *podCache) list(ctx context.Context, pods corev1.PodInterface, o metav1.ListOptions) (runtime.Object, error) {
	o.FieldSelector = boundPods
	if o.Continue == "" {
		// For version 0 the API server sends all pods in one page. For another one, with a limit, it sends the pods as
		// they were at exactly that version, from which it may have no changes to watch any more: the reflector would
		// go round in a circle until etcd has compacted the version. A list of now is never older.
		o.ResourceVersion, o.ResourceVersionMatch = "", ""
	}
	list, err := pods.List(ctx, o)
	if err != nil {
		return nil, err
	}
	out := &internalversion.List{ListMeta: list.ListMeta, Items: make([]runtime.Object, len(list.Items))}
	for i := range list.Items {
		pod := list.Items[i] // a copy: the page is not kept
		if p.whole(pod.Spec.NodeName) {
			pod.ManagedFields = nil
			out.Items[i] = TrimIfLarge(&pod)
		} else {
			out.Items[i] = identityOf(&pod)
		}
	}
	return out, nil
}

// run fills the cache until the context ends.
func (p *podCache) run(ctx context.Context) { p.reflector.RunWithContext(ctx) }

// HasSynced reports whether the cache has been filled.
func (p *podCache) HasSynced() bool { return p.synced.Load() }

// LastSyncResourceVersion returns the newest version that was seen.
func (p *podCache) LastSyncResourceVersion() string { return p.reflector.LastSyncResourceVersion() }

// Count returns the number of cached pods, and of those that are whole.
func (p *podCache) Count() (all, whole int) {
	list := p.indexer.List()
	return len(list), len(typed[v1.Pod](list))
}

// Transformer implements cache.TransformingStore: the first pods arrive one by one, and are made small at once.
func (p *podCache) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return p.slim(obj), nil }
}

// slim removes from a pod what is not needed.
func (p *podCache) slim(obj any) any {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return obj
	}
	if !p.whole(pod.Spec.NodeName) {
		return identityOf(pod)
	}
	pod.ManagedFields = nil
	return TrimIfLarge(pod)
}

// Add implements cache.ReflectorStore.
func (p *podCache) Add(obj any) error { return p.Update(obj) }

// Update implements cache.ReflectorStore.
func (p *podCache) Update(obj any) error {
	p.events.Lock()
	defer p.events.Unlock()
	return p.put(obj)
}

// Delete implements cache.ReflectorStore.
func (p *podCache) Delete(obj any) error {
	p.events.Lock()
	defer p.events.Unlock()
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	last, _ := cachedPod(obj)
	return p.drop(key, last)
}

// Replace implements cache.ReflectorStore.
func (p *podCache) Replace(list []any, _ string) error {
	p.events.Lock()
	defer p.events.Unlock()
	listed := make(map[string]bool, len(list))
	for _, obj := range list {
		key, err := cache.MetaNamespaceKeyFunc(obj)
		if err != nil {
			return err
		}
		listed[key] = true
		if err := p.put(obj); err != nil {
			return err
		}
	}
	for _, key := range p.indexer.ListKeys() {
		if !listed[key] {
			if err := p.drop(key, nil); err != nil {
				return err
			}
		}
	}
	p.synced.Store(true)
	return nil
}

// Resync implements cache.ReflectorStore. It does nothing.
func (p *podCache) Resync() error { return nil }

// put stores what the watch brought of a pod. events is held.
func (p *podCache) put(obj any) error {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	p.mu.Lock()
	have, _, err := p.indexer.GetByKey(key)
	if err != nil {
		p.mu.Unlock()
		return err
	}
	old, oldID := cachedPod(have)
	if old != nil {
		oldID = identityOf(old)
	}
	p.found(oldID, key)
	obj = p.slim(obj)
	now, id := cachedPod(obj)
	lacks := ""
	if id != nil && p.whole(id.node) {
		// It was made small before its node needed it. An older version of the same pod stays until it is read.
		if old == nil || oldID.podVersion != id.podVersion {
			p.lack(id, key)
			lacks = id.node
		}
		if old != nil && old.UID == id.uid {
			obj = old
		}
	}
	err = p.indexer.Update(obj)
	p.mu.Unlock()
	if lacks != "" {
		p.Fetch(lacks)
	}
	replaced := oldID != nil && oldID.uid != uidOf(now, id)
	if old == nil && replaced {
		old = oldID.pod()
	}
	if err == nil && (now != nil || replaced) {
		p.Changed(old, now)
	}
	return err
}

func uidOf(pod *v1.Pod, id *podIdentity) types.UID {
	if pod != nil {
		return pod.UID
	}
	return id.uid
}

// drop removes a deleted pod; last is its last content, or nil. events is held.
func (p *podCache) drop(key string, last *v1.Pod) error {
	p.mu.Lock()
	have, ok, err := p.indexer.GetByKey(key)
	if err != nil || !ok {
		p.mu.Unlock()
		return err
	}
	old, id := cachedPod(have)
	if id == nil {
		id = identityOf(old)
	}
	p.found(id, key)
	err = p.indexer.Delete(have)
	p.mu.Unlock()
	switch {
	case err != nil:
		return err
	case old == nil && last != nil && last.UID == id.uid:
		old = last
	case old == nil:
		old = id.pod()
	}
	p.Changed(old, nil)
	return nil
}

// lack records that the content of a pod is missing. mu is held.
func (p *podCache) lack(id *podIdentity, key string) {
	if p.missing[id.node] == nil {
		p.missing[id.node] = map[string]podVersion{}
	}
	p.missing[id.node][key] = id.podVersion
}

// found records that the content of a pod is not missing any more; nil is ignored. mu is held.
func (p *podCache) found(id *podIdentity, key string) {
	if id == nil {
		return
	}
	delete(p.missing[id.node], key)
	if len(p.missing[id.node]) == 0 {
		delete(p.missing, id.node)
	}
}

// NodeChanged must be called after whole has changed for a node. The pods of a node that needs none are made small
// without an event: the node gets nothing any more.
func (p *podCache) NodeChanged(node string) {
	if p.recheck(node) {
		p.Fetch(node)
	}
}

// recheck reports whether pods of a node are missing.
func (p *podCache) recheck(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	list, err := p.indexer.ByIndex(byNode, node)
	if err != nil {
		return false // the index always exists
	}
	whole := p.whole(node)
	if !whole {
		delete(p.missing, node)
	}
	for _, obj := range list {
		pod, id := cachedPod(obj)
		switch {
		case whole && id != nil:
			p.lack(id, id.namespace+"/"+id.name)
		case !whole && pod != nil:
			if err := p.indexer.Update(identityOf(pod)); err != nil {
				continue // impossible: it has a key
			}
		}
	}
	return len(p.missing[node]) > 0
}

// Lacks reports whether pods of a node are missing.
func (p *podCache) Lacks(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.missing[node]) > 0
}

// Fill takes missing pods of a node from a list of its pods, and returns how many are still missing.
func (p *podCache) Fill(node string, list []v1.Pod) (missing int) {
	for i := range list {
		p.fillOne(node, &list[i])
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.missing[node])
}

func (p *podCache) fillOne(node string, listed *v1.Pod) {
	p.events.Lock()
	defer p.events.Unlock()
	key := listed.Namespace + "/" + listed.Name
	p.mu.Lock()
	id := identityOf(listed)
	if v, ok := p.missing[node][key]; !ok || v != id.podVersion || id.node != node || !p.whole(node) {
		p.mu.Unlock()
		return
	}
	have, _, err := p.indexer.GetByKey(key)
	old, _ := cachedPod(have)
	whole := *listed // the list is not kept
	whole.ManagedFields = nil
	now := TrimIfLarge(&whole)
	if err == nil {
		err = p.indexer.Update(now)
	}
	p.found(id, key)
	p.mu.Unlock()
	if err == nil {
		p.Changed(old, now)
	}
}
