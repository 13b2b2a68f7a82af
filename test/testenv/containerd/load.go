package containerd

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// LoadImages puts the images of package images into the instance.
func (i *Instance) LoadImages(ctx context.Context) error {
	client, err := i.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return LoadImages(ctx, client, i.Socket(), ctrOf(i.Binary))
}

// LoadImages puts the images of package images into the containerd behind socket and waits until
// its CRI lists them: the CRI plugin learns of an import by an event.
func LoadImages(ctx context.Context, client *cri.Client, socket, ctr string) error {
	archive, err := images.Archive(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, ctr, "--address", socket, "--namespace", "k8s.io", "images", "import",
		"--snapshotter", "overlayfs", archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import %s: %w: %s", archive, err, out)
	}
	ctx, cancel := daemon.Within(ctx)
	defer cancel()
	return daemon.Poll(ctx, func() error {
		for _, name := range images.Names() {
			status, err := client.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{
				Image: &runtimeapi.ImageSpec{Image: name},
			})
			if err != nil {
				return err
			}
			if status.GetImage() == nil {
				return fmt.Errorf("image %s was imported, but the runtime does not list it", name)
			}
		}
		return nil
	})
}

// ctrOf finds the ctr that belongs to a containerd.
func ctrOf(binary string) string {
	if path, err := exec.LookPath(filepath.Join(filepath.Dir(binary), "ctr")); err == nil {
		return path
	}
	return "ctr"
}
