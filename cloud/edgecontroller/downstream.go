package edgecontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// confirmTimeout is the timeout for asking the API server whether an object is really gone.
const confirmTimeout = 5 * time.Second

// errNotFilled is returned by Object before the caches have synced. Until then nothing may be decided, least of all
// that an object is gone.
var errNotFilled = errors.New("the caches of the API server's objects are not filled yet")

// Desired implements cloudhub.Downstream.
func (c *Controller) Desired(node string) []cloudhub.Ref {
	if !c.filled.Load() {
		return nil
	}
	var out []cloudhub.Ref
	// Our edgecore creates its Node itself, and queries it when needed. KubeEdge's waits for it.
	if n := c.caches.node(node); n != nil && !c.sessions.capable(node) {
		out = append(out, refTo(nodeObjectKey(node), "Node", n))
	}
	pods := c.caches.podsOf(node)
	seen := map[resource.Key]bool{}
	for _, pod := range pods {
		out = append(out, refTo(podKey(pod), "Pod", pod))
		for _, key := range references(pod) {
			if seen[key] {
				continue
			}
			seen[key] = true
			if o := c.caches.named(key); o != nil {
				out = append(out, refTo(key, kindOfNamed(key), o))
			}
		}
	}
	if c.sessions.capable(node) {
		for _, s := range c.servicesFor(pods) {
			out = append(out, refTo(serviceKey(s), "Service", s))
		}
	}
	return out
}

// kindOfNamed returns the kind of a ConfigMap or Secret.
func kindOfNamed(key resource.Key) string {
	if key.Type == resource.TypeConfigMap {
		return "ConfigMap"
	}
	return "Secret"
}

// Object implements cloudhub.Downstream.
func (c *Controller) Object(node string, key resource.Key) (*cloudhub.Object, error) {
	if !c.filled.Load() {
		return nil, fmt.Errorf("%s for node %s: %w", key, node, errNotFilled)
	}
	switch key.Type {
	case resource.TypePod:
		return c.podFor(node, key)
	case resource.TypeConfigMap, resource.TypeSecret:
		return c.namedFor(node, key)
	case resource.TypeNode:
		return c.nodeFor(node, key)
	case resource.TypeService:
		return c.serviceFor(node, key)
	}
	return nil, nil
}

func (c *Controller) podFor(node string, key resource.Key) (*cloudhub.Object, error) {
	pod, err := c.podOnNode(node, key)
	if err == nil && pod != nil {
		err = c.countPod(node, pod)
	}
	if pod == nil || err != nil {
		return nil, err
	}
	var object *cloudhub.Object
	why := c.room.of(node, pod.UID)
	switch {
	case why != withheldNot && pod.DeletionTimestamp != nil:
		return c.sendEnding(node, key, pod)
	case why == withheldNot && isTrimmed(pod):
		object, err = c.sendLarge(node, key, pod)
	case why == withheldNot:
		object, err = toSend(key, pod)
	}
	if err != nil {
		return nil, err
	}
	if why == withheldNot { // another pod may have taken the room meanwhile
		var change roomChange
		why, change = c.room.send(node, pod.UID, sizeOf(pod))
		c.roomChanged(change)
	}
	if why != withheldNot {
		if object != nil && object.Done != nil {
			object.Done()
		}
		return nil, fmt.Errorf("%s for node %s: %w", key, node,
			&cloudhub.WithheldError{UID: pod.UID, Why: why.String()})
	}
	return object, nil
}

// countPod makes sure that a pod counts before it is sent: its event may still be on its way.
func (c *Controller) countPod(node string, pod *v1.Pod) error {
	cached := func() bool {
		now := c.caches.pod(pod.Namespace, pod.Name)
		return now != nil && now.UID == pod.UID
	}
	early := !cached() // podOnNode has just got it from the API server, or it has just been deleted
	c.roomChanged(c.room.count(node, pod, early))
	if !early && !cached() { // its last event may have come before it was counted
		c.roomChanged(c.room.drop(node, pod.UID))
		return fmt.Errorf("%s for node %s: %w", podKey(pod), node, errPodsMissing)
	}
	return nil
}

func (c *Controller) namedFor(node string, key resource.Key) (*cloudhub.Object, error) {
	named, withheld := c.namedOn(node, key)
	if !named && withheld {
		return nil, fmt.Errorf("%s for node %s, as the pod that names it: %w", key, node, cloudhub.ErrWithheld)
	}
	needed := func() bool { return c.caches.names(node, key) }
	none, claims, err := c.unneeded(node, key, needed, func(m missingPod) bool {
		return slices.Contains(m.references, key) || m.unknown && m.key.Namespace == key.Namespace
	})
	switch {
	case err != nil:
		return nil, err
	case none && key.Type == resource.TypeSecret && (claims || hasClaims(c.caches.podsOf(node))):
		return c.volumeSecret(node, key)
	case none:
		return nil, nil
	}
	return c.content(key)
}

