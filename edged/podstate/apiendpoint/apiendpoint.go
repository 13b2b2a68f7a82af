// Package apiendpoint decides which pods use the Kubernetes API that the agent serves on the device, and what these
// pods are told of it. A container keeps what it was started with.
package apiendpoint

import (
	"bytes"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Annotation of a pod decides whether it uses the endpoint, whatever Access says: "true" or "false".
const Annotation = "edgecore.io/api-endpoint"

// Which pods use the endpoint: values of Access.
const (
	// All are all pods with a token for the API.
	All = "All"
	// Annotated are those with the annotation alone.
	Annotated = "Annotated"
	// None is no pod without the annotation.
	None = "None"
)

// RootCA is the ConfigMap with the CA of the cluster's API server, and CAKey the key that has it. Each namespace has
// one.
const (
	RootCA = "kube-root-ca.crt"
	CAKey  = "ca.crt"
)

// The Service of the API server.
const (
	service = "kubernetes"
	port    = "https"
)

// Endpoint is the API on the device. A nil Endpoint is a device without one.
type Endpoint struct {
	// Addresses are where pods find it, at most one for each family; at least one.
	Addresses []netip.AddrPort
	// Access is All, Annotated or None.
	Access string
	// CA returns the CA of its certificate, as PEM.
	CA func() []byte
}

// UsedBy reports whether a pod uses the endpoint. Only pods with a token for the API do, and without the annotation
// only those that have the cluster's CA beside it, to which the device's is added: others would not trust the endpoint.
func (e *Endpoint) UsedBy(pod *v1.Pod) bool {
	if e == nil || !hasVolume(pod, hasToken) {
		return false
	}
	switch pod.Annotations[Annotation] {
	case "true":
		return true
	case "false":
		return false
	}
	return e.Access == All && hasVolume(pod, func(p *v1.ProjectedVolumeSource) bool { return hasToken(p) && hasCA(p) })
}

func hasVolume(pod *v1.Pod, is func(*v1.ProjectedVolumeSource) bool) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return is(v.Projected) })
}

// hasCA reports whether a volume has the CA of the cluster's API server.
func hasCA(volume *v1.ProjectedVolumeSource) bool {
	return slices.ContainsFunc(volume.Sources, func(s v1.VolumeProjection) bool {
		return s.ConfigMap != nil && s.ConfigMap.Name == RootCA
	})
}

// hasToken reports whether a volume has a token for the API.
func hasToken(volume *v1.ProjectedVolumeSource) bool {
	return volume != nil && slices.ContainsFunc(volume.Sources, func(s v1.VolumeProjection) bool {
		return s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == ""
	})
}

// Services returns the services of which a pod gets variables: those given, where that of the API server has the
// address of the endpoint if the pod uses it. It does so also on a device that has not seen that Service.
func (e *Endpoint) Services(pod *v1.Pod, services []v1.Service) []v1.Service {
	if !e.UsedBy(pod) {
		return services
	}
	api := v1.Service{}
	at := slices.IndexFunc(services, func(s v1.Service) bool {
		return s.Namespace == v1.NamespaceDefault && s.Name == service
	})
	changed := slices.Clone(services)
	if at < 0 {
		at, changed = len(changed), append(changed, api)
	} else {
		api = changed[at]
	}
	address := e.address(api.Spec.ClusterIP)
	api.Name, api.Namespace = service, v1.NamespaceDefault
	api.Spec.ClusterIP, api.Spec.ClusterIPs = address.Addr().String(), nil
	api.Spec.Ports = []v1.ServicePort{{Name: port, Protocol: v1.ProtocolTCP, Port: int32(address.Port())}}
	changed[at] = api
	return changed
}

// address returns the endpoint's address of the family that the Service of the API server has; the first one if it has
// none of that family.
func (e *Endpoint) address(clusterIP string) netip.AddrPort {
	if ip, err := netip.ParseAddr(clusterIP); err == nil {
		for _, a := range e.Addresses {
			if a.Addr().Is4() == ip.Is4() {
				return a
			}
		}
	}
	return e.Addresses[0]
}

// Trusts reports whether a volume of a pod shows the device's CA beside the cluster's: one with a token for the API, of
// a pod that uses the endpoint.
func (e *Endpoint) Trusts(pod *v1.Pod, volume *v1.ProjectedVolumeSource) bool {
	return hasToken(volume) && e.UsedBy(pod)
}

// WithCA returns a ca.crt that has the device's CA beside the cluster's.
func (e *Endpoint) WithCA(cluster []byte) []byte {
	joined := bytes.Clone(cluster)
	if len(joined) > 0 && joined[len(joined)-1] != '\n' {
		joined = append(joined, '\n')
	}
	return append(joined, e.CA()...)
}
