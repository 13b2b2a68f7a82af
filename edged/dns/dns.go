// Package dns makes the files by which a pod resolves names: the resolver settings that go to the
// runtime, the hostname, and /etc/hosts. The rules are those documented with "DNS for Services and
// Pods" and "Adding entries to Pod /etc/hosts with HostAliases".
package dns

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	maxHostname    = 63
	maxFQDN        = 64 // of the kernel's hostname field
)

// Config are the node's settings.
type Config struct {
	// ClusterDNS are the addresses of the cluster's DNS servers; none where there is no cluster.
	ClusterDNS []string
	// ClusterDomain is the suffix of the cluster's names ("cluster.local").
	ClusterDomain string
	// ResolvConf is the node's resolver file; "" is none.
	ResolvConf string
}

// Configurer answers for pods. It keeps no state.
type Configurer struct{ cfg Config }

// New makes a Configurer.
func New(cfg Config) *Configurer { return &Configurer{cfg} }

// PodDNS returns the resolver settings of a pod. warning, when not empty, is worth an event: the pod
// asked for the cluster's DNS and there is none.
func (c *Configurer) PodDNS(pod *v1.Pod) (config *runtimeapi.DNSConfig, warning string, err error) {
	switch policy := c.effectivePolicy(pod); policy {
	case v1.DNSNone:
		config = &runtimeapi.DNSConfig{}
	case v1.DNSClusterFirst:
		if len(c.cfg.ClusterDNS) > 0 {
			if config, err = c.clusterDNS(pod); err != nil {
				return nil, "", err
			}
			break
		}
		warning = fmt.Sprintf("pod %s/%s: the node has no clusterDNS configured and cannot create Pod using %q policy. Falling back to %q policy.",
			pod.Namespace, pod.Name, pod.Spec.DNSPolicy, v1.DNSDefault)
		fallthrough
	default:
		if config, err = c.host(); err != nil {
			return nil, "", err
		}
	}
	merge(config, pod.Spec.DNSConfig)
	limit(config)
	return config, warning, nil
}

// effectivePolicy settles what the policy of a pod comes to on its network.
func (c *Configurer) effectivePolicy(pod *v1.Pod) v1.DNSPolicy {
	switch p := pod.Spec.DNSPolicy; {
	case p == v1.DNSNone:
		return v1.DNSNone
	case p == v1.DNSClusterFirstWithHostNet, p == v1.DNSClusterFirst && !pod.Spec.HostNetwork:
		return v1.DNSClusterFirst
	}
	return v1.DNSDefault
}

func (c *Configurer) clusterDNS(pod *v1.Pod) (*runtimeapi.DNSConfig, error) {
	host, err := c.host()
	if err != nil {
		return nil, err
	}
	config := &runtimeapi.DNSConfig{Servers: slices.Clone(c.cfg.ClusterDNS), Options: []string{"ndots:5"}}
	if d := c.cfg.ClusterDomain; d != "" {
		config.Searches = []string{pod.Namespace + ".svc." + d, "svc." + d, d}
	}
	config.Searches = append(config.Searches, host.Searches...)
	return config, nil
}

