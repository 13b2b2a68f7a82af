// Package caches has what edge nodes need from the API server in memory: the pods that are bound to nodes, the large
// ones trimmed, the Nodes, Services without what nodes do not need, and which ConfigMaps and Secrets there are. Cached
// objects are shared, and must not be modified. It also has the forms in which objects are sent and compared.
package caches

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/podfacts"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Indexes of the cached pods.
const (
	byNode      = "node"      // the node's name
	byReference = "reference" // the keys of the ConfigMaps and Secrets that a pod names
	byServices  = "services"  // the namespace whose services a pod has in its environment
)

// byEndpoint is the index of the cached Nodes: address and port of their kubelet API.
const byEndpoint = "endpoint"

// Caches holds what edge nodes need from the API server, in shared informers. Of ConfigMaps and Secrets it has only
// which there are, in which version, and so it has of pods of other nodes: any tenant may create many large ones. Of
// Services it has what onlyCached returns.
// contents has the data of some ConfigMaps and Secrets.
type Caches struct {
	factories []informers.SharedInformerFactory
	// running are the informers that no factory runs, and pods.
	running sync.WaitGroup

	Pods                                 *podCache
	Nodes, ConfigMaps, Secrets, Services cache.SharedIndexInformer
}

// New makes the informers: for pods that are bound to a node, and nodes with EdgeLabel. connected reports whether
// a node is connected here.
func New(clients impersonate.Clients, connected func(node string) bool) (*Caches, error) {
	client := clients.Own
	edges := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(withoutManagedFields),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = marks.EdgeLabel + "="
		}))
	c := &Caches{
		factories:  []informers.SharedInformerFactory{edges},
		Nodes:      edges.Core().V1().Nodes().Informer(),
		ConfigMaps: identities(clients.Metadata, "configmaps", fields.Everything()),
		Secrets:    identities(clients.Metadata, "secrets", secretsOfPods()),
		Services:   newServiceInformer(client),
	}
	c.Pods = newPodCache(client, func(node string) bool { return c.Node(node) != nil || connected(node) })
	for _, i := range []cache.SharedIndexInformer{c.ConfigMaps, c.Secrets} {
		if err := i.SetTransform(onlyIdentity); err != nil {
			return nil, fmt.Errorf("cache only the metadata of ConfigMaps and Secrets: %w", err)
		}
	}
	if err := c.Services.SetTransform(onlyCached); err != nil {
		return nil, fmt.Errorf("cache only a part of Services: %w", err)
	}
	if err := c.Nodes.AddIndexers(cache.Indexers{byEndpoint: func(obj any) ([]string, error) {
		node, ok := obj.(*v1.Node)
		if !ok {
			return nil, nil
		}
		return endpointKeys(node), nil
	}}); err != nil {
		return nil, fmt.Errorf("index nodes: %w", err)
	}
	return c, nil
}

// endpointKeys is what a Node is found by in the index byEndpoint: where callers reach its kubelet API.
func endpointKeys(node *v1.Node) []string {
	first := slices.IndexFunc(node.Status.Addresses, func(a v1.NodeAddress) bool { return a.Type == v1.NodeInternalIP })
	if first < 0 {
		return nil
	}
	return []string{endpointKey(node.Status.Addresses[first].Address, node.Status.DaemonEndpoints.KubeletEndpoint.Port)}
}

func endpointKey(address string, port int32) string {
	return net.JoinHostPort(address, strconv.Itoa(int(port)))
}

// NodesAt returns the names of the Nodes whose kubelet API is reached at an address and port.
func (c *Caches) NodesAt(address string, port int32) []string {
	names, err := c.Nodes.GetIndexer().IndexKeys(byEndpoint, endpointKey(address, port))
	if err != nil { // there is such an index
		return nil
	}
	return names
}

// identities returns an informer for the metadata of a resource. The API server does not send the rest.
func identities(client metadata.Interface, resource string, which fields.Selector) cache.SharedIndexInformer {
	objects := client.Resource(v1.SchemeGroupVersion.WithResource(resource))
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = which.String()
			return objects.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = which.String()
			return objects.Watch(ctx, o)
		},
	}, client)
	return cache.NewSharedIndexInformer(source, &metav1.PartialObjectMetadata{}, 0, cache.Indexers{})
}

