package main

import (
	"archive/tar"
	"flag"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// cloudcore is the program of the image. It must need no C library.
var cloudcore = flag.String("cloudcore", "", "the static cloudcore to put into the image; built if empty")

var long = flag.Bool("long", false, "also run the image on a containerd")

// TestArchive: an archive and a push hold the program and nothing else, as users run it. The program is any file.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	binary, archive, tag := filepath.Join(dir, "cloudcore"), filepath.Join(dir, "image.tar"),
		"edgecore.local/cloudcore:test"
	if err := os.WriteFile(binary, []byte("a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), binary, "arm64", "65532:65532", tag, archive, ""); err != nil {
		t.Fatal(err)
	}
	ref, err := name.NewTag(tag)
	if err != nil {
		t.Fatal(err)
	}
	archived, err := tarball.ImageFromPath(archive, &ref)
	if err != nil {
		t.Fatal(err)
	}
	checkImage(t, archived, "a program", "arm64")

	server := httptest.NewServer(registry.New())
	defer server.Close()
	to := strings.TrimPrefix(server.URL, "http://") + "/cloudcore:test"
	if err := run(t.Context(), binary, "arm64", "65532:65532", tag, archive, to); err != nil {
		t.Fatal(err)
	}
	if ref, err = name.NewTag(to); err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	checkImage(t, pushed, "a program", "arm64")
	err = run(t.Context(), filepath.Join(dir, "none"), "amd64", "0:0", tag, archive, "")
	if err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("run without a program: %v, want an error that names make build", err)
	}
}

// checkImage checks what an image holds and how it is run.
func checkImage(t *testing.T, img v1.Image, program, arch string) {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := config.Architecture+" "+config.Config.User+" "+config.Config.Entrypoint[0],
		arch+" 65532:65532 /cloudcore"; got != want {
		t.Errorf("the image is %q, want %q", got, want)
	}
	if diff := cmp.Diff([]string{"PATH=/"}, config.Config.Env); diff != "" {
		t.Errorf("environment of the image (-want +got):\n%s", diff)
	}
	files := tar.NewReader(mutate.Extract(img))
	header, err := files.Next()
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(files)
	if err != nil || header.Name != "cloudcore" || header.Mode != 0o755 || string(data) != program {
		t.Errorf("the image has %s of mode %o with %q, %v; want cloudcore of mode 755 with %q",
			header.Name, header.Mode, data, err, program)
	}
	if header, err := files.Next(); err != io.EOF {
		t.Errorf("the image has %+v, too, %v; want nothing else", header, err)
	}
}

// TestImage: what is archived runs on a real containerd.
func TestImage(t *testing.T) {
	if !*long {
		t.Skip("it needs a build and a containerd; -long runs it")
	}
	dir, binary := t.TempDir(), *cloudcore
	if binary == "" {
		binary = filepath.Join(dir, "cloudcore")
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/cloudcore")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v, want no error\n%s", err, out)
		}
	}
	archive, tag := filepath.Join(dir, "image.tar"), "edgecore.local/cloudcore:test"
	if err := run(t.Context(), binary, "amd64", "65532:65532", tag, archive, ""); err != nil {
		t.Fatal(err)
	}
	instance := testenv.StartContainerd(t, testenv.Options{})
	if out, err := exec.CommandContext(t.Context(), "ctr", "--address", instance.Socket(), "-n", "k8s.io", "images",
		"import", archive).CombinedOutput(); err != nil {
		t.Fatalf("ctr images import: %v, want no error\n%s", err, out)
	}
	client := testenv.Dial(t, instance)
	box := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "u"},
		LogDirectory: filepath.Join(dir, "logs"),
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: instance.CgroupRoot() + "/p"},
	}
	sandbox, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: box})
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the runtime to list the image", func() error { // the CRI plugin learns of an import by an event
		status, err := client.Images.ImageStatus(t.Context(),
			&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: tag}})
		if err == nil && status.GetImage() == nil {
			err = fmt.Errorf("the runtime does not list %s", tag)
		}
		return err
	})
	// By its entrypoint as in the Deployment, and by its name alone as with kubectl exec.
	for name, command := range map[string][]string{"entrypoint": nil, "name": {"cloudcore"}} {
		c, err := client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId:  sandbox.PodSandboxId,
			SandboxConfig: box,
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: name},
				Image:    &runtimeapi.ImageSpec{Image: tag},
				Command:  command,
				Args:     []string{"--version"},
				LogPath:  name + ".log",
				Linux: &runtimeapi.LinuxContainerConfig{
					SecurityContext: &runtimeapi.LinuxContainerSecurityContext{ReadonlyRootfs: true},
				},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{
			ContainerId: c.ContainerId,
		}); err != nil {
			t.Fatalf("start by %s: %v", name, err)
		}
		wait.Until(t, "the version in the log of the container", func() error {
			data, err := os.ReadFile(filepath.Join(dir, "logs", name+".log"))
			if err == nil && !strings.Contains(string(data), "CloudCore ") {
				err = fmt.Errorf("it says %q", data)
			}
			return err
		})
	}
}
