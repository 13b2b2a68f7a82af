package volume

import (
	"context"
	"maps"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func configMapSource(src *v1.ConfigMapVolumeSource) source {
	return source{src.Name, src.Items, defaults{src.DefaultMode, src.DefaultUser}, isTrue(src.Optional)}
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
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, v := range cm.Data {
		data[k] = []byte(v)
	}
	maps.Copy(data, cm.BinaryData)
	return pick(data, src, "configmap references non-existent config key")
}
