package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// file is one file of a volume that the agent fills.
type file struct {
	path string // relative to the volume
	data []byte
	mode uint32
	gid  int
}

const defaultMode = 0o644

func modeOf(specific, general *int32) uint32 {
	switch {
	case specific != nil:
		return uint32(*specific)
	case general != nil:
		return uint32(*general)
	}
	return defaultMode
}

func isTrue(b *bool) bool { return b != nil && *b }

func (m *Manager) configMapFiles(ctx context.Context, pod *v1.Pod, src *v1.ConfigMapVolumeSource) ([]file, error) {
	return m.configMap(ctx, pod, src.Name, src.Items, src.DefaultMode, isTrue(src.Optional))
}

func (m *Manager) configMap(ctx context.Context, pod *v1.Pod, name string, items []v1.KeyToPath, mode *int32, optional bool) ([]file, error) {
	cm, err := m.opts.Objects.ConfigMap(ctx, pod.Namespace, name)
	if err != nil {
		if apierrors.IsNotFound(err) && optional {
			return nil, nil
		}
		return nil, err
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, v := range cm.Data {
		data[k] = []byte(v)
	}
	maps.Copy(data, cm.BinaryData)
	return pick(data, items, mode, optional)
}

func (m *Manager) secretFiles(ctx context.Context, pod *v1.Pod, src *v1.SecretVolumeSource) ([]file, error) {
	return m.secret(ctx, pod, src.SecretName, src.Items, src.DefaultMode, isTrue(src.Optional))
}

func (m *Manager) secret(ctx context.Context, pod *v1.Pod, name string, items []v1.KeyToPath, mode *int32, optional bool) ([]file, error) {
	secret, err := m.opts.Objects.Secret(ctx, pod.Namespace, name)
	if err != nil {
		if apierrors.IsNotFound(err) && optional {
			return nil, nil
		}
		return nil, err
	}
	return pick(secret.Data, items, mode, optional)
}

// pick makes files of all keys, or of those that items name.
func pick(data map[string][]byte, items []v1.KeyToPath, mode *int32, optional bool) ([]file, error) {
	var files []file
	if len(items) == 0 {
		for _, key := range slices.Sorted(maps.Keys(data)) {
			if err := checkPath(key); err != nil {
				return nil, err
			}
			files = append(files, file{path: key, data: data[key], mode: modeOf(nil, mode)})
		}
		return files, nil
	}
	for _, item := range items {
		content, ok := data[item.Key]
		if !ok {
			if optional {
				continue
			}
			return nil, fmt.Errorf("references non-existent config key: %s", item.Key)
		}
		if err := checkPath(item.Path); err != nil {
			return nil, err
		}
		files = append(files, file{path: path.Clean(item.Path), data: content, mode: modeOf(item.Mode, mode)})
	}
	return files, nil
}

// checkPath refuses a path that could leave the volume or meet the files by which it is updated.
func checkPath(p string) error {
	switch {
	case p == "":
		return errors.New("invalid path: must not be empty")
	case path.IsAbs(p):
		return fmt.Errorf("invalid path %q: must be relative", p)
	case slices.Contains(strings.Split(p, "/"), ".."):
		return fmt.Errorf("invalid path %q: must not contain '..'", p)
	case strings.HasPrefix(p, ".."):
		return fmt.Errorf("invalid path %q: must not start with '..'", p)
	}
	return nil
}

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

// projectedFiles brings several sources into one volume.
func (m *Manager) projectedFiles(ctx context.Context, pod *v1.Pod, src *v1.ProjectedVolumeSource) ([]file, error) {
	var all []file
	for i := range src.Sources {
		s := &src.Sources[i]
		var files []file
		var err error
		switch {
		case s.ConfigMap != nil:
			files, err = m.configMap(ctx, pod, s.ConfigMap.Name, s.ConfigMap.Items, src.DefaultMode, isTrue(s.ConfigMap.Optional))
		case s.Secret != nil:
			files, err = m.secret(ctx, pod, s.Secret.Name, s.Secret.Items, src.DefaultMode, isTrue(s.Secret.Optional))
		case s.DownwardAPI != nil:
			files, err = m.downwardFiles(pod, s.DownwardAPI.Items, src.DefaultMode)
		case s.ServiceAccountToken != nil:
			err = errors.New("projected source serviceAccountToken is not supported by this node")
		case s.ClusterTrustBundle != nil:
			err = errors.New("projected source clusterTrustBundle is not supported by this node")
		default:
			err = fmt.Errorf("projected source %d is not supported by this node", i)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, files...)
	}
	return all, nil
}
