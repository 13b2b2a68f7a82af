package dns

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// EnsureHosts writes the pod's /etc/hosts into its folder, when it differs, and returns its path.
func (c *Configurer) EnsureHosts(podDir string, pod *v1.Pod, ips []string) (string, error) {
	content, err := c.hosts(pod, ips)
	if err != nil {
		return "", err
	}
	path := filepath.Join(podDir, "etc-hosts")
	same, err := holds(path, content)
	if err != nil || same {
		return path, err
	}
	if err := os.MkdirAll(podDir, 0o750); err != nil {
		return "", fmt.Errorf("hosts file of the pod: %w", err)
	}
	// Containers have the file bound: it is written in place.
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return "", fmt.Errorf("hosts file of the pod: %w", err)
	}
	if err := os.Chmod(path, 0o644); err != nil { // whatever the umask says
		return "", fmt.Errorf("hosts file of the pod: %w", err)
	}
	return path, nil
}

// holds reports whether a file has a content, and may be read by all. Containers can write to it: one of
// another size is not read.
func holds(path string, content []byte) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("hosts file of the pod: %w", err)
	}
	if !info.Mode().IsRegular() {
		return false, fmt.Errorf("hosts file of the pod: %s is not a file; remove it", path)
	}
	if info.Mode().Perm() != 0o644 || info.Size() != int64(len(content)) {
		return false, nil
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, content), nil
}

func (c *Configurer) hosts(pod *v1.Pod, ips []string) ([]byte, error) {
	if pod.Spec.HostNetwork {
		node, err := os.ReadFile(cmp.Or(c.cfg.HostsFile, "/etc/hosts"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("names of the node: %w", err)
		}
		content := append([]byte("# Kubernetes-managed hosts file (host network).\n"), node...)
		return append(content, aliases(pod.Spec.HostAliases)...), nil
	}
	hostname, domain, err := c.names(pod)
	if err != nil {
		return nil, err
	}
	return append(podHosts(ips, hostname, domain), aliases(pod.Spec.HostAliases)...), nil
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
			fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, hostname, domain, hostname)
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
