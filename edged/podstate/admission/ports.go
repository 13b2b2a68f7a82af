package admission

import v1 "k8s.io/api/core/v1"

// portTaken reports whether another pod has a host port of pod.
func portTaken(pod *v1.Pod, others []*v1.Pod) bool {
	for _, want := range hostPorts(pod) {
		for _, other := range others {
			for _, have := range hostPorts(other) {
				if clash(want, have) {
					return true
				}
			}
		}
	}
	return false
}

// hostPorts are those of the containers that run as long as the pod.
func hostPorts(pod *v1.Pod) []v1.ContainerPort {
	var ports []v1.ContainerPort
	take := func(c *v1.Container) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				ports = append(ports, p)
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil &&
			*c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			take(c)
		}
	}
	for i := range pod.Spec.Containers {
		take(&pod.Spec.Containers[i])
	}
	return ports
}

// clash reports whether two ports cannot both be bound: no address means every address.
func clash(a, b v1.ContainerPort) bool {
	every := func(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }
	return a.HostPort == b.HostPort && protocol(a) == protocol(b) &&
		(a.HostIP == b.HostIP || every(a.HostIP) || every(b.HostIP))
}

func protocol(p v1.ContainerPort) v1.Protocol {
	if p.Protocol == "" {
		return v1.ProtocolTCP
	}
	return p.Protocol
}
