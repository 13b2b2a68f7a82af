package main

import (
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
)

// TestImage: what is archived runs on a real containerd, and what is pushed can be pulled.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "cloudcore")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/cloudcore")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	archive, tag := filepath.Join(dir, "image.tar"), "edgecore.local/cloudcore:test"
	if err := run(t.Context(), binary, "amd64", tag, archive, ""); err != nil {
		t.Fatal(err)
	}
	instance := testenv.StartContainerd(t, testenv.Options{})
	if out, err := exec.CommandContext(t.Context(), "ctr", "--address", instance.Socket(), "-n", "k8s.io", "images", "import", archive).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	client := testenv.Dial(t, instance)
	box := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "u"}, LogDirectory: filepath.Join(dir, "logs"),
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: instance.CgroupRoot() + "/p"},
	}
	sandbox, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: box})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, time.Minute, func() error { // the CRI plugin learns of an import by an event
		status, err := client.Images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: tag}})
		if err == nil && status.GetImage() == nil {
			err = fmt.Errorf("the runtime does not list %s", tag)
		}
		return err
	})
	c, err := client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox.PodSandboxId, SandboxConfig: box, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: tag}, Args: []string{"--version"}, LogPath: "c.log",
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{ReadonlyRootfs: true}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, 30*time.Second, func() error {
		data, err := os.ReadFile(filepath.Join(dir, "logs", "c.log"))
		if err == nil && !strings.Contains(string(data), "CloudCore ") {
			err = fmt.Errorf("it says %q", data)
		}
		return err
	})

	server := httptest.NewServer(registry.New())
	defer server.Close()
	pushed := strings.TrimPrefix(server.URL, "http://") + "/cloudcore:test"
	if err := run(t.Context(), binary, "amd64", tag, archive, pushed); err != nil {
		t.Error(err)
	}
	if err := run(t.Context(), filepath.Join(dir, "none"), "amd64", tag, archive, ""); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("without a program: %v", err)
	}
}
