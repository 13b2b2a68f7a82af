package desired

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/lookups"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/podfacts"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// serviceLinks knows which services are in the environment of containers.
type serviceLinks struct {
	caches   *caches.Caches
	sessions *sessions.Sessions
	lookups  *lookups.Lookups
	podLists *podLists
	encoded  encodings
	hub      Hub // set by Start
}

// serviceFor returns a service in the form that the hub sends, or nil if the node is not to have it.
func (l *serviceLinks) serviceFor(node string, key resource.Key) (*cloudhub.Object, error) {
	if !l.sessions.Capable(node) {
		return nil, nil
	}
	none, _, err := l.podLists.unneeded(node, key, func() bool { return serves(key, l.caches.PodsOf(node)) },
		func(m missingPod) bool { return isAPIService(key) || m.links && m.key.Namespace == key.Namespace })
	if none || err != nil {
		return nil, err
	}
	s := l.caches.Service(key.Namespace, key.Name)
	if s == nil || caches.LacksPorts(s) {
		s, err = lookups.Confirmed(l.lookups, key, l.lookups.Own.CoreV1().Services(key.Namespace).Get)
	}
	if s == nil || err != nil || !caches.HasAddress(s) {
		return nil, err
	}
	return l.encoded.get(key, caches.ForNodes(s))
}

// serves reports whether containers of any of the pods have a service in their environment: services of the pod's
// namespace unless the pod opted out, and the API server's own in all pods.
func serves(key resource.Key, pods []*v1.Pod) bool {
	if isAPIService(key) {
		return len(pods) > 0
	}
	for _, pod := range pods {
		if pod.Namespace == key.Namespace && podfacts.LinksServices(pod) {
			return true
		}
	}
	return false
}

// isAPIService reports whether a service is the API server's.
func isAPIService(key resource.Key) bool {
	return key.Namespace == metav1.NamespaceDefault && key.Name == "kubernetes"
}

// servicesFor lists the services in the environment of the pods' containers.
func (l *serviceLinks) servicesFor(pods []*v1.Pod) []*v1.Service {
	var out []*v1.Service
	seen := map[string]bool{}
	for _, pod := range pods {
		if seen[pod.Namespace] || !podfacts.LinksServices(pod) {
			continue
		}
		seen[pod.Namespace] = true
		out = append(out, l.caches.ServicesIn(pod.Namespace)...)
	}
	if len(pods) > 0 && !seen[metav1.NamespaceDefault] {
		if s := l.caches.Service(metav1.NamespaceDefault, "kubernetes"); s != nil && caches.HasAddress(s) {
			out = append(out, s)
		}
	}
	return out
}

// servicesChanged marks the services that come or go with a pod.
func (l *serviceLinks) servicesChanged(pod *v1.Pod) {
	if l.sessions.Capable(pod.Spec.NodeName) {
		for _, s := range l.servicesFor([]*v1.Pod{pod}) {
			l.hub.Changed(pod.Spec.NodeName, caches.ServiceKey(s))
		}
	}
}

// serviceEvent marks a service on the nodes whose pods have it.
func (l *serviceLinks) serviceEvent(old, now *v1.Service) {
	if old != nil && now != nil && caches.SameService(old, now) {
		return
	}
	key := caches.ServiceKey(cmp.Or(old, now))
	if isAPIService(key) { // pods of all namespaces have it
		for _, node := range l.sessions.CapableNodes() {
			if serves(key, l.caches.PodsOf(node)) {
				l.hub.Changed(node, key)
			}
		}
		return
	}
	for _, node := range l.caches.NodesServed(key.Namespace) {
		if l.sessions.Capable(node) {
			l.hub.Changed(node, key)
		}
	}
}
