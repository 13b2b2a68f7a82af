package volume

import (
	"context"
	"errors"
	"fmt"
	"path"

	v1 "k8s.io/api/core/v1"
)

// projectedFiles brings several sources into one volume.
func (m *Manager) projectedFiles(ctx context.Context, pod *v1.Pod, src *v1.ProjectedVolumeSource) ([]file, error) {
	var all []file
	for i := range src.Sources {
		files, err := m.projection(ctx, pod, &src.Sources[i], src.DefaultMode)
		if err != nil {
			return nil, err
		}
		all = append(all, files...)
	}
	return all, nil
}

func (m *Manager) projection(ctx context.Context, pod *v1.Pod, s *v1.VolumeProjection, mode *int32) ([]file, error) {
	switch {
	case s.ConfigMap != nil:
		return m.configMapFiles(ctx, pod.Namespace, source{s.ConfigMap.Name, s.ConfigMap.Items, mode, isTrue(s.ConfigMap.Optional)})
	case s.Secret != nil:
		return m.secretFiles(ctx, pod.Namespace, source{s.Secret.Name, s.Secret.Items, mode, isTrue(s.Secret.Optional)})
	case s.DownwardAPI != nil:
		return m.downwardFiles(pod, s.DownwardAPI.Items, mode)
	}
	return nil, errors.New("projected source is not supported") // Unsupported has said so before
}

// downwardFiles makes files of fields of the pod and of resources of its containers.
func (m *Manager) downwardFiles(pod *v1.Pod, items []v1.DownwardAPIVolumeFile, mode *int32) ([]file, error) {
	var files []file
	for _, item := range items {
		if err := checkPath(item.Path); err != nil {
			return nil, err
		}
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = m.opts.Fields.Field(pod, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			value, err = m.opts.Fields.Resource(pod, item.ResourceFieldRef.ContainerName, item.ResourceFieldRef)
		default:
			err = fmt.Errorf("item %q: want fieldRef or resourceFieldRef", item.Path)
		}
		if err != nil {
			return nil, err
		}
		files = append(files, file{path: path.Clean(item.Path), data: []byte(value), mode: modeOf(item.Mode, mode)})
	}
	return files, nil
}
