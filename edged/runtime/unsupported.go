package runtime

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// unsupported is a field of a pod's spec that this node does not act on.
type unsupported struct {
	path string
	// refuse says why the pod is not run at all; "" when it runs without.
	refuse string
}

// Unsupported lists the paths of the fields in a pod's spec that this node does not act on, such as
// "spec.containers[0].livenessProbe", in the order of the spec. It is pure.
//
// There are two kinds. A field is refused (see Refused) when the pod would be less isolated without it
// than its author asked for, or lack a device that it works on. Any other is left out with a
// warning: the pod does its work, but is not watched, told or limited as meant. Fields of the scheduler,
// and of volumes, environment and DNS, whose packages say themselves what they lack, are not listed;
// nor is enableServiceLinks, which the API server sets on every pod.
func Unsupported(pod *v1.Pod) []string {
	var paths []string
	for _, f := range unsupportedFields(pod) {
		paths = append(paths, f.path)
	}
	return paths
}

// Refused returns an error that names each field because of which this node does not run a pod, or nil.
func Refused(pod *v1.Pod) error {
	var errs []error
	for _, f := range unsupportedFields(pod) {
		if f.refuse != "" {
			errs = append(errs, fmt.Errorf("%s: %s", f.path, f.refuse))
		}
	}
	return errors.Join(errs...)
}

// ignoredFields are the unsupported fields without which a pod runs.
func ignoredFields(pod *v1.Pod) []string {
	var paths []string
	for _, f := range unsupportedFields(pod) {
		if f.refuse == "" {
			paths = append(paths, f.path)
		}
	}
	return paths
}

// checks collects the fields that are set.
type checks []unsupported

func (c *checks) add(set bool, path, refuse string) {
	if set {
		*c = append(*c, unsupported{path, refuse})
	}
}

func unsupportedFields(pod *v1.Pod) []unsupported {
	var c checks
	s := &pod.Spec
	for i := range s.InitContainers {
		c.container(&s.InitContainers[i], fmt.Sprintf("spec.initContainers[%d]", i), true)
	}
	for i := range s.Containers {
		c.container(&s.Containers[i], fmt.Sprintf("spec.containers[%d]", i), false)
	}
	c.add(len(s.EphemeralContainers) > 0, "spec.ephemeralContainers", "")
	c.add(s.ActiveDeadlineSeconds != nil, "spec.activeDeadlineSeconds", "")
	c.add(len(s.ReadinessGates) > 0, "spec.readinessGates", "")
	c.add(s.RuntimeClassName != nil && *s.RuntimeClassName != "", "spec.runtimeClassName",
		"this node does not know runtime classes; leave it out to run the pod with the default runtime")
	c.add(s.OS != nil && s.OS.Name != "" && s.OS.Name != v1.Linux, "spec.os.name", "this node runs linux")
	c.add(s.HostUsers != nil && !*s.HostUsers, "spec.hostUsers", "this node does not give pods user namespaces of their own")
	c.add(len(s.ResourceClaims) > 0, "spec.resourceClaims", "this node does not allocate devices")
	if sc := s.SecurityContext; sc != nil {
		c.add(sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict,
			"spec.securityContext.supplementalGroupsPolicy", "this node always adds the groups that the image names; use Merge")
		c.add(sc.WindowsOptions != nil, "spec.securityContext.windowsOptions", "")
	}
	return c
}

func (c *checks) container(k *v1.Container, path string, init bool) {
	c.resources(k, path)
	c.add(k.RestartPolicy != nil && (!init || !isSidecar(k)), path+".restartPolicy", "")
	c.add(len(k.RestartPolicyRules) > 0, path+".restartPolicyRules", "")
	c.add(len(k.VolumeDevices) > 0, path+".volumeDevices", "this node does not give pods block devices")
	c.add(k.LivenessProbe != nil, path+".livenessProbe", "")
	c.add(k.ReadinessProbe != nil, path+".readinessProbe", "")
	c.add(k.StartupProbe != nil, path+".startupProbe", "")
	if l := k.Lifecycle; l != nil {
		c.add(l.PostStart != nil, path+".lifecycle.postStart", "")
		c.add(l.PreStop != nil, path+".lifecycle.preStop", "")
		c.add(l.StopSignal != nil, path+".lifecycle.stopSignal", "")
	}
	c.add(k.SecurityContext != nil && k.SecurityContext.WindowsOptions != nil, path+".securityContext.windowsOptions", "")
}

func (c *checks) resources(k *v1.Container, path string) {
	for _, name := range slices.Sorted(maps.Keys(k.Resources.Limits)) {
		huge := strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
		c.add(huge || name == v1.ResourceEphemeralStorage, fmt.Sprintf("%s.resources.limits[%s]", path, name), "")
	}
	c.add(len(k.Resources.Claims) > 0, path+".resources.claims", "this node does not allocate devices")
	for i, p := range k.ResizePolicy {
		c.add(p.RestartPolicy == v1.RestartContainer, fmt.Sprintf("%s.resizePolicy[%d]", path, i), "")
	}
}
