package runtime

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// unsupported is a field of a pod that this node does not act on.
type unsupported struct {
	path string
	// refuse says why the pod is not run at all; "" when it runs without.
	refuse string
}

// claimsRefused is why a pod with resource claims is not run.
const claimsRefused = "this node does not allocate claimed devices; ask for those of a device plugin by " +
	"resources.limits"

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

// unsupportedFields lists the fields in a pod's spec that this node does not act on, such as
// "spec.containers[0].resources.claims", in the order of the spec. It is pure. Of the status it lists
// extendedResourceClaimStatus, in which the scheduler says that an extended resource was allocated by a ResourceClaim.
//
// There are two kinds. A field is refused (see Refused) when the pod would be less isolated without it
// than its author asked for, or lack a device that it works on. Any other is left out with a
// warning: the pod does its work, but is not watched, told or limited as meant. Fields of the scheduler,
// and of volumes, environment and DNS, whose packages say themselves what they lack, are not listed;
// nor is enableServiceLinks, which the API server sets on every pod.
func unsupportedFields(pod *v1.Pod) []unsupported {
	var c checks
	s := &pod.Spec
	for i := range s.InitContainers {
		c.container(&s.InitContainers[i], fmt.Sprintf("spec.initContainers[%d]", i), WantsUserNamespace(pod))
	}
	for i := range s.Containers {
		c.container(&s.Containers[i], fmt.Sprintf("spec.containers[%d]", i), WantsUserNamespace(pod))
	}
	c.add(s.OS != nil && s.OS.Name != "" && s.OS.Name != v1.Linux, "spec.os.name", "this node runs linux")
	c.add(len(s.ResourceClaims) > 0, "spec.resourceClaims", claimsRefused)
	c.add(s.Resources != nil && len(s.Resources.Claims) > 0, "spec.resources.claims", claimsRefused)
	if sc := s.SecurityContext; sc != nil {
		c.add(sc.WindowsOptions != nil, "spec.securityContext.windowsOptions", "")
	}
	if claim := pod.Status.ExtendedResourceClaimStatus; claim != nil {
		c.add(true, "status.extendedResourceClaimStatus", allocatedByClaim(claim)+claimsRefused)
	}
	return c
}

// allocatedByClaim names the extended resources that the scheduler allocated by a ResourceClaim of its own, because a
// DeviceClass offers them. No device plugin of this node provides their devices.
func allocatedByClaim(claim *v1.PodExtendedResourceClaimStatus) string {
	var what []string
	for _, m := range claim.RequestMappings {
		what = append(what, m.ResourceName+" of container "+m.ContainerName)
	}
	if len(what) == 0 {
		what = []string{"an extended resource"}
	}
	return fmt.Sprintf("%s was allocated by ResourceClaim %q: ", strings.Join(what, ", "), claim.ResourceClaimName)
}

func (c *checks) container(k *v1.Container, path string, ownIDs bool) {
	c.resources(k, path)
	c.add(!ownIDs && k.SecurityContext != nil && k.SecurityContext.ProcMount != nil &&
		*k.SecurityContext.ProcMount == v1.UnmaskedProcMount,
		path+".securityContext.procMount", "Unmasked needs a user namespace; set spec.hostUsers to false")
	c.add(k.SecurityContext != nil && k.SecurityContext.WindowsOptions != nil, path+".securityContext.windowsOptions",
		"")
}

func (c *checks) resources(k *v1.Container, path string) {
	c.add(len(k.Resources.Claims) > 0, path+".resources.claims", claimsRefused)
}
