package volume

import (
	"context"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func configMapSource(src *v1.ConfigMapVolumeSource, left *room) source {
	return source{src.Name, src.Items, defaults{src.DefaultMode, src.DefaultUser, left}, isTrue(src.Optional)}
}

// configMapFiles makes the files of a configMap. An optional one that is missing has none.
func (m *Manager) configMapFiles(ctx context.Context, namespace string, src source) ([]file, error) {
	cm, err := m.opts.Objects.ConfigMap(ctx, namespace, src.name)
	if err != nil {
		if apierrors.IsNotFound(err) && src.optional {
			return nil, nil
		}
		return nil, notFound(err, "configmap", src.name)
	}
	data := maps.Clone(cm.BinaryData)
	if data == nil {
		data = map[string][]byte{}
	}
	for k, v := range cm.Data {
		if len(src.items) == 0 || slices.ContainsFunc(src.items, func(i v1.KeyToPath) bool { return i.Key == k }) {
			data[k] = []byte(v)
		}
	}
	return pick(data, src, "configmap references non-existent config key")
}