// host reads the node's own settings.
func (c *Configurer) host() (*runtimeapi.DNSConfig, error) {
	if c.cfg.ResolvConf == "" {
		// Without servers of its own the pod would get those of the runtime's host.
		return &runtimeapi.DNSConfig{Servers: []string{}}, nil
	}
	data, err := os.ReadFile(c.cfg.ResolvConf)
	if errors.Is(err, os.ErrNotExist) {
		// A device without a network yet has none; its pods must run all the same.
		return &runtimeapi.DNSConfig{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("resolver settings of the node (resolvConf): %w", err)
	}
	return ParseResolvConf(data), nil
}

// ParseResolvConf reads resolv.conf(5): the last search or domain line counts; comments and lines that
// make no sense are passed over.
func ParseResolvConf(data []byte) *runtimeapi.DNSConfig {
	config := &runtimeapi.DNSConfig{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(fields[0], ";") {
			continue
		}
		switch fields[0] {
		case "nameserver":
			config.Servers = append(config.Servers, fields[1])
		case "search", "domain":
			config.Searches = nil
			for _, s := range fields[1:] {
				if s != "." {
					s = strings.TrimSuffix(s, ".")
				}
				config.Searches = append(config.Searches, s)
			}
		case "options":
			config.Options = fields[1:]
		}
	}
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
		name, _, _ := strings.Cut(o.Name, ":")
		config.Options = slices.DeleteFunc(config.Options, func(have string) bool {
			haveName, _, _ := strings.Cut(have, ":")
			return haveName == name
		})
		text := o.Name
		if o.Value != nil && *o.Value != "" {
			text += ":" + *o.Value
		}
		config.Options = append(config.Options, text)
	}
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

func limit(config *runtimeapi.DNSConfig) {
	config.Servers = config.Servers[:min(len(config.Servers), maxNameservers)]
	config.Searches = config.Searches[:min(len(config.Searches), maxSearches)]
	for len(strings.Join(config.Searches, " ")) > maxSearchChars {
		config.Searches = config.Searches[:len(config.Searches)-1]
	}
}

// Hostname returns the hostname of a pod and its domain ("" for none). With setHostnameAsFQDN the
// hostname is both in one.
func (c *Configurer) Hostname(pod *v1.Pod) (hostname, domain string, err error) {
	hostname = pod.Name
	if pod.Spec.Hostname != "" {
		if faults := validation.IsDNS1123Label(pod.Spec.Hostname); len(faults) > 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", pod.Spec.Hostname, strings.Join(faults, ";"))
		}
		hostname = pod.Spec.Hostname
	}
	if len(hostname) > maxHostname {
		hostname = strings.TrimRight(hostname[:maxHostname], "-.")
	}
	if s := pod.Spec.Subdomain; s != "" {
		if faults := validation.IsDNS1123Label(s); len(faults) > 0 {
			return "", "", fmt.Errorf("pod Subdomain %q is not a valid DNS label: %s", s, strings.Join(faults, ";"))
		}
		domain = s + "." + pod.Namespace + ".svc." + c.cfg.ClusterDomain
	}
	if asFQDN := pod.Spec.SetHostnameAsFQDN; asFQDN != nil && *asFQDN && domain != "" {
		full := hostname + "." + domain
		if len(full) > maxFQDN {
			return "", "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)", full, maxFQDN, len(full))
		}
		hostname = full
	}
	return hostname, domain, nil
}

// nodeHosts is the node's own file of names.
const nodeHosts = "/etc/hosts"

// EnsureHosts writes the pod's /etc/hosts into its folder, when it differs, and returns its path.
func (c *Configurer) EnsureHosts(podDir string, pod *v1.Pod, ips []string) (string, error) {
	hostname, domain, err := c.Hostname(pod)
	if err != nil {
		return "", err
	}
	var content []byte
	if pod.Spec.HostNetwork {
		node, err := os.ReadFile(nodeHosts)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("names of the node: %w", err)
		}
		content = append([]byte("# Kubernetes-managed hosts file (host network).\n"), node...)
	} else {
		content = podHosts(ips, hostname, domain)
	}
	content = append(content, aliases(pod.Spec.HostAliases)...)
	path := filepath.Join(podDir, "etc-hosts")
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, content) {
		return path, nil
	}
	// Containers have the file bound: it is written in place.
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return "", fmt.Errorf("hosts file of the pod: %w", err)
	}
	return path, os.Chmod(path, 0o644)
}

func podHosts(ips []string, hostname, domain string) []byte {
	var b bytes.Buffer
	b.WriteString("# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n")
	for _, ip := range ips {
		if domain != "" {
			fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, strings.TrimSuffix(hostname, "."+domain), domain, strings.TrimSuffix(hostname, "."+domain))
		} else {
			fmt.Fprintf(&b, "%s\t%s\n", ip, hostname)
		}
	}
	return b.Bytes()
}

func aliases(list []v1.HostAlias) []byte {
	if len(list) == 0 {
		return nil
	}
	var b bytes.Buffer
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range list {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.Bytes()
}
