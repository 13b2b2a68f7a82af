package runtime

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/restart"
)

// podLogDir is where the logs of a pod lie.
func (r *Runtime) podLogDir(namespace, name, uid string) string {
	return filepath.Join(r.opts.PodLogsDir, namespace+"_"+name+"_"+uid)
}

// sandboxConfig makes the CRI form of a pod's sandbox.
func (r *Runtime) sandboxConfig(
	ctx context.Context, pod *v1.Pod, attempt uint32,
) (*runtimeapi.PodSandboxConfig, error) {
	in, err := r.opts.Inputs.Sandbox(ctx, pod)
	if err != nil {
		return nil, err
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name:      pod.Name,
			Namespace: pod.Namespace,
			Uid:       string(pod.UID),
			Attempt:   attempt,
		},
		LogDirectory: r.podLogDir(pod.Namespace, pod.Name, string(pod.UID)),
		DnsConfig:    in.DNS,
		Labels:       podLabels(pod),
		Annotations:  maps.Clone(pod.Annotations),
		PortMappings: portMappings(pod),
		Linux:        r.linuxSandbox(pod, in),
	}
	if !pod.Spec.HostNetwork {
		config.Hostname = in.Hostname
	}
	return config, nil
}

// portMappings returns the ports of the pod's containers, as a kubelet does: also those that the node does not forward,
// which have no host port. Those of sidecars are among them; a kubelet forgets them.
func portMappings(pod *v1.Pod) []*runtimeapi.PortMapping {
	var out []*runtimeapi.PortMapping
	for _, c := range slices.Concat(sidecars(pod), pod.Spec.Containers) {
		var seen []v1.ContainerPort
		for _, p := range c.Ports {
			if slices.ContainsFunc(seen, func(other v1.ContainerPort) bool { return samePort(p, other) }) {
				continue
			}
			seen = append(seen, p)
			out = append(out, &runtimeapi.PortMapping{
				Protocol:      criProtocol(p.Protocol),
				ContainerPort: p.ContainerPort,
				HostPort:      p.HostPort,
				HostIp:        p.HostIP,
			})
		}
	}
	return out
}

// samePort reports whether two ports of a container are one: by their names, or by all that they say where they have
// none.
func samePort(a, b v1.ContainerPort) bool {
	if a.Name != "" || b.Name != "" {
		return a.Name == b.Name
	}
	return a == b
}

func criProtocol(p v1.Protocol) runtimeapi.Protocol {
	switch p {
	case v1.ProtocolUDP:
		return runtimeapi.Protocol_UDP
	case v1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP
	}
	return runtimeapi.Protocol_TCP
}

func (r *Runtime) linuxSandbox(pod *v1.Pod, in SandboxInputs) *runtimeapi.LinuxPodSandboxConfig {
	sc := pod.Spec.SecurityContext
	if sc == nil {
		sc = &v1.PodSecurityContext{}
	}
	security := &runtimeapi.LinuxSandboxSecurityContext{
		Privileged:       slices.ContainsFunc(allContainers(pod), privileged),
		NamespaceOptions: namespaceOptions(pod, in.UserNamespace),
		// A profile of the pod's may allow too little for the sandbox's own process.
		Seccomp:            &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		SelinuxOptions:     selinux(sc.SELinuxOptions),
		SupplementalGroups: groups(sc, in.Groups...),

		SupplementalGroupsPolicy: groupsPolicy(pod),
	}
	if sc.RunAsUser != nil {
		security.RunAsUser = &runtimeapi.Int64Value{Value: *sc.RunAsUser}
	}
	// A group without a user is refused by CRI.
	if sc.RunAsGroup != nil && sc.RunAsUser != nil {
		security.RunAsGroup = &runtimeapi.Int64Value{Value: *sc.RunAsGroup}
	}
	config := &runtimeapi.LinuxPodSandboxConfig{CgroupParent: in.CgroupParent, SecurityContext: security}
	if r.opts.SandboxResources != nil {
		config.Resources, config.Overhead = r.opts.SandboxResources(pod)
	}
	for _, s := range sc.Sysctls {
		if config.Sysctls == nil {
			config.Sysctls = map[string]string{}
		}
		config.Sysctls[sysctlName(s.Name)] = s.Value
	}
	return config
}

// sysctlName returns the name with dots between its parts, as CRI wants it. A pod may write slashes between
// the parts instead, and dots within them.
func sysctlName(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '.' {
		return name
	}
	return strings.NewReplacer("/", ".", ".", "/").Replace(name)
}

// namespaceOptions are the namespaces of a pod, or of one of its containers; without userns it has the node's ids.
func namespaceOptions(pod *v1.Pod, userns *runtimeapi.UserNamespace) *runtimeapi.NamespaceOption {
	if userns == nil {
		userns = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}
	}
	mode := func(host bool, other runtimeapi.NamespaceMode) runtimeapi.NamespaceMode {
		if host {
			return runtimeapi.NamespaceMode_NODE
		}
		return other
	}
	pid := runtimeapi.NamespaceMode_CONTAINER
	if s := pod.Spec.ShareProcessNamespace; s != nil && *s {
		pid = runtimeapi.NamespaceMode_POD
	}
	return &runtimeapi.NamespaceOption{
		Network: mode(pod.Spec.HostNetwork, runtimeapi.NamespaceMode_POD),
		Ipc:     mode(pod.Spec.HostIPC, runtimeapi.NamespaceMode_POD),
		Pid:     mode(pod.Spec.HostPID, pid),

		UsernsOptions: userns,
	}
}

// allContainers returns the init containers and the containers.
func allContainers(pod *v1.Pod) []v1.Container {
	return slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
}

func sidecars(pod *v1.Pod) []v1.Container {
	var out []v1.Container
	for i := range pod.Spec.InitContainers {
		if restart.IsSidecar(&pod.Spec.InitContainers[i]) {
			out = append(out, pod.Spec.InitContainers[i])
		}
	}
	return out
}

func privileged(c v1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
}
