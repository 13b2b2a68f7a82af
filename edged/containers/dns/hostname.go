package dns

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	maxHostname = 63 // of a DNS label
	maxFQDN     = 64 // of the kernel's hostname field
)

// Hostname returns the hostname of a pod and its domain ("" for none). With setHostnameAsFQDN the
// hostname is both in one. A pod on the host network has the node's hostname, which is "" here.
func (c *Configurer) Hostname(pod *v1.Pod) (hostname, domain string, err error) {
	if pod.Spec.HostNetwork {
		return "", "", nil
	}
	if hostname, domain, err = c.names(pod); err != nil {
		return "", "", err
	}
	if asFQDN := pod.Spec.SetHostnameAsFQDN; asFQDN != nil && *asFQDN && domain != "" {
		hostname += "." + domain
		if len(hostname) > maxFQDN {
			return "", "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too "+
				"long (%d characters is the max, %d characters requested)",
				hostname, maxFQDN, len(hostname))
		}
	}
	return hostname, domain, nil
}

// names returns a pod's name in DNS, and the domain in which it lies.
func (c *Configurer) names(pod *v1.Pod) (hostname, domain string, err error) {
	if override := pod.Spec.HostnameOverride; override != nil && *override != "" {
		if faults := validation.IsDNS1123Subdomain(*override); len(faults) > 0 {
			return "", "", fmt.Errorf("pod HostnameOverride %q is not a valid DNS subdomain: %s", *override,
				strings.Join(faults, ";"))
		}
		hostname, err = truncateHostname(pod, *override)
		return hostname, "", err
	}
	hostname = pod.Name
	if h := pod.Spec.Hostname; h != "" {
		if faults := validation.IsDNS1123Label(h); len(faults) > 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", h, strings.Join(faults, ";"))
		}
		hostname = h
	}
	if hostname, err = truncateHostname(pod, hostname); err != nil {
		return "", "", err
	}
	if s := pod.Spec.Subdomain; s != "" {
		if faults := validation.IsDNS1123Label(s); len(faults) > 0 {
			return "", "", fmt.Errorf("pod Subdomain %q is not a valid DNS label: %s", s, strings.Join(faults, ";"))
		}
		domain = strings.TrimSuffix(s+"."+pod.Namespace+".svc."+c.cfg.ClusterDomain, ".")
	}
	return hostname, domain, nil
}

// truncateHostname shortens a hostname to what the kernel takes.
func truncateHostname(pod *v1.Pod, hostname string) (string, error) {
	if len(hostname) <= maxHostname {
		return hostname, nil
	}
	if hostname = strings.TrimRight(hostname[:maxHostname], "-."); hostname == "" {
		return "", fmt.Errorf("hostname of pod %q: its first %d characters have no valid one", pod.Name, maxHostname)
	}
	return hostname, nil
}
