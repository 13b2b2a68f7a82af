package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/apiendpoint"
)

// projectedFiles brings several sources into one volume.
func (m *Manager) projectedFiles(
	ctx context.Context, pod *v1.Pod, src *v1.ProjectedVolumeSource, left *room,
) ([]file, error) {
	var all []file
	for i := range src.Sources {
		files, err := m.projection(ctx, pod, &src.Sources[i], defaults{src.DefaultMode, src.DefaultUser, left})
		if err != nil {
			return nil, err
		}
		if m.opts.APIEndpoint.Trusts(pod, src) {
			if err := m.addCA(src.Sources[i].ConfigMap, files, left); err != nil {
				return nil, err
			}
		}
		all = append(all, files...)
	}
	return all, nil
}

// addCA adds the CA of the API endpoint to the files that have the cluster's.
func (m *Manager) addCA(from *v1.ConfigMapProjection, files []file, left *room) error {
	if from == nil || from.Name != apiendpoint.RootCA {
		return nil
	}
	paths := []string{apiendpoint.CAKey}
	if len(from.Items) > 0 {
		paths = nil
		for _, item := range from.Items {
			if item.Key == apiendpoint.CAKey {
				paths = append(paths, path.Clean(item.Path))
			}
		}
	}
	for i := range files {
		if !slices.Contains(paths, files[i].path) {
			continue
		}
		cluster := len(files[i].data)
		files[i].data = m.opts.APIEndpoint.WithCA(files[i].data)
		if err := left.reserve(&file{data: files[i].data[cluster:]}); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) projection(ctx context.Context, pod *v1.Pod, s *v1.VolumeProjection, d defaults) ([]file, error) {
	switch {
	case s.ConfigMap != nil:
		return m.configMapFiles(ctx, pod.Namespace, source{
			s.ConfigMap.Name, s.ConfigMap.Items, d, isTrue(s.ConfigMap.Optional),
		})
	case s.Secret != nil:
		return m.secretFiles(ctx, pod.Namespace, source{s.Secret.Name, s.Secret.Items, d, isTrue(s.Secret.Optional)})
	case s.DownwardAPI != nil:
		return m.downwardFiles(pod, s.DownwardAPI.Items, d)
	case s.ServiceAccountToken != nil:
		return m.tokenFiles(ctx, pod, s.ServiceAccountToken, d)
	case s.ClusterTrustBundle != nil:
		return m.bundleFiles(ctx, pod, s.ClusterTrustBundle, d)
	}
	return nil, errors.New("projected source is not supported") // Unsupported has said so before
}

// downwardFiles makes files of fields of the pod and of resources of its containers.
func (m *Manager) downwardFiles(pod *v1.Pod, items []v1.DownwardAPIVolumeFile, d defaults) ([]file, error) {
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
		f, err := d.file(path.Clean(item.Path), []byte(value), item.Mode, item.User)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// tokenFiles makes the file of a token.
func (m *Manager) tokenFiles(
	ctx context.Context, pod *v1.Pod, ask *v1.ServiceAccountTokenProjection, d defaults,
) ([]file, error) {
	if err := checkPath(ask.Path); err != nil {
		return nil, err
	}
	token, renewAt, err := m.opts.Tokens.Token(ctx, pod, ask)
	if err != nil {
		return nil, err
	}
	f, err := d.file(path.Clean(ask.Path), []byte(token), nil, ask.User)
	if err != nil {
		return nil, err
	}
	f.renewAt = renewAt
	f.private(pod, cmp.Or(ask.User, d.user))
	return []file{f}, nil
}

// private makes a file one for its owner alone, or the pod's group: for the owner that is asked for, or the user whom
// all of the pod run as, where that is known.
func (f *file) private(pod *v1.Pod, owner *int64) {
	user, one := onlyUser(pod)
	if owner == nil && one {
		f.uid = int(user)
	}
	if owner != nil || one || fsGroup(pod) != nil {
		f.mode = 0o600
	}
}

// onlyUser returns the user that all containers of a pod run as, where the pod says so.
func onlyUser(pod *v1.Pod) (user int64, one bool) {
	var base *int64
	if sc := pod.Spec.SecurityContext; sc != nil {
		base = sc.RunAsUser
	}
	var contexts []*v1.SecurityContext
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		contexts = append(contexts, c.SecurityContext)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		contexts = append(contexts, c.SecurityContext)
	}
	for i, sc := range contexts {
		own := base
		if sc != nil && sc.RunAsUser != nil {
			own = sc.RunAsUser
		}
		if own == nil || i > 0 && *own != user {
			return 0, false
		}
		user = *own
	}
	return user, len(pod.Spec.Containers) > 0
}