// namedOn reports whether a pod on a node names a ConfigMap or Secret, and whether one does, or may, that is withheld.
func (c *Controller) namedOn(node string, key resource.Key) (named, withheld bool) {
	for _, pod := range c.caches.podsOf(node) {
		switch {
		case pod.Namespace != key.Namespace:
		case lacksReferences(pod):
			withheld = true
		case !slices.Contains(references(pod), key):
		case c.room.of(node, pod.UID) == withheldWaiting:
			withheld = true
		default:
			return true, withheld
		}
	}
	return false, withheld
}

// volumeSecret returns a Secret that no pod names, but perhaps a persistent volume of a pod. The node may have asked
// for it, and keeps it as long as the API server would still give it.
func (c *Controller) volumeSecret(node string, key resource.Key) (*cloudhub.Object, error) {
	ctx, cancel := context.WithTimeout(withNode(c.ctx, node), confirmTimeout)
	defer cancel()
	secret, err := c.clients.AsNode.CoreV1().Secrets(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("ask the API server whether node %s may have %s: %w", node, key, err)
	}
	return toSend(key, secret)
}

// hasClaims reports whether any of the pods uses a persistent volume claim.
func hasClaims(pods []*v1.Pod) bool {
	for _, pod := range pods {
		for i := range pod.Spec.Volumes {
			if v := &pod.Spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
				return true
			}
		}
	}
	return false
}

func (c *Controller) nodeFor(node string, key resource.Key) (*cloudhub.Object, error) {
	if key.Name != node || key.Namespace != resource.NullNamespace {
		return nil, nil
	}
	n := c.caches.node(node)
	if n == nil {
		var err error
		if n, err = confirmed(c, key, c.clients.Own.CoreV1().Nodes().Get); n == nil || err != nil {
			return nil, err
		}
	}
	return toSend(key, n)
}

func (c *Controller) serviceFor(node string, key resource.Key) (*cloudhub.Object, error) {
	if !c.sessions.capable(node) {
		return nil, nil
	}
	none, _, err := c.unneeded(node, key, func() bool { return serves(key, c.caches.podsOf(node)) },
		func(m missingPod) bool { return isAPIService(key) || m.links && m.key.Namespace == key.Namespace })
	if none || err != nil {
		return nil, err
	}
	s := c.caches.service(key.Namespace, key.Name)
	if s == nil || lacksPorts(s) {
		s, err = confirmed(c, key, c.clients.Own.CoreV1().Services(key.Namespace).Get)
	}
	if s == nil || err != nil || !hasAddress(s) {
		return nil, err
	}
	return c.encoded.get(key, forNodes(s))
}

// confirmed asks the API server for an object that the caches lack, or have only a part of; nil if it does not exist.
func confirmed[T any](
	c *Controller, key resource.Key, get func(context.Context, string, metav1.GetOptions) (*T, error),
) (*T, error) {
	ctx, cancel := context.WithTimeout(c.ctx, confirmTimeout)
	defer cancel()
	leave, err := c.confirms.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the API server whether %s is gone: %w", key, err)
	}
	defer leave()
	obj, err := get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("ask the API server whether %s is gone: %w", key, err)
	}
	return obj, nil
}

// serves reports whether containers of any of the pods have a service in their environment: services of the pod's
// namespace unless the pod opted out, and the API server's own in all pods.
func serves(key resource.Key, pods []*v1.Pod) bool {
	if isAPIService(key) {
		return len(pods) > 0
	}
	for _, pod := range pods {
		if pod.Namespace == key.Namespace && linksServices(pod) {
			return true
		}
	}
	return false
}

// isAPIService reports whether a service is the API server's.
func isAPIService(key resource.Key) bool {
	return key.Namespace == metav1.NamespaceDefault && key.Name == "kubernetes"
}

func linksServices(pod *v1.Pod) bool {
	return pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
}

// servicesFor lists the services in the environment of the pods' containers.
func (c *Controller) servicesFor(pods []*v1.Pod) []*v1.Service {
	var out []*v1.Service
	seen := map[string]bool{}
	for _, pod := range pods {
		if seen[pod.Namespace] || !linksServices(pod) {
			continue
		}
		seen[pod.Namespace] = true
		out = append(out, c.caches.servicesIn(pod.Namespace)...)
	}
	if len(pods) > 0 && !seen[metav1.NamespaceDefault] {
		if s := c.caches.service(metav1.NamespaceDefault, "kubernetes"); s != nil && hasAddress(s) {
			out = append(out, s)
		}
	}
	return out
}
