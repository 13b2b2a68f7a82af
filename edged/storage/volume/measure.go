package volume

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// Measured is a volume of a pod and what it takes.
type Measured struct {
	Name string
	// Dir is where it is.
	Dir string
	// Local: it takes of the disk of the node, and goes with the pod. Others lie in memory.
	Local bool
	Size
}

// MeasureVolumes returns those volumes of a pod that this node makes for it alone, with what they take. Claims, host
// paths and what is on servers are not among them. Of a volume that cannot be read it is what was counted, and the
// error says which.
func (m *Manager) MeasureVolumes(ctx context.Context, pod *v1.Pod) ([]Measured, error) {
	var out []Measured
	var failed []error
	for vol := range usedVolumes(pod) {
		plugin := ownPlugin(vol)
		if plugin == "" {
			continue
		}
		dir, err := m.podVolume(pod.UID, plugin, vol.Name)
		if err != nil {
			return nil, err
		}
		one := Measured{
			Name: vol.Name, Dir: dir, Local: vol.ConfigMap != nil ||
				vol.EmptyDir != nil && vol.EmptyDir.Medium != v1.StorageMediumMemory,
		}
		if one.Size, err = Measure(ctx, dir); err != nil {
			failed = append(failed, fmt.Errorf("measure volume %q: %w", vol.Name, err))
		}
		out = append(out, one)
	}
	return out, errors.Join(failed...)
}

// ownPlugin is the plugin of a volume that this node makes; "" for all others.
func ownPlugin(vol *v1.Volume) string {
	switch {
	case vol.EmptyDir != nil:
		return pluginEmptyDir
	case vol.ConfigMap != nil:
		return pluginConfigMap
	case vol.Secret != nil:
		return pluginSecret
	case vol.DownwardAPI != nil:
		return pluginDownwardAPI
	case vol.Projected != nil:
		return pluginProjected
	}
	return ""
}
