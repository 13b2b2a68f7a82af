// Package security decides which pods this node must refuse because of their security context: sysctls that are not
// allowed, AppArmor where the node has none, groups that the runtime cannot keep to. It is pure; reasons and messages
// are the kubelet's. It promises that what a pod asks for is given or refused, and never left out.
package security

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// safe are the sysctls that every pod may set, and the kernel from which on they belong to the pod alone. Source:
// "Using sysctls in a Kubernetes Cluster".
var safe = map[string]string{
	"kernel.shm_rmid_forced":              "",
	"net.ipv4.ip_local_port_range":        "",
	"net.ipv4.tcp_syncookies":             "",
	"net.ipv4.ping_group_range":           "",
	"net.ipv4.ip_unprivileged_port_start": "",
	"net.ipv4.ip_local_reserved_ports":    "3.16",
	"net.ipv4.tcp_keepalive_time":         "4.5",
	"net.ipv4.tcp_fin_timeout":            "4.6",
	"net.ipv4.tcp_keepalive_intvl":        "4.5",
	"net.ipv4.tcp_keepalive_probes":       "4.5",
	"net.ipv4.tcp_rmem":                   "4.15",
	"net.ipv4.tcp_wmem":                   "4.15",
	"net.ipv4.tcp_slow_start_after_idle":  "4.15",
	"net.ipv4.tcp_notsent_lowat":          "4.6",
}

// The namespaces that sysctls belong to, as messages name them.
const (
	ipc = "ipc"
	net = "net"
)

// namespaceOf returns the namespace of a sysctl, "" for one of the whole node.
func namespaceOf(name string) string {
	switch {
	case name == "kernel.sem", strings.HasPrefix(name, "kernel.shm"), strings.HasPrefix(name, "kernel.msg"),
		strings.HasPrefix(name, "fs.mqueue."):
		return ipc
	case strings.HasPrefix(name, "net."):
		return net
	}
	return ""
}

// Sysctls are those that pods may set on this node.
type Sysctls struct {
	names    map[string]bool
	prefixes []string
}

// NewSysctls makes the list from the node's kernel release and the unsafe sysctls that the configuration allows: names,
// or beginnings of names with a * at the end. All have to be of a namespace.
func NewSysctls(kernel string, allowedUnsafe []string) (*Sysctls, error) {
	s := &Sysctls{names: map[string]bool{}}
	for name, since := range safe {
		if atLeast(kernel, since) {
			s.names[name] = true
		}
	}
	var errs []error
	for _, pattern := range allowedUnsafe {
		prefix, many := strings.CutSuffix(pattern, "*")
		name := dotted(prefix)
		switch {
		case strings.Contains(name, "*") || name == "":
			errs = append(errs,
				fmt.Errorf("allowedUnsafeSysctls: %q is neither the name of a sysctl nor a beginning with a * at "+
					"its end", pattern))
		case namespaceOf(name) == "":
			errs = append(errs, fmt.Errorf("allowedUnsafeSysctls: the sysctls %q are not known to be namespaced; "+
				"want kernel.sem, kernel.shm*, kernel.msg*, fs.mqueue.* or net.*", pattern))
		case many:
			s.prefixes = append(s.prefixes, name)
		default:
			s.names[name] = true
		}
	}
	return s, errors.Join(errs...)
}

// Check rejects a pod that sets a sysctl which it may not set here.
func (s *Sysctls) Check(pod *v1.Pod) *observed.Reason {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, set := range pod.Spec.SecurityContext.Sysctls {
		if err := s.check(dotted(set.Name), pod); err != nil {
			return &observed.Reason{Reason: "SysctlForbidden", Message: fmt.Sprintf("forbidden sysctl: %v", err)}
		}
	}
	return nil
}

func (s *Sysctls) check(name string, pod *v1.Pod) error {
	allowed := s.names[name] || slices.ContainsFunc(s.prefixes, func(p string) bool {
		return strings.HasPrefix(name, p)
	})
	switch in := namespaceOf(name); {
	case !allowed:
		return fmt.Errorf("%q not allowlisted", name)
	case in == net && pod.Spec.HostNetwork, in == ipc && pod.Spec.HostIPC:
		return fmt.Errorf("%q not allowed with host %s enabled", name, in)
	}
	return nil
}

// dotted is a sysctl's name with dots between its parts, where it has slashes.
func dotted(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '.' {
		return name
	}
	return strings.NewReplacer("/", ".", ".", "/").Replace(name)
}

// atLeast reports whether a kernel's release is not older than a version; one that makes no sense is.
func atLeast(kernel, version string) bool {
	if version == "" {
		return true
	}
	have, want := numbers(kernel), numbers(version)
	return have != nil && want != nil && slices.Compare(have, want) >= 0
}

// numbers reads the first two numbers of a version.
func numbers(version string) []int {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return nil
	}
	var out []int
	for _, p := range parts[:2] {
		digits := p
		if end := strings.IndexFunc(p, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			digits = p[:end]
		}
		n, err := strconv.Atoi(digits)
		if err != nil {
			return nil
		}
		out = append(out, n)
	}
	return out
}
