package imagegc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/images"
)

// CRI is the State of a runtime behind a CRI socket.
type CRI struct {
	Client *cri.Client

	mu sync.Mutex
	// mountpoint is where the runtime keeps images, once it has said so.
	mountpoint string
}

// Images implements State.
func (c *CRI) Images(ctx context.Context) ([]Image, error) {
	resp, err := c.Client.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	list := make([]Image, 0, len(resp.GetImages()))
	for _, i := range resp.GetImages() {
		list = append(list, Image{
			ID:     i.GetId(),
			Names:  slices.Concat(i.GetRepoTags(), i.GetRepoDigests()),
			Size:   i.GetSize(),
			Pinned: i.GetPinned(),
		})
	}
	return list, nil
}

// Resolve implements State. A name that the runtime cannot look up stands for no image.
func (c *CRI) Resolve(ctx context.Context, name string) (string, error) {
	resp, err := c.Client.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{
		Image: &runtimeapi.ImageSpec{Image: name},
	})
	if err != nil {
		if cri.IsDown(err) || ctx.Err() != nil {
			return "", err
		}
		return "", nil
	}
	return resp.GetImage().GetId(), nil
}

// InUse implements State.
func (c *CRI) InUse(ctx context.Context) ([]string, error) {
	resp, err := c.Client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, k := range resp.GetContainers() {
		names = append(names, k.GetImageId(), k.GetImageRef(), k.GetImage().GetImage(),
			k.GetImage().GetUserSpecifiedImage())
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Sandbox implements State. containerd before 2.0 tells its sandbox image with its configuration; others pin theirs.
func (c *CRI) Sandbox(ctx context.Context) ([]string, error) {
	resp, err := c.Client.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return nil, err
	}
	if name := sandboxImage(resp.GetInfo()["config"]); name != "" {
		return []string{name}, nil
	}
	return nil, nil
}

// sandboxImage finds the sandbox's image in a runtime's configuration; "" where it is not said.
func sandboxImage(config string) string {
	var doc struct {
		SandboxImage string `json:"sandboxImage"`
	}
	if config == "" || json.Unmarshal([]byte(config), &doc) != nil {
		return ""
	}
	return doc.SandboxImage
}

// Remove implements State. It is not an error if the image is already gone.
func (c *CRI) Remove(ctx context.Context, id string) error {
	_, err := c.Client.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: id}})
	if cri.IsNotFound(err) {
		return nil
	}
	return err
}

// Usage implements State. The runtime says where the images are, and the kernel how full that file system is.
func (c *CRI) Usage(ctx context.Context) (Usage, error) {
	mountpoint, err := c.Mountpoint(ctx)
	if err != nil {
		return Usage{}, err
	}
	u, err := statfs(mountpoint)
	if err != nil { // it may have moved
		c.mu.Lock()
		c.mountpoint = ""
		c.mu.Unlock()
	}
	return u, err
}

// Mountpoint is the folder in which the runtime keeps its images.
func (c *CRI) Mountpoint(ctx context.Context) (string, error) {
	c.mu.Lock()
	known := c.mountpoint
	c.mu.Unlock()
	if known != "" {
		return known, nil
	}
	resp, err := c.Client.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return "", fmt.Errorf("file system of the images: %w", err)
	}
	for _, fs := range resp.GetImageFilesystems() {
		if path := fs.GetFsId().GetMountpoint(); path != "" {
			c.mu.Lock()
			c.mountpoint = path
			c.mu.Unlock()
			return path, nil
		}
	}
	return "", errors.New("file system of the images: the runtime names none")
}

// Fetches implements images.Meter. Only containerd reports what it fetches.
func (c *CRI) Fetches(ctx context.Context) ([]images.Fetch, error) {
	list, err := c.Client.Ingests(ctx)
	if cri.IsUnimplemented(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("blobs being written: %w", err)
	}
	out := make([]images.Fetch, len(list))
	for n, in := range list {
		out[n] = images.Fetch{Ref: in.Ref, Offset: in.Offset, Total: in.Total}
	}
	return out, nil
}

// Room implements images.Meter.
func (c *CRI) Room(ctx context.Context) (uint64, error) {
	u, err := c.Usage(ctx)
	return u.Available, err
}

func statfs(path string) (Usage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Usage{}, fmt.Errorf("measure %s: %w", path, err)
	}
	block := uint64(st.Frsize)
	if block == 0 {
		block = uint64(st.Bsize)
	}
	return Usage{Mountpoint: path, Capacity: st.Blocks * block, Available: st.Bavail * block}, nil
}
