// Package dns makes what a pod needs to resolve names: the resolver settings for the runtime, the hostname, and
// /etc/hosts. The rules are those documented with "DNS for Services and Pods" and "Adding entries to Pod /etc/hosts
// with HostAliases".
//
// It keeps no state: the node's files are read each time, so that a sandbox made after they changed has
// what they say now.
package dns

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits of the resolver, as documented.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
	maxSearch      = validation.DNS1123SubdomainMaxLength
)

// Config are the node's settings.
type Config struct {
	// ClusterDNS are the addresses of the cluster's DNS servers; none where there is no cluster.
	ClusterDNS []string
	// ClusterDomain is the suffix of the cluster's names ("cluster.local").
	ClusterDomain string
	// ResolvConf is the node's resolver file; "" is none: pods then have no server but themselves.
	ResolvConf string
	// Resolved is the file with the servers that systemd-resolved asks itself; "" is none. It is used where ResolvConf
	// has no server but that of systemd-resolved on the node's loopback.
	Resolved string
	// Standalone: the device belongs to no cluster, so no cluster DNS is expected.
	Standalone bool
	// HostsFile is the node's own file of names; "" is /etc/hosts.
	HostsFile string
}

// Configurer answers for pods.
type Configurer struct{ cfg Config }

// New makes a Configurer.
func New(cfg Config) *Configurer { return &Configurer{cfg} }

// Warning is worth an event on the pod, in the kubelet's words.
type Warning struct {
	Reason  string
	Message string
}

// The reasons of warnings.
const (
	// ReasonMissing says that a pod asked for the cluster's DNS and gets the node's.
	ReasonMissing = "MissingClusterDNS"
	// ReasonForming says that some settings are left out.
	ReasonForming = "DNSConfigForming"
)

// Resolve returns the resolver settings of a pod on a node with these addresses. It fails where settings that the pod
// needs cannot be read, or are none; it is to be tried again then.
func (c *Configurer) Resolve(pod *v1.Pod, nodeIPs []string) (*runtimeapi.DNSConfig, []Warning, error) {
	var config *runtimeapi.DNSConfig
	var warnings []Warning
	policy := effectivePolicy(pod)
	if policy == v1.DNSClusterFirst && len(c.cfg.ClusterDNS) == 0 {
		policy = v1.DNSDefault
		if !c.cfg.Standalone {
			warnings = append(warnings, Warning{
				ReasonMissing,
				fmt.Sprintf("pod: %q. kubelet does not have ClusterDNS IP configured and cannot create Pod using %q "+
					"policy. "+
					"Falling back to %q policy.", fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID),
					v1.DNSClusterFirst, v1.DNSDefault),
			})
		}
	}
	switch policy {
	case v1.DNSNone:
		if pod.Spec.DNSConfig == nil || len(pod.Spec.DNSConfig.Nameservers) == 0 {
			return nil, nil, errors.New("dnsPolicy None needs at least one name server in dnsConfig.nameservers")
		}
		config = &runtimeapi.DNSConfig{}
	case v1.DNSClusterFirst:
		host, _, err := c.host()
		if err != nil {
			return nil, nil, err
		}
		config = c.cluster(pod, host)
	default:
		host, absent, err := c.host()
		if err != nil {
			return nil, nil, err
		}
		config = host
		if !pod.Spec.HostNetwork {
			warnings = append(warnings, c.forOwnNetwork(config)...)
		}
		switch {
		case c.cfg.ResolvConf == "":
			config.Servers, config.Searches = local(nodeIPs), []string{"."}
		case absent != "":
			// Without a line of its own the runtime would look for that very file.
			config.Searches = []string{"."}
			warnings = append(warnings, Warning{ReasonForming, absent})
		}
	}
	merge(config, pod.Spec.DNSConfig)
	return config, append(warnings, limit(config)...), nil
}

// resolvedStub is where systemd-resolved answers on the node.
const resolvedStub = "127.0.0.53"

// forOwnNetwork leaves out the node's servers that a pod with its own network cannot reach, before servers are counted,
// and says so. Where no other is left, they stay.
func (c *Configurer) forOwnNetwork(config *runtimeapi.DNSConfig) []Warning {
	kept, omitted := reachable(config.Servers)
	if len(omitted) == 0 {
		return nil
	}
	if len(kept) == 0 && slices.Contains(omitted, resolvedStub) {
		kept = c.behindResolved()
		omitted = slices.DeleteFunc(omitted, func(s string) bool { return s == resolvedStub })
	}
	if len(kept) == 0 {
		return nil
	}
	config.Servers = kept
	if len(omitted) == 0 {
		return nil
	}
	return []Warning{{
		ReasonForming, "Nameservers " + strings.Join(omitted, " ") + " have been omitted: a link-local or loopback " +
			"address of the node leads nowhere in a pod with its own network. The applied nameserver line is: " +
			strings.Join(kept[:min(len(kept), maxNameservers)], " "),
	}}
}

