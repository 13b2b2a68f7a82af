package volume

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

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
	case s.ServiceAccountToken != nil:
		return m.tokenFiles(ctx, pod, s.ServiceAccountToken, mode)
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

// tokenFiles makes the file of a token. It is for those alone who run as the pod's user or group, where that is
// known.
func (m *Manager) tokenFiles(ctx context.Context, pod *v1.Pod, ask *v1.ServiceAccountTokenProjection, mode *int32) ([]file, error) {
	if err := checkPath(ask.Path); err != nil {
		return nil, err
	}
	token, err := m.opts.Tokens.Token(ctx, pod, ask)
	if err != nil {
		return nil, err
	}
	f := file{path: path.Clean(ask.Path), data: []byte(token), mode: modeOf(nil, mode)}
	user, one := onlyUser(pod)
	if one {
		f.uid = int(user)
	}
	if one || fsGroup(pod) != nil {
		f.mode = 0o600
	}
	return []file{f}, nil
}

// onlyUser returns the user that all containers of a pod run as, where the pod says so.
func onlyUser(pod *v1.Pod) (user int64, one bool) {
	var base *int64
	if sc := pod.Spec.SecurityContext; sc != nil {
		base = sc.RunAsUser
	}
	for i, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		own := base
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			own = c.SecurityContext.RunAsUser
		}
		if own == nil || i > 0 && *own != user {
			return 0, false
		}
		user = *own
	}
	return user, len(pod.Spec.Containers) > 0
}
