package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/security"
)

// Paths that a container with the default proc mount does not see, or sees read-only: the defaults of containerd and
// docker. Options.MaskedPaths has more of the first.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// firstSet returns the first pointer that is set.
func firstSet[T any](list ...*T) *T {
	for _, p := range list {
		if p != nil {
			return p
		}
	}
	return nil
}

// securityContext makes the CRI form of what pod and container say together; the container's word
// counts where both speak.
func (r *Runtime) securityContext(
	pod *v1.Pod, c *v1.Container, userns *runtimeapi.UserNamespace,
) (*runtimeapi.LinuxContainerSecurityContext, error) {
	ps, cs := pod.Spec.SecurityContext, c.SecurityContext
	if ps == nil {
		ps = &v1.PodSecurityContext{}
	}
	if cs == nil {
		cs = &v1.SecurityContext{}
	}
	seccomp, err := r.seccompProfile(firstSet(cs.SeccompProfile, ps.SeccompProfile))
	if err != nil {
		return nil, err
	}
	armor, err := appArmor(security.AppArmor(pod, c))
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		Privileged:         privileged(*c),
		NamespaceOptions:   namespaceOptions(pod, userns),
		Capabilities:       capabilities(cs.Capabilities),
		SelinuxOptions:     selinux(firstSet(cs.SELinuxOptions, ps.SELinuxOptions)),
		Seccomp:            seccomp,
		Apparmor:           armor,
		SupplementalGroups: groups(ps),
		ReadonlyRootfs:     cs.ReadOnlyRootFilesystem != nil && *cs.ReadOnlyRootFilesystem,
		NoNewPrivs:         cs.AllowPrivilegeEscalation != nil && !*cs.AllowPrivilegeEscalation,

		SupplementalGroupsPolicy: groupsPolicy(pod),
	}
	//lint:ignore SA1019 a kubelet sets it too, and old runtimes read nothing else
	out.ApparmorProfile = armorName(armor)
	if uid := firstSet(cs.RunAsUser, ps.RunAsUser); uid != nil {
		out.RunAsUser = &runtimeapi.Int64Value{Value: *uid}
	}
	if gid := firstSet(cs.RunAsGroup, ps.RunAsGroup); gid != nil {
		out.RunAsGroup = &runtimeapi.Int64Value{Value: *gid}
	}
	if cs.ProcMount == nil || *cs.ProcMount != v1.UnmaskedProcMount {
		out.MaskedPaths, out.ReadonlyPaths = slices.Concat(maskedPaths, r.opts.MaskedPaths), slices.Clone(readonlyPaths)
	}
	return out, nil
}

// completeUser sets the user of a container from the image if the pod names none. The runtime needs the user in either
// case, to look up the groups. A container that must not run as root is checked.
func (r *Runtime) completeUser(
	ctx context.Context, pod *v1.Pod, c *v1.Container, imageRef string, sc *runtimeapi.LinuxContainerSecurityContext,
) error {
	if sc.RunAsUser != nil {
		if mustNotBeRoot(pod, c) && sc.RunAsUser.Value == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy (pod: %q, container: %s)", podID(pod),
				c.Name)
		}
		return nil
	}
	user, err := r.userOf(ctx, imageRef)
	if err != nil {
		return err
	}
	if mustNotBeRoot(pod, c) {
		switch {
		case user.name != "":
			return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is "+
				"non-root (pod: %q, container: %s)", user.name, podID(pod), c.Name)
		case user.uid == 0:
			return fmt.Errorf("container has runAsNonRoot and image will run as root (pod: %q, container: %s)",
				podID(pod), c.Name)
		}
	}
	if user.name != "" {
		sc.RunAsUsername = user.name
	} else {
		sc.RunAsUser = &runtimeapi.Int64Value{Value: user.uid}
	}
	return nil
}

func mustNotBeRoot(pod *v1.Pod, c *v1.Container) bool {
	var want *bool
	if c.SecurityContext != nil {
		want = c.SecurityContext.RunAsNonRoot
	}
	if want == nil && pod.Spec.SecurityContext != nil {
		want = pod.Spec.SecurityContext.RunAsNonRoot
	}
	return want != nil && *want
}

