package security

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// Host is what the node's kernel has to confine containers with.
type Host struct {
	AppArmor bool
	SELinux  bool
	// Kernel is its release.
	Kernel string
	// Thermal are the folders in which the processors tell how often they were throttled. Containers must not see them:
	// the figures give away what others compute.
	Thermal []string
}

// ReadHost finds out about the node; root is "/".
func ReadHost(root string) Host {
	enabled, err := os.ReadFile(filepath.Join(root, "sys/module/apparmor/parameters/enabled"))
	kernel, _ := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease"))
	_, noSELinux := os.Stat(filepath.Join(root, "sys/fs/selinux/enforce"))
	return Host{
		AppArmor: err == nil && strings.HasPrefix(string(enabled), "Y"),
		SELinux:  noSELinux == nil, Kernel: strings.TrimSpace(string(kernel)), Thermal: thermal(root),
	}
}

// thermal lists /sys/devices/system/cpu/cpuN/thermal_throttle, by the number of the processor.
func thermal(root string) []string {
	const cpus, file = "/sys/devices/system/cpu", "thermal_throttle"
	found, err := filepath.Glob(filepath.Join(root, cpus, "cpu[0-9]*", file))
	if err != nil {
		return nil // the pattern is a good one
	}
	var numbers []int
	for _, path := range found {
		if n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "cpu")); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	var out []string
	for _, n := range numbers {
		out = append(out, fmt.Sprintf("%s/cpu%d/%s", cpus, n, file))
	}
	return out
}

// CheckAppArmor rejects a pod that asks for a profile where the node has no AppArmor to enforce it, or names none.
func (h Host) CheckAppArmor(pod *v1.Pod) *observed.Reason {
	reject := func(format string, args ...any) *observed.Reason {
		return &observed.Reason{Reason: "AppArmor", Message: "Cannot enforce AppArmor: " + fmt.Sprintf(format, args...)}
	}
	for _, p := range armorOf(pod) {
		switch {
		case p.Type == v1.AppArmorProfileTypeUnconfined:
		case !h.AppArmor:
			return reject("AppArmor is not enabled on the host")
		case p.Type == v1.AppArmorProfileTypeLocalhost &&
			(p.LocalhostProfile == nil || strings.TrimSpace(*p.LocalhostProfile) == ""):
			return reject("localhostProfile must be set if the profile's type is Localhost")
		}
	}
	return nil
}

// armorOf lists the profiles that a pod and its containers ask for.
func armorOf(pod *v1.Pod) []*v1.AppArmorProfile {
	var out []*v1.AppArmorProfile
	if sc := pod.Spec.SecurityContext; sc != nil && sc.AppArmorProfile != nil {
		out = append(out, sc.AppArmorProfile)
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if p := AppArmor(pod, &list[i]); p != nil {
				out = append(out, p)
			}
		}
	}
	return out
}

// AppArmor is the profile of a container: its own, else that of the annotation for it, which static pods may have, else
// the pod's; nil where none says anything. An annotation that makes no sense says nothing.
func AppArmor(pod *v1.Pod, c *v1.Container) *v1.AppArmorProfile {
	if sc := c.SecurityContext; sc != nil && sc.AppArmorProfile != nil {
		return sc.AppArmorProfile
	}
	text := pod.Annotations[v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]
	if name, ok := strings.CutPrefix(text, v1.DeprecatedAppArmorBetaProfileNamePrefix); ok {
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	switch text {
	case v1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}
	case v1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		return sc.AppArmorProfile
	}
	return nil
}

// CheckGroups rejects a pod that must have no groups but its own on a runtime that cannot keep to it. supported reports
// whether it can; known is false while that is unknown.
func CheckGroups(pod *v1.Pod, supported, known bool) *observed.Reason {
	sc := pod.Spec.SecurityContext
	if sc == nil || sc.SupplementalGroupsPolicy == nil ||
		*sc.SupplementalGroupsPolicy != v1.SupplementalGroupsPolicyStrict || supported || !known {
		return nil
	}
	return &observed.Reason{
		Reason: "SupplementalGroupsPolicyNotSupported",
		Message: fmt.Sprintf("SupplementalGroupsPolicy=%s is not supported in this node",
			v1.SupplementalGroupsPolicyStrict),
	}
}
