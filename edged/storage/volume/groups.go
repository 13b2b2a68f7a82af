package volume

import (
	"math"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
)

// gidAnnotation names a group on a PersistentVolume: anyone who uses the volume is to be in it.
const gidAnnotation = "pv.beta.kubernetes.io/gid"

// Groups returns the groups that the PersistentVolumes of a pod ask for with their annotation and that are not among
// the pod's supplementalGroups, in order. The pod's volumes have to be set up.
func (m *Manager) Groups(pod *v1.Pod) []int64 {
	var own []int64
	if sc := pod.Spec.SecurityContext; sc != nil {
		own = sc.SupplementalGroups
	}
	return extraGroups(m.Specs(pod.UID), own)
}

// extraGroups returns the groups that volumes ask for and that are not among those of the pod. Values that are not
// group IDs are ignored. It is pure.
func extraGroups(specs map[string]Spec, own []int64) []int64 {
	var out []int64
	for _, spec := range specs {
		if spec.PV == nil {
			continue
		}
		gid, err := strconv.ParseInt(spec.PV.Annotations[gidAnnotation], 10, 64)
		if err == nil && gid >= 0 && gid <= math.MaxInt32 && !slices.Contains(own, gid) && !slices.Contains(out, gid) {
			out = append(out, gid)
		}
	}
	slices.Sort(out)
	return out
}
