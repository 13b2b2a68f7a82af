package status

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// RecursiveReadOnly reports whether a mount is to be read-only with all that is mounted below it. supported reports
// whether the runtime can do that; it is asked only when that matters.
func RecursiveReadOnly(vm *v1.VolumeMount, supported func() bool) (bool, error) {
	if vm.RecursiveReadOnly == nil || *vm.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	if !vm.ReadOnly {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not read-only", vm.Name)
	}
	if p := vm.MountPropagation; p != nil && *p != v1.MountPropagationNone {
		return false,
			fmt.Errorf("volume %q requested recursive read-only mode, but it is not compatible with propagation %q",
				vm.Name, *p)
	}
	switch mode := *vm.RecursiveReadOnly; mode {
	case v1.RecursiveReadOnlyIfPossible:
		return supported(), nil
	case v1.RecursiveReadOnlyEnabled:
		if !supported() {
			return false,
				fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime",
					vm.Name)
		}
		return true, nil
	default:
		return false, fmt.Errorf("unknown recursive read-only mode %q", mode)
	}
}

// mountStatuses say how the mounts of a container are: what the status of a pod shows. It is pure, but for what
// supported does.
func mountStatuses(mounts []v1.VolumeMount, supported func() bool) []v1.VolumeMountStatus {
	var out []v1.VolumeMountStatus
	for i := range mounts {
		vm := &mounts[i]
		s := v1.VolumeMountStatus{Name: vm.Name, MountPath: vm.MountPath, ReadOnly: vm.ReadOnly}
		if vm.ReadOnly {
			mode := v1.RecursiveReadOnlyDisabled
			if recursive, err := RecursiveReadOnly(vm, supported); err == nil && recursive {
				mode = v1.RecursiveReadOnlyEnabled
			}
			s.RecursiveReadOnly = &mode
		}
		out = append(out, s)
	}
	return out
}
