package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

// ensureSandboxImage gives someone else's containerd the sandbox image that its configuration names, if it
// has none: our pause image, under that name. Without a registry no pod would start.
func ensureSandboxImage(ctx context.Context, client *cri.Client, socket string) error {
	status, err := client.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return err
	}
	var config struct {
		SandboxImage string `json:"sandboxImage"`
	}
	// A runtime that does not tell has its reasons, and its own image.
	if err := json.Unmarshal([]byte(status.GetInfo()["config"]), &config); err != nil || config.SandboxImage == "" {
		return nil
	}
	have, err := client.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{
		Image: &runtimeapi.ImageSpec{Image: config.SandboxImage},
	})
	if err != nil || have.GetImage() != nil {
		return err
	}
	say("the runtime has no sandbox image %s; giving it our pause image under that name", config.SandboxImage)
	cmd := exec.CommandContext(ctx, "ctr", "--address", socket, "--namespace", "k8s.io", "images", "tag", images.Pause,
		config.SandboxImage)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("tag the sandbox image: %w: %s", err, out)
	}
	return nil
}