// podID is how messages name a pod: name_namespace(uid).
func podID(pod *v1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

// groups are the groups that a pod gives its processes: the one of its volumes first, then those of single volumes.
func groups(sc *v1.PodSecurityContext, volumes ...int64) []int64 {
	if sc.FSGroup == nil {
		return slices.Concat(volumes, sc.SupplementalGroups)
	}
	return slices.Concat([]int64{*sc.FSGroup}, volumes, sc.SupplementalGroups)
}

func groupsPolicy(pod *v1.Pod) runtimeapi.SupplementalGroupsPolicy {
	if StrictGroups(pod) {
		return runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func capabilities(c *v1.Capabilities) *runtimeapi.Capability {
	if c == nil {
		return nil
	}
	out := &runtimeapi.Capability{}
	for _, name := range c.Add {
		out.AddCapabilities = append(out.AddCapabilities, string(name))
	}
	for _, name := range c.Drop {
		out.DropCapabilities = append(out.DropCapabilities, string(name))
	}
	return out
}

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// seccompProfile converts a profile.
func (r *Runtime) seccompProfile(p *v1.SeccompProfile) (*runtimeapi.SecurityProfile, error) {
	unconfined := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	runtimeDefault := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	if p == nil {
		if r.opts.SeccompDefault {
			return runtimeDefault, nil
		}
		return unconfined, nil
	}
	switch p.Type {
	case v1.SeccompProfileTypeRuntimeDefault:
		return runtimeDefault, nil
	case v1.SeccompProfileTypeUnconfined:
		return unconfined, nil
	case v1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
			return nil, errors.New("localhostProfile must be set if seccompProfile type is Localhost")
		}
		name, dir := *p.LocalhostProfile, filepath.Join(r.opts.RootDir, "seccomp")
		if filepath.IsAbs(name) || slices.Contains(strings.Split(name, "/"), "..") {
			return nil, fmt.Errorf("localhostProfile %q: want a path below %s without '..'", name, dir)
		}
		return &runtimeapi.SecurityProfile{
			ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: filepath.Join(dir, name),
		}, nil
	}
	return nil, fmt.Errorf("seccompProfile type %q: want RuntimeDefault, Localhost or Unconfined", p.Type)
}

func appArmor(p *v1.AppArmorProfile) (*runtimeapi.SecurityProfile, error) {
	if p == nil {
		return nil, nil
	}
	switch p.Type {
	case v1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case v1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case v1.AppArmorProfileTypeLocalhost:
		if name := strings.TrimSpace(deref(p.LocalhostProfile)); name != "" {
			return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: name},
				nil
		}
		return nil, errors.New("localhostProfile must be set if appArmorProfile type is Localhost")
	}
	return nil, fmt.Errorf("appArmorProfile type %q: want RuntimeDefault, Localhost or Unconfined",
		cmp.Or(p.Type, "(none)"))
}

// armorName is a profile as runtimes before CRI v1 want it.
func armorName(p *runtimeapi.SecurityProfile) string {
	switch {
	case p == nil:
		return ""
	case p.ProfileType == runtimeapi.SecurityProfile_RuntimeDefault:
		return v1.DeprecatedAppArmorBetaProfileRuntimeDefault
	case p.ProfileType == runtimeapi.SecurityProfile_Unconfined:
		return v1.DeprecatedAppArmorBetaProfileNameUnconfined
	}
	return v1.DeprecatedAppArmorBetaProfileNamePrefix + p.LocalhostRef
}

// relabel requests SELinux labels for mounts of the pod's own files. A path of the node, which others use too, keeps
// its label. pods is the folder of the pods' folders.
func relabel(pod *v1.Pod, c *v1.Container, pods string, mounts []*runtimeapi.Mount) {
	for _, m := range mounts {
		if !strings.HasPrefix(m.HostPath, pods+"/") {
			continue
		}
		m.SelinuxRelabel = true
		for i := range c.VolumeMounts {
			vm := &c.VolumeMounts[i]
			if strings.TrimPrefix(vm.MountPath, "/") != strings.TrimPrefix(m.ContainerPath, "/") {
				continue
			}
			at := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == vm.Name })
			// Below a sub-path of these may be the node's.
			if at < 0 || pod.Spec.Volumes[at].HostPath != nil ||
				pod.Spec.Volumes[at].PersistentVolumeClaim != nil && vm.SubPath+vm.SubPathExpr != "" {
				m.SelinuxRelabel = false
			}
		}
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