// onlyIdentity removes from metadata what is not needed to know that an object is there and has changed: annotations
// may be as large as 256 KiB.
func onlyIdentity(obj any) (any, error) {
	o, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace:       o.Namespace,
		Name:            o.Name,
		UID:             o.UID,
		ResourceVersion: o.ResourceVersion,
	}}, nil
}

// secretsOfPods leaves out the kinds of Secrets that pods do not name and that fill clusters: Helm releases (up to 1 MB
// each), and bootstrap tokens. A pod that names one still gets it, but not its changes.
func secretsOfPods() fields.Selector {
	return fields.AndSelectors(
		fields.OneTermNotEqualSelector("type", "helm.sh/release.v1"),
		fields.OneTermNotEqualSelector("type", "bootstrap.kubernetes.io/token"))
}

func podIndexers() cache.Indexers {
	return cache.Indexers{
		byNode: func(obj any) ([]string, error) {
			switch pod, id := cachedPod(obj); {
			case pod != nil && pod.Spec.NodeName != "":
				return []string{pod.Spec.NodeName}, nil
			case id != nil:
				return []string{id.node}, nil
			}
			return nil, nil
		},
		byServices: func(obj any) ([]string, error) {
			pod, ok := obj.(*v1.Pod)
			if !ok || pod.Spec.NodeName == "" || !podfacts.LinksServices(pod) {
				return nil, nil
			}
			return []string{pod.Namespace}, nil
		},
		byReference: func(obj any) ([]string, error) {
			pod, ok := obj.(*v1.Pod)
			if !ok {
				return nil, nil
			}
			keys := podfacts.References(pod)
			names := make([]string, len(keys))
			for i, k := range keys {
				names[i] = k.String()
			}
			return names, nil
		},
	}
}

