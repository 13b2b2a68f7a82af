package edged

import (
	"cmp"
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/clock"
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
		klog.InfoS("The device went down without notice; images are compared with what they were unpacked from when " +
			"a container fails")
	}
	return repair.New(repair.Options{
		Store:    e.client,
		Runtime:  &repair.CRI{Client: e.client, State: &imagegc.CRI{Client: e.client}},
		Pull:     e.pullAgain,
		Load:     e.loadArchive,
		Archives: repair.ArchiveDir(e.opts.RootDir),
		Recorder: e.recorder,
		Health:   e.health,
		Record:   e.checked,
	})
}

// pullAgain asks the registry for an image.
func (e *Edged) pullAgain(ctx context.Context, image string, secrets []v1.Secret) error {
	_, _, err := e.puller.Pull(ctx, image, secrets, nil)
	return err
}

// loadArchive gives an archive of images to the runtime.
func (e *Edged) loadArchive(ctx context.Context, file, name string) error {
	endpoint := cmp.Or(e.opts.ImageEndpoint, e.opts.RuntimeEndpoint)
	return images.LoadAt(ctx, endpoint, e.client, e.client.Images, file, name)
}
