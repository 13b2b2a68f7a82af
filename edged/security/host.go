package security

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/observed"
)

// Host is what the node's kernel has to confine containers with.
type Host struct {
	AppArmor bool
	SELinux  bool
	// Kernel is its release.
	Kernel string
}

// Look finds out about the node; root is "/".
func Look(root string) Host {
	enabled, err := os.ReadFile(filepath.Join(root, "sys/module/apparmor/parameters/enabled"))
	kernel, _ := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease"))
	_, noSELinux := os.Stat(filepath.Join(root, "sys/fs/selinux/enforce"))
	return Host{
		AppArmor: err == nil && strings.HasPrefix(string(enabled), "Y"),
		SELinux:  noSELinux == nil, Kernel: strings.TrimSpace(string(kernel)),
	}
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
		case p.Type == v1.AppArmorProfileTypeLocalhost && (p.LocalhostProfile == nil || strings.TrimSpace(*p.LocalhostProfile) == ""):
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
			if sc := list[i].SecurityContext; sc != nil && sc.AppArmorProfile != nil {
				out = append(out, sc.AppArmorProfile)
			}
		}
	}
	return out
}

// CheckGroups rejects a pod that must have no groups but its own on a runtime that cannot keep to it. supported tells whether
// it can; known is false while nobody knows.
func CheckGroups(pod *v1.Pod, supported, known bool) *observed.Reason {
	sc := pod.Spec.SecurityContext
	if sc == nil || sc.SupplementalGroupsPolicy == nil || *sc.SupplementalGroupsPolicy != v1.SupplementalGroupsPolicyStrict || supported || !known {
		return nil
	}
	return &observed.Reason{Reason: "SupplementalGroupsPolicyNotSupported",
		Message: fmt.Sprintf("SupplementalGroupsPolicy=%s is not supported in this node", v1.SupplementalGroupsPolicyStrict)}
}
