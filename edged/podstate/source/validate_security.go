package source

import (
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What an API server would check of who the containers are and what they may do.

// podSecurity checks what a pod says for all its containers.
func (v *validator) podSecurity(p *field.Path, spec *v1.PodSpec) {
	ownIDs := spec.HostUsers != nil && !*spec.HostUsers
	for name, host := range map[string]bool{
		"hostNetwork": spec.HostNetwork, "hostPID": spec.HostPID, "hostIPC": spec.HostIPC,
	} {
		if ownIDs && host {
			v.add(field.Forbidden(p.Child(name), "must not be true with hostUsers: false"))
		}
	}
	if spec.ShareProcessNamespace != nil && *spec.ShareProcessNamespace && spec.HostPID {
		v.add(field.Invalid(p.Child("shareProcessNamespace"), true,
			"a pod shares the node's processes or its own, not both"))
	}
	sc, at := spec.SecurityContext, p.Child("securityContext")
	if sc == nil {
		return
	}
	v.id(at.Child("runAsUser"), sc.RunAsUser)
	v.id(at.Child("runAsGroup"), sc.RunAsGroup)
	v.id(at.Child("fsGroup"), sc.FSGroup)
	for i := range sc.SupplementalGroups {
		v.id(at.Child("supplementalGroups").Index(i), &sc.SupplementalGroups[i])
	}
	if sc.SupplementalGroupsPolicy != nil {
		oneOf(v, at.Child("supplementalGroupsPolicy"), *sc.SupplementalGroupsPolicy, v1.SupplementalGroupsPolicyMerge,
			v1.SupplementalGroupsPolicyStrict)
	}
	seen := map[string]bool{}
	for i, s := range sc.Sysctls {
		name := at.Child("sysctls").Index(i).Child("name")
		if s.Name == "" {
			v.add(field.Required(name, ""))
		}
		if seen[s.Name] {
			v.add(field.Duplicate(name, s.Name))
		}
		seen[s.Name] = true
	}
}

// containerSecurity checks what a container says for itself.
func (v *validator) containerSecurity(at *field.Path, c *v1.Container) {
	sc := c.SecurityContext
	if sc == nil {
		return
	}
	v.id(at.Child("runAsUser"), sc.RunAsUser)
	v.id(at.Child("runAsGroup"), sc.RunAsGroup)
	never := sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation
	if never && sc.Privileged != nil && *sc.Privileged {
		v.add(field.Invalid(at, "allowPrivilegeEscalation", "must not be false for a privileged container"))
	}
	if never && sc.Capabilities != nil {
		for _, name := range sc.Capabilities.Add {
			if name == "CAP_SYS_ADMIN" || name == "SYS_ADMIN" {
				v.add(field.Invalid(at, "allowPrivilegeEscalation", "must not be false with the capability SYS_ADMIN"))
			}
		}
	}
	if sc.ProcMount != nil {
		oneOf(v, at.Child("procMount"), *sc.ProcMount, v1.DefaultProcMount, v1.UnmaskedProcMount)
	}
}

func (v *validator) id(at *field.Path, id *int64) {
	if id != nil {
		v.collect(at, *id, validation.IsValidUserID(*id))
	}
}

// image checks an image that is a volume, and its mounts' sub-paths are checked with all others.
func (v *validator) image(at *field.Path, image *v1.ImageVolumeSource) {
	if image == nil {
		return
	}
	if image.Reference == "" {
		v.add(field.Required(at.Child("reference"), ""))
	}
	oneOf(v, at.Child("pullPolicy"), image.PullPolicy, v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)
}

// envFile checks a variable that comes from a file of a volume.
func (v *validator) envFile(at *field.Path, ref *v1.FileKeySelector) {
	if ref == nil {
		return
	}
	for name, value := range map[string]string{"volumeName": ref.VolumeName, "path": ref.Path, "key": ref.Key} {
		if value == "" {
			v.add(field.Required(at.Child(name), ""))
		}
	}
	if ref.Path != "" && !filepath.IsLocal(ref.Path) {
		v.add(field.Invalid(at.Child("path"), ref.Path, "must be relative, and must not lead out of the volume"))
	}
}