// withoutManagedFields removes managedFields before an object is cached: no edge needs them.
func withoutManagedFields(obj any) (any, error) {
	if o, err := meta.Accessor(obj); err == nil {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

// Start starts the informers, and returns when they have synced.
func (c *Caches) Start(ctx context.Context) error {
	for _, f := range c.factories {
		f.StartWithContext(ctx)
	}
	for _, i := range []cache.SharedIndexInformer{c.ConfigMaps, c.Secrets, c.Services} {
		c.running.Go(func() { i.RunWithContext(ctx) })
	}
	filled := func(synced ...cache.InformerSynced) error {
		if !cache.WaitForCacheSync(ctx.Done(), synced...) {
			return errors.Join(errors.New("the caches of the API server's objects were not filled in time"),
				context.Cause(ctx))
		}
		return nil
	}
	// The Nodes come first: they decide which pods are cached whole.
	if err := filled(c.Nodes.HasSynced); err != nil {
		return err
	}
	c.running.Go(func() { c.Pods.run(ctx) })
	return filled(c.Pods.HasSynced, c.ConfigMaps.HasSynced, c.Secrets.HasSynced, c.Services.HasSynced)
}

// Wait waits for the informers' goroutines after start's context ended.
func (c *Caches) Wait() {
	for _, f := range c.factories {
		f.Shutdown()
	}
	c.running.Wait()
}

// PodsOf lists the pods that are bound to an edge node.
func (c *Caches) PodsOf(node string) []*v1.Pod {
	objs, err := c.Pods.indexer.ByIndex(byNode, node)
	if err != nil {
		return nil // the index always exists
	}
	return typed[v1.Pod](objs)
}

// PodsNaming lists the pods of edge nodes that name a ConfigMap or Secret.
func (c *Caches) PodsNaming(key resource.Key) []*v1.Pod {
	objs, err := c.Pods.indexer.ByIndex(byReference, key.String())
	if err != nil {
		return nil
	}
	return typed[v1.Pod](objs)
}

// NodesServed lists the nodes whose pods have the services of a namespace in their environment, each once.
func (c *Caches) NodesServed(namespace string) []string {
	objs, err := c.Pods.indexer.ByIndex(byServices, namespace)
	if err != nil {
		return nil
	}
	var nodes []string
	seen := map[string]bool{}
	for _, pod := range typed[v1.Pod](objs) {
		if node := pod.Spec.NodeName; !seen[node] {
			seen[node] = true
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// Names reports whether a pod on the node names a ConfigMap or Secret.
func (c *Caches) Names(node string, key resource.Key) bool {
	for _, pod := range c.PodsOf(node) {
		if pod.Namespace != key.Namespace {
			continue
		}
		for _, k := range podfacts.References(pod) {
			if k == key {
				return true
			}
		}
	}
	return false
}

func typed[T any](objs []any) []*T {
	out := make([]*T, 0, len(objs))
	for _, o := range objs {
		if t, ok := o.(*T); ok {
			out = append(out, t)
		}
	}
	return out
}

// cached returns an object from the cache, or nil.
func cached[T any](store cache.Store, namespace, name string) *T {
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	obj, ok, err := store.GetByKey(key)
	if err != nil || !ok {
		return nil
	}
	t, _ := obj.(*T)
	return t
}

// Pod returns a pod of an edge node, or nil.
func (c *Caches) Pod(namespace, name string) *v1.Pod {
	return cached[v1.Pod](c.Pods.indexer, namespace, name)
}

// Node returns a Node with EdgeLabel, or nil.
func (c *Caches) Node(name string) *v1.Node { return cached[v1.Node](c.Nodes.GetStore(), "", name) }

// AllNodes lists the Nodes with EdgeLabel.
func (c *Caches) AllNodes() []*v1.Node { return typed[v1.Node](c.Nodes.GetStore().List()) }

// Named returns which ConfigMap or Secret there is of a key; nil if there is none, or it is not cached.
func (c *Caches) Named(key resource.Key) *metav1.PartialObjectMetadata {
	switch key.Type {
	case resource.TypeConfigMap:
		return cached[metav1.PartialObjectMetadata](c.ConfigMaps.GetStore(), key.Namespace, key.Name)
	case resource.TypeSecret:
		return cached[metav1.PartialObjectMetadata](c.Secrets.GetStore(), key.Namespace, key.Name)
	}
	return nil
}

// Service returns a Service, perhaps without its ports, or nil; see LacksPorts.
func (c *Caches) Service(namespace, name string) *v1.Service {
	return cached[v1.Service](c.Services.GetStore(), namespace, name)
}

// ServicesIn lists the services of a namespace with an address, which containers' environments name.
func (c *Caches) ServicesIn(namespace string) []*v1.Service {
	objs, err := c.Services.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil
	}
	services := typed[v1.Service](objs)
	out := services[:0]
	for _, s := range services {
		if HasAddress(s) {
			out = append(out, s)
		}
	}
	return out
}

// HasAddress reports whether a Service has an address, which containers' environments name.
func HasAddress(s *v1.Service) bool {
	return s.Spec.ClusterIP != "" && s.Spec.ClusterIP != v1.ClusterIPNone
}

// Held returns the cached pod that a node reports; nil if the cache has another one, or has it on another node.
func (c *Caches) Held(node string, held *wire.Held) *v1.Pod {
	key, err := resource.Parse(held.Key)
	if err != nil || key.Type != resource.TypePod {
		return nil
	}
	pod := c.Pod(key.Namespace, key.Name)
	if pod == nil || pod.Spec.NodeName != node || string(pod.UID) != held.UID {
		return nil
	}
	return pod
}

// Put puts an object into the caches as if the API server had it, without an event. Only tests call it, with caches
// that watch nothing.
func (c *Caches) Put(o metav1.Object) error {
	identity := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
	}}
	switch o := o.(type) {
	case *v1.Pod:
		return c.Pods.indexer.Add(o)
	case *v1.Node:
		return c.Nodes.GetIndexer().Add(o)
	case *v1.ConfigMap:
		return c.ConfigMaps.GetIndexer().Add(identity)
	case *v1.Secret:
		return c.Secrets.GetIndexer().Add(identity)
	case *v1.Service:
		return c.Services.GetIndexer().Add(slimService(o))
	}
	return fmt.Errorf("%T is not cached", o)
}

// Remove undoes Put of a pod.
func (c *Caches) Remove(pod *v1.Pod) error { return c.Pods.indexer.Delete(pod) }