// behindResolved returns the servers that systemd-resolved asks, as far as a pod can reach them.
func (c *Configurer) behindResolved() []string {
	if c.cfg.Resolved == "" {
		return nil
	}
	data, err := readLimited(c.cfg.Resolved)
	if err != nil {
		return nil
	}
	config, err := ParseResolvConf(data)
	if err != nil {
		return nil
	}
	kept, _ := reachable(config.Servers)
	return kept
}

// reachable tells the servers that a pod with its own network may reach from those that it cannot: a link-local address
// of IPv6 is of a link of the node, which its zone names, and a loopback address is the pod itself. Link-local
// addresses of IPv4 are routed by the node; caches for DNS on a node use them.
func reachable(servers []string) (kept, omitted []string) {
	for _, s := range servers {
		ip, err := netip.ParseAddr(s)
		if err == nil && (ip.IsLoopback() || ip.Unmap().Is6() && ip.IsLinkLocalUnicast()) {
			omitted = append(omitted, s)
		} else {
			kept = append(kept, s)
		}
	}
	return kept, omitted
}

// local are the servers of a pod whose node has no resolver file: the pod itself, at one address for each of the
// node's.
func local(nodeIPs []string) []string {
	var servers []string
	for _, ip := range nodeIPs {
		if strings.Contains(ip, ":") {
			servers = append(servers, "::1")
		} else {
			servers = append(servers, "127.0.0.1")
		}
	}
	if len(servers) == 0 {
		return []string{"127.0.0.1"}
	}
	return servers
}

// effectivePolicy settles what the policy of a pod comes to on its network.
func effectivePolicy(pod *v1.Pod) v1.DNSPolicy {
	switch pod.Spec.DNSPolicy {
	case v1.DNSNone, v1.DNSDefault:
		return pod.Spec.DNSPolicy
	case v1.DNSClusterFirstWithHostNet:
		return v1.DNSClusterFirst
	}
	if pod.Spec.HostNetwork {
		return v1.DNSDefault
	}
	return v1.DNSClusterFirst
}

// cluster returns the settings of a pod that uses the cluster's servers: its own domains first, then
// those of the node.
func (c *Configurer) cluster(pod *v1.Pod, host *runtimeapi.DNSConfig) *runtimeapi.DNSConfig {
	config := &runtimeapi.DNSConfig{Servers: slices.Clone(c.cfg.ClusterDNS), Options: []string{"ndots:5"}}
	if d := c.cfg.ClusterDomain; d != "" {
		config.Searches = []string{pod.Namespace + ".svc." + d, "svc." + d, d}
	}
	config.Searches = unique(append(config.Searches, host.Searches...))
	return config
}

// merge adds the pod's own settings; an option of the pod takes the place of one of the same name.
func merge(config *runtimeapi.DNSConfig, own *v1.PodDNSConfig) {
	if own == nil {
		return
	}
	config.Servers = unique(append(config.Servers, own.Nameservers...))
	config.Searches = unique(append(config.Searches, own.Searches...))
	for _, o := range own.Options {
		text := o.Name
		if o.Value != nil && *o.Value != "" {
			text += ":" + *o.Value
		}
		config.Options = setOption(config.Options, text)
	}
}

// setOption adds an option, in the place of one of the same name.
func setOption(options []string, option string) []string {
	name, _, _ := strings.Cut(option, ":")
	for i, have := range options {
		if haveName, _, _ := strings.Cut(have, ":"); haveName == name {
			options[i] = option
			return options
		}
	}
	return append(options, option)
}

func unique(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// limit leaves out what resolvers would not look at, and says so.
func limit(config *runtimeapi.DNSConfig) (warnings []Warning) {
	if len(config.Servers) > maxNameservers {
		config.Servers = config.Servers[:maxNameservers]
		warnings = append(warnings, Warning{
			ReasonForming, "Nameserver limits were exceeded, some nameservers have been omitted, the applied " +
				"nameserver line is: " +
				strings.Join(config.Servers, " "),
		})
	}
	// Some versions of glibc abort a program when they meet a longer search path.
	kept := slices.DeleteFunc(slices.Clone(config.Searches[:min(len(config.Searches), maxSearches)]),
		func(s string) bool {
			return len(s) > maxSearch
		})
	for len(strings.Join(kept, " ")) > maxSearchChars {
		kept = kept[:len(kept)-1]
	}
	if len(kept) < len(config.Searches) {
		config.Searches = kept
		warnings = append(warnings, Warning{
			ReasonForming,
			"Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " +
				strings.Join(kept, " "),
		})
	}
	return warnings
}
