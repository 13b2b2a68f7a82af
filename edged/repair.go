package edged

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/clock"
	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/edged/imagegc"
	"github.com/edgecore-io/edgecore/edged/images"
	"github.com/edgecore-io/edgecore/edged/repair"
)

// This file is what package repair gets to work with.

// newRepairer makes the repairer of images, and its record of this boot.
func (e *Edged) newRepairer() *repair.Repairer {
	boot, err := clock.ReadBoot()
	if err != nil {
		klog.ErrorS(err, "Whether the device went down without notice is not known")
	}
	if e.checked, err = repair.OpenRecord(e.opts.RootDir, boot.ID); err != nil {
		klog.ErrorS(err, "Which images were found whole is forgotten when the agent ends")
	}
	if e.checked.Unclean() {
		klog.InfoS("The device went down without notice; images are compared with what they were unpacked from when a container fails")
	}
	return repair.New(repair.Options{
		Store: e.client, Runtime: &imageRuntime{e.client, &imagegc.CRI{Client: e.client}}, Pull: e.pullAgain, Load: e.loadArchive,
		Archives: repair.ArchiveDir(e.opts.RootDir), Recorder: e.recorder, Health: e.health, Record: e.checked,
	})
}

// pullAgain asks the registry for an image.
func (e *Edged) pullAgain(ctx context.Context, image string, secrets []v1.Secret) error {
	_, _, err := e.puller.Pull(ctx, image, secrets, nil)
	return err
}

// loadArchive gives an archive of images to the runtime.
func (e *Edged) loadArchive(ctx context.Context, file, name string) error {
	endpoint := e.opts.ImageEndpoint
	if endpoint == "" {
		endpoint = e.opts.RuntimeEndpoint
	}
	socket, err := cri.SocketPath(endpoint)
	if err != nil {
		return err
	}
	l := images.Loader{Runtime: e.client, Images: e.client.Images, Socket: socket}
	if err := l.Load(ctx, file); err != nil {
		return err
	}
	return l.Await(ctx, name)
}

// imageRuntime is CRI, as package repair wants it.
type imageRuntime struct {
	client *cri.Client
	state  *imagegc.CRI
}

func (r *imageRuntime) RemoveContainer(ctx context.Context, id string) error {
	_, err := r.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	if cri.IsNotFound(err) {
		return nil
	}
	return err
}

func (r *imageRuntime) RemoveImage(ctx context.Context, id string) error {
	return r.state.Remove(ctx, id)
}

func (r *imageRuntime) LayersAt(ctx context.Context) (string, error) { return r.state.Mountpoint(ctx) }

// Images implements repair.Runtime. Newer runtimes pin what sandboxes are made of, older ones tell its name.
func (r *imageRuntime) Images(ctx context.Context) ([]repair.Image, error) {
	list, err := r.state.Images(ctx)
	if err != nil {
		return nil, err
	}
	named, err := r.state.Sandbox(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]repair.Image, len(list))
	for i, image := range list {
		sandbox := image.Pinned || slices.ContainsFunc(image.Names, func(name string) bool { return slices.Contains(named, name) })
		out[i] = repair.Image{ID: image.ID, Names: image.Names, Sandbox: sandbox}
	}
	return out, nil
}
