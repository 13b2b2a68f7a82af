package fakes

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/podfacts"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Caches are caches of the API server's objects that a test fills itself. The zero value is ready to use. It is not
// safe for concurrent changes.
type Caches struct {
	Nodes map[string]*v1.Node
	Pods  map[resource.Key]*v1.Pod
	// Objects are ConfigMaps and Secrets.
	Objects map[resource.Key]metav1.Object
}

// Add puts Nodes, pods, ConfigMaps and Secrets into the caches.
func (c *Caches) Add(objs ...metav1.Object) {
	if c.Nodes == nil {
		c.Nodes, c.Pods = map[string]*v1.Node{}, map[resource.Key]*v1.Pod{}
		c.Objects = map[resource.Key]metav1.Object{}
	}
	for _, o := range objs {
		key := resource.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
		switch o := o.(type) {
		case *v1.Node:
			c.Nodes[o.Name] = o
		case *v1.Pod:
			c.Pods[key] = o
		case *v1.ConfigMap:
			key.Type = resource.TypeConfigMap
			c.Objects[key] = o
		case *v1.Secret:
			key.Type = resource.TypeSecret
			c.Objects[key] = o
		}
	}
}

// Remove removes a pod.
func (c *Caches) Remove(pod *v1.Pod) {
	delete(c.Pods, resource.Key{Namespace: pod.Namespace, Name: pod.Name})
}

// Node returns a Node, or nil.
func (c *Caches) Node(name string) *v1.Node { return c.Nodes[name] }

// AllNodes lists the Nodes.
func (c *Caches) AllNodes() (nodes []*v1.Node) {
	for _, n := range c.Nodes {
		nodes = append(nodes, n)
	}
	return nodes
}

// NodesAt returns the names of the Nodes whose kubelet API is reached at an address and port.
func (c *Caches) NodesAt(address string, port int32) (names []string) {
	for name, n := range c.Nodes {
		i := slices.IndexFunc(n.Status.Addresses, func(a v1.NodeAddress) bool { return a.Type == v1.NodeInternalIP })
		if i >= 0 && n.Status.Addresses[i].Address == address &&
			n.Status.DaemonEndpoints.KubeletEndpoint.Port == port {
			names = append(names, name)
		}
	}
	return names
}

// Pod returns a pod, or nil.
func (c *Caches) Pod(namespace, name string) *v1.Pod {
	return c.Pods[resource.Key{Namespace: namespace, Name: name}]
}

// PodsOf lists the pods of a node.
func (c *Caches) PodsOf(node string) (pods []*v1.Pod) {
	for _, pod := range c.Pods {
		if pod.Spec.NodeName == node {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Named returns the metadata of a ConfigMap or Secret, or nil.
func (c *Caches) Named(key resource.Key) *metav1.PartialObjectMetadata {
	o := c.Objects[key]
	if o == nil {
		return nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace:       o.GetNamespace(),
		Name:            o.GetName(),
		UID:             o.GetUID(),
		ResourceVersion: o.GetResourceVersion(),
	}}
}

// Names reports whether a pod on the node names a ConfigMap or Secret.
func (c *Caches) Names(node string, key resource.Key) bool {
	return slices.ContainsFunc(c.PodsOf(node), func(pod *v1.Pod) bool {
		return slices.Contains(podfacts.References(pod), key)
	})
}
