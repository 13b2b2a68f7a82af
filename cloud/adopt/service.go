package adopt

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// unserved is the target of node ports that are kept for KubeEdge's Service. No container has a port of this name, so
// they lead nowhere.
const unserved = "unserved"

// customizeService gives the Service the type, addresses and ports of KubeEdge's, so that what led to that one leads to
// this one.
func (p *Plan) customizeService(s *v1.Service) {
	theirs := p.Found.Service
	if theirs == nil {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = v1.ServiceTypeClusterIP, ""
		return
	}
	from, to := &theirs.Spec, &s.Spec
	to.Type, to.ExternalTrafficPolicy = from.Type, from.ExternalTrafficPolicy
	to.InternalTrafficPolicy, to.TrafficDistribution = from.InternalTrafficPolicy, from.TrafficDistribution
	to.PublishNotReadyAddresses = from.PublishNotReadyAddresses
	to.ExternalIPs, to.LoadBalancerIP = from.ExternalIPs, from.LoadBalancerIP
	to.LoadBalancerClass = from.LoadBalancerClass
	to.LoadBalancerSourceRanges, to.AllocateLoadBalancerNodePorts = from.LoadBalancerSourceRanges,
		from.AllocateLoadBalancerNodePorts
	to.SessionAffinity, to.SessionAffinityConfig = from.SessionAffinity, from.SessionAffinityConfig
	to.IPFamilies, to.IPFamilyPolicy = from.IPFamilies, from.IPFamilyPolicy
	s.Annotations = copyUserMetadata(s.Annotations, theirs.Annotations)
	s.Labels = copyUserMetadata(s.Labels, theirs.Labels)
	to.Ports = p.servicePorts(to.Ports)
}

// copyUserMetadata adds labels or annotations, but for those in which Helm, Argo CD and kubectl keep what they have
// applied.
func copyUserMetadata(to, from map[string]string) map[string]string {
	for key, value := range from {
		switch _, ok := to[key]; {
		case ok, strings.HasPrefix(key, "meta.helm.sh/"), key == v1.LastAppliedConfigAnnotation, key == "helm.sh/chart",
			key == "app.kubernetes.io/managed-by", key == instanceLabel:
			continue
		}
		if to == nil {
			to = map[string]string{}
		}
		to[key] = value
	}
	return to
}

// instanceLabel names the release or application that an object belongs to.
const instanceLabel = "app.kubernetes.io/instance"

// servicePorts returns the ports of KubeEdge's Service, with their names. One that leads to none of the ports of
// edgecore's manifests stays only for its node port. If no port leads there, those of the manifests are added.
func (p *Plan) servicePorts(ours []v1.ServicePort) []v1.ServicePort {
	var ports []v1.ServicePort
	served := false
	for _, at := range p.Found.Service.Spec.Ports {
		target := p.servedAs(&at)
		switch {
		case target != "":
			served = true
		case at.NodePort != 0:
			target = unserved
		default:
			continue
		}
		at.TargetPort = intstr.FromString(target)
		ports = append(ports, at)
	}
	if served {
		return ports
	}
	for i := range ports {
		if ports[i].Name == "" {
			ports[i].Name = unserved
		}
	}
	for _, at := range ours {
		if !slices.ContainsFunc(ports, func(x v1.ServicePort) bool {
			return x.Name == at.Name || x.NodePort == at.NodePort && at.NodePort != 0 ||
				x.Port == at.Port && protocolOf(&x) == protocolOf(&at)
		}) {
			ports = append(ports, at)
		}
	}
	return ports
}

// decideService names the ports of KubeEdge's Service that lead nowhere with edgecore.
func (p *Plan) decideService() {
	if p.Found.Service == nil || p.Config == nil {
		return
	}
	for _, theirs := range p.Found.Service.Spec.Ports {
		if p.servedAs(&theirs) != "" {
			continue
		}
		target := theirs.TargetPort.String()
		if theirs.NodePort != 0 {
			p.addNote("port %d of the Service (%s, node port %d) leads nowhere: edgecore's pods do not serve %s. The "+
				"node port stays reserved for going back", theirs.Port, theirs.Name, theirs.NodePort, target)
			continue
		}
		p.addNote("port %d of the Service (%s) is left out: edgecore's pods do not serve %s", theirs.Port, theirs.Name,
			target)
	}
}

// servedAs returns the name of the port of edgecore's manifests to which a port of KubeEdge's Service leads, or "".
func (p *Plan) servedAs(s *v1.ServicePort) string {
	for _, at := range p.Config.ports() {
		if protocolOf(s) == at.protocol && p.target(s) == at.number {
			return at.name
		}
	}
	return ""
}

func protocolOf(s *v1.ServicePort) string {
	if s.Protocol == "" {
		return string(v1.ProtocolTCP)
	}
	return string(s.Protocol)
}

// target is the port of KubeEdge's pod to which a port of its Service leads.
func (p *Plan) target(s *v1.ServicePort) int32 {
	switch {
	case s.TargetPort.Type == intstr.String:
		for _, c := range p.Found.Deployment.Spec.Template.Spec.Containers {
			for _, at := range c.Ports {
				if at.Name == s.TargetPort.StrVal {
					return at.ContainerPort
				}
			}
		}
		return 0
	case s.TargetPort.IntVal != 0:
		return s.TargetPort.IntVal
	}
	return s.Port
}
