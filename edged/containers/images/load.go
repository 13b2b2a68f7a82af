package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
)

// LoadWait is how long a runtime may take to list what was loaded.
const LoadWait = 30 * time.Second

// Loader gives archives of images to a runtime. CRI has no word for that, so this uses ctr, which is part of every
// containerd.
type Loader struct {
	Runtime runtimeapi.RuntimeServiceClient
	Images  runtimeapi.ImageServiceClient
	// Socket is the path of the runtime's socket.
	Socket string
}

// Load gives an archive to the runtime, which unpacks it.
func (l Loader) Load(ctx context.Context, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	version, err := l.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return fmt.Errorf("ask the container runtime for its name: %w", err)
	}
	if name := version.GetRuntimeName(); name != "containerd" {
		return fmt.Errorf("the container runtime is %s, and only containerd is supported here; for CRI-O: skopeo "+
			"copy docker-archive:%s containers-storage:NAME", name, file)
	}
	ctr, err := exec.LookPath("ctr")
	if err != nil {
		return fmt.Errorf("%w; it is part of containerd (Debian: apt install containerd)", err)
	}
	plain, err := Uncompressed(f)
	if err != nil {
		return err
	}
	return l.runCtr(ctx, ctr, plain)
}

func (l Loader) runCtr(ctx context.Context, ctr string, archive io.Reader) error {
	args := []string{"--address", l.Socket, "--namespace", "k8s.io", "images", "import"}
	if snapshotter := l.snapshotter(ctx); snapshotter != "" {
		args = append(args, "--snapshotter", snapshotter)
	} else {
		args = append(args, "--no-unpack") // the runtime does it when a container needs it
	}
	cmd := exec.CommandContext(ctx, ctr, append(args, "-")...)
	cmd.Stdin = archive
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(errors.New(strings.TrimSpace(string(out))), err)
	}
	return nil
}

// snapshotter asks containerd what it unpacks images with; "" where it does not say.
func (l Loader) snapshotter(ctx context.Context) string {
	resp, err := l.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return ""
	}
	var doc struct {
		Containerd struct {
			Snapshotter string `json:"snapshotter"`
		} `json:"containerd"`
	}
	if json.Unmarshal([]byte(resp.GetInfo()["config"]), &doc) != nil {
		return ""
	}
	return doc.Containerd.Snapshotter
}

// Await waits until the runtime lists an image that was loaded: it learns of that by an event.
func (l Loader) Await(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, LoadWait)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		resp, err := l.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{
			Image: &runtimeapi.ImageSpec{Image: name},
		})
		if err == nil && resp.GetImage() != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(
				fmt.Errorf("image %s was loaded, and the runtime does not list it; is it for this device's processor?",
					name), err)
		case <-again.C:
		}
	}
}

// LoadAt gives an archive of images to the runtime at an endpoint, and waits until it has the image of a name.
func LoadAt(
	ctx context.Context, endpoint string, client runtimeapi.RuntimeServiceClient, images runtimeapi.ImageServiceClient,
	file, name string,
) error {
	socket, err := cri.SocketPath(endpoint)
	if err != nil {
		return err
	}
	l := Loader{Runtime: client, Images: images, Socket: socket}
	if err := l.Load(ctx, file); err != nil {
		return err
	}
	return l.Await(ctx, name)
}
