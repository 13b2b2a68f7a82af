package volume

import (
	"context"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func secretSource(src *v1.SecretVolumeSource, left *room) source {
	return source{src.SecretName, src.Items, defaults{src.DefaultMode, src.DefaultUser, left}, isTrue(src.Optional)}
}

// secretFiles makes the files of a secret. An optional one that is missing has none.
func (m *Manager) secretFiles(ctx context.Context, namespace string, src source) ([]file, error) {
	secret, err := m.opts.Objects.Secret(ctx, namespace, src.name)
	if err != nil {
		if apierrors.IsNotFound(err) && src.optional {
			return nil, nil
		}
		return nil, notFound(err, "secret", src.name)
	}
	return pick(secret.Data, src, "references non-existent secret key")
}
