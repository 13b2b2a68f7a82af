package repair

import (
	"context"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
)

// CRI is the Runtime of a CRI client.
type CRI struct {
	Client *cri.Client
	State  *imagegc.CRI
}

// RemoveContainer implements Runtime.
func (r *CRI) RemoveContainer(ctx context.Context, id string) error {
	return r.Client.DeleteContainer(ctx, id)
}

// RemoveImage implements Runtime.
func (r *CRI) RemoveImage(ctx context.Context, id string) error { return r.State.Remove(ctx, id) }

// ContainersOf implements Runtime.
func (r *CRI) ContainersOf(ctx context.Context, image string) ([]string, error) {
	images, err := r.Images(ctx)
	if err != nil {
		return nil, err
	}
	list, err := r.Client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	return containersOf(list.GetContainers(), images, image), nil
}

// containersOf returns the ids of the containers that are made of an image. A runtime calls it by its id or by one of
// its names.
func containersOf(list []*runtimeapi.Container, images []Image, image string) []string {
	names := []string{image}
	for _, i := range images {
		if i.ID == image {
			names = append(names, i.Names...)
		}
	}
	var ids []string
	for _, c := range list {
		if slices.ContainsFunc([]string{c.GetImageId(), c.GetImageRef(), c.GetImage().GetImage()},
			func(name string) bool { return name != "" && slices.Contains(names, name) }) {
			ids = append(ids, c.GetId())
		}
	}
	return ids
}

// LayersAt implements Runtime.
func (r *CRI) LayersAt(ctx context.Context) (string, error) { return r.State.Mountpoint(ctx) }

// Images implements Runtime.
func (r *CRI) Images(ctx context.Context) ([]Image, error) {
	list, err := r.State.Images(ctx)
	if err != nil {
		return nil, err
	}
	named, err := r.State.Sandbox(ctx)
	if err != nil {
		return nil, err
	}
	return imagesOf(list, named), nil
}

// imagesOf says which images are of sandboxes: newer runtimes pin what sandboxes are made of, older ones tell its name.
func imagesOf(list []imagegc.Image, named []string) []Image {
	out := make([]Image, len(list))
	for i, image := range list {
		sandbox := image.Pinned || slices.ContainsFunc(image.Names, func(name string) bool {
			return slices.Contains(named, name)
		})
		out[i] = Image{ID: image.ID, Names: image.Names, Sandbox: sandbox}
	}
	return out
}
