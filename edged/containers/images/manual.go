package images

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pull pulls an image for no pod in particular, and returns the name by which the runtime was asked for it and how the
// pull went. slow is called now and then with the progress.
func (p *Puller) Pull(
	ctx context.Context, image string, secrets []v1.Secret, slow func(Progress),
) (string, Progress, error) {
	if IsID(image) {
		return "", Progress{}, fmt.Errorf("%s is the ID of an image; an image is pulled by its name", image)
	}
	name, err := WithDefaultTag(image)
	if err != nil {
		return "", Progress{}, err
	}
	creds, err := credentials(secrets, p.node(), name)
	if err != nil {
		return "", Progress{}, err
	}
	_, _, done, err := p.share(ctx, request{spec: &runtimeapi.ImageSpec{Image: name}, creds: creds, slow: slow})
	return name, done, err
}
