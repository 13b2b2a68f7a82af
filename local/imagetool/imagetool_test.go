package imagetool

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
	"github.com/edgecore-io/edgecore/edged/containers/images"
	"github.com/edgecore-io/edgecore/edged/containers/runtime/fakecri"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// fakeAgent is an agent that answers, or fails with err.
type fakeAgent struct {
	info server.Info
	pods []v1.Pod
	err  error
}

func (a *fakeAgent) Status(context.Context) (*server.Info, error) { return &a.info, a.err }
func (a *fakeAgent) Pods(context.Context) (*v1.PodList, error) {
	return &v1.PodList{Items: a.pods}, a.err
}

// fakeState is a runtime with images of 10 MiB on a file system of 100 MiB. The method of the name in fails fails as if
// the runtime were down.
type fakeState struct {
	images  []imagegc.Image
	used    []string
	sandbox []string
	fails   string
}

func (s *fakeState) fail(method string) error {
	if s.fails == method {
		return status.Error(codes.Unavailable, "connection refused")
	}
	return nil
}

func (s *fakeState) Images(context.Context) ([]imagegc.Image, error) {
	return slices.Clone(s.images), s.fail("Images")
}
func (s *fakeState) InUse(context.Context) ([]string, error)   { return s.used, s.fail("InUse") }
func (s *fakeState) Sandbox(context.Context) ([]string, error) { return s.sandbox, s.fail("Sandbox") }
func (s *fakeState) Resolve(context.Context, string) (string, error) {
	return "", s.fail("Resolve")
}
func (s *fakeState) Usage(context.Context) (imagegc.Usage, error) {
	free := uint64(100-10*len(s.images)) << 20
	return imagegc.Usage{Mountpoint: "/images", Capacity: 100 << 20, Available: free}, s.fail("Usage")
}
func (s *fakeState) Remove(_ context.Context, id string) error {
	s.images = slices.DeleteFunc(s.images, func(i imagegc.Image) bool { return i.ID == id })
	return s.fail("Remove")
}
func (s *fakeState) Fetches(context.Context) ([]images.Fetch, error) { return nil, nil }
func (s *fakeState) Room(context.Context) (uint64, error)            { return 0, nil }

// fakeImages is the image service of a runtime, which pulls whatever it is asked for, or fails with err.
type fakeImages struct {
	runtimeapi.ImageServiceClient
	pulls []*runtimeapi.PullImageRequest
	// tags are the names of each image.
	tags []string
	err  error
}

func (f *fakeImages) PullImage(
	_ context.Context, r *runtimeapi.PullImageRequest, _ ...grpc.CallOption,
) (*runtimeapi.PullImageResponse, error) {
	f.pulls = append(f.pulls, r)
	return &runtimeapi.PullImageResponse{ImageRef: "sha256:1"}, f.err
}

func (f *fakeImages) ImageStatus(
	context.Context, *runtimeapi.ImageStatusRequest, ...grpc.CallOption,
) (*runtimeapi.ImageStatusResponse, error) {
	return &runtimeapi.ImageStatusResponse{
		Image: &runtimeapi.Image{Id: "sha256:1", Size: 4096, RepoTags: f.tags},
	}, nil
}

// newTool returns a tool on fakes: of five images, a container uses one, a sandbox one, the keep list has one, and pods
// need one if the names from PodImages are given.
func newTool(t *testing.T) (*Tool, *fakeState, *fakeImages) {
	t.Helper()
	image := func(name string) imagegc.Image {
		return imagegc.Image{ID: "sha256:" + name, Names: []string{"example.com/" + name + ":1"}, Size: 10 << 20}
	}
	s := &fakeState{
		images:  []imagegc.Image{image("unused"), image("pod"), image("kept"), image("container"), image("pause")},
		used:    []string{"sha256:container"},
		sandbox: []string{"example.com/pause:1"},
	}
	_, client := fakecri.Direct()
	service := &fakeImages{}
	client.Images = service
	dir := t.TempDir()
	tool := &Tool{
		agent:    &fakeAgent{},
		client:   client,
		state:    s,
		endpoint: "unix:///run/test.sock",
		rootDir:  dir,
		keepFile: imagegc.KeepFile(dir),
	}
	if err := imagegc.AddKeep(tool.keepFile, "example.com/kept:*"); err != nil {
		t.Fatal(err)
	}
	return tool, s, service
}

func TestOpen(t *testing.T) {
	own := &v1alpha2.Default().Modules.Edged
	own.RootDirectory = "/data/kubelet"
	tool, err := Open(own, &fakeAgent{})
	if err != nil {
		t.Fatal(err)
	}
	defer tool.Close()
	if want := "/data/kubelet/images.keep"; tool.keepFile != want {
		t.Errorf("keep list = %s, want %s", tool.keepFile, want)
	}
	// A pull by hand finds the node's credentials where the agent finds them.
	if got := tool.pullOptions().CredentialsDir; got != "/data/kubelet" {
		t.Errorf("folder of the node's credentials = %q, want /data/kubelet", got)
	}
	own.TailoredKubeletConfig.ContainerRuntimeEndpoint = "tcp://192.0.2.1:1"
	if _, err := Open(own, &fakeAgent{}); err == nil || !strings.Contains(err.Error(), "want a unix socket") {
		t.Errorf("Open with a TCP endpoint = %v, want an error with %q", err, "want a unix socket")
	}
}

func TestPodImages(t *testing.T) {
	pod := func(phase v1.PodPhase, image string) v1.Pod {
		return v1.Pod{
			Spec:   v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image}}},
			Status: v1.PodStatus{Phase: phase},
		}
	}
	damaged := server.Info{Conditions: []health.Condition{{Code: health.StoreRecovered, Detail: "2 records"}}}
	rolledBack := server.Info{Conditions: []health.Condition{{Code: health.StoreRolledBack, Detail: "schema 3"}}}
	for name, c := range map[string]struct {
		agent fakeAgent
		want  []string
		err   string
	}{
		"pods that run": {
			fakeAgent{pods: []v1.Pod{pod(v1.PodRunning, "a:1"), pod(v1.PodPending, "b:1")}}, []string{"a:1", "b:1"}, "",
		},
		"a pod that is done": {
			fakeAgent{pods: []v1.Pod{pod(v1.PodSucceeded, "a:1"), pod(v1.PodRunning, "b:1")}}, []string{"b:1"}, "",
		},
		"no pods":       {fakeAgent{}, nil, ""},
		"no agent":      {fakeAgent{err: errors.New("no agent")}, nil, "no agent"},
		"damaged store": {fakeAgent{info: damaged}, nil, "the store of the agent is not complete (2 records)"},
		"older version": {fakeAgent{info: rolledBack}, nil, "the store of the agent is not complete (schema 3)"},
		"another condition": {
			fakeAgent{info: server.Info{Conditions: []health.Condition{{Code: health.RuntimeDown}}}}, nil, "",
		},
		"damaged, and a pod": {
			fakeAgent{info: damaged, pods: []v1.Pod{pod(v1.PodRunning, "a:1")}}, nil, "may not know all pods",
		},
		"failed pod in store": {fakeAgent{pods: []v1.Pod{pod(v1.PodFailed, "a:1")}}, nil, ""},
	} {
		got, err := (&Tool{agent: &c.agent}).PodImages(t.Context())
		diff := cmp.Diff(c.want, got)
		if diff != "" || (c.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: PodImages = %v, want error %q; names (-want +got):\n%s", name, err, c.err, diff)
		}
	}
}

func TestList(t *testing.T) {
	tool, _, _ := newTool(t)
	list, err := tool.List(t.Context(), []string{"example.com/pod:1"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range list {
		got = append(got, i.Name()+" "+i.Needed)
	}
	want := []string{
		"example.com/container:1 container", "example.com/kept:1 kept", "example.com/pause:1 sandbox",
		"example.com/pod:1 pod", "example.com/unused:1 ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("images and what needs them (-want +got):\n%s", diff)
	}
}

// TestRuntimeDown: whatever is asked of a runtime that is down, the error names its socket and a remedy.
func TestRuntimeDown(t *testing.T) {
	const want = "the container runtime does not answer at unix:///run/test.sock " +
		"(is it running? try: systemctl status containerd)"
	for _, method := range []string{"Images", "InUse", "Sandbox", "Usage", "Remove"} {
		tool, s, _ := newTool(t)
		s.fails = method
		_, err := tool.Prune(t.Context(), nil, false, func(imagegc.Image) {})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s fails: Prune = %v, want an error with %q", method, err, want)
		}
	}
	tool, _, service := newTool(t)
	service.err = status.Error(codes.Unavailable, "connection refused")
	_, err := tool.Pull(t.Context(), "example.com/a:1", "", false, nil)
	if err == nil || !strings.Contains(err.Error(), "pull example.com/a:1: "+want) {
		t.Errorf("Pull = %v, want an error with %q", err, want)
	}
}

func TestPrune(t *testing.T) {
	all := []string{"example.com/pod:1"}
	for name, c := range map[string]struct {
		podImages []string
		dryRun    bool
		want      []string
		left      int
		pruned    Pruned
	}{
		"pods are known": {
			all, false, []string{"example.com/unused:1"}, 4,
			Pruned{
				Images: 1,
				Freed:  10 << 20,
				Usage:  imagegc.Usage{Mountpoint: "/images", Capacity: 100 << 20, Available: 60 << 20},
			},
		},
		"dry run": {all, true, []string{"example.com/unused:1"}, 5, Pruned{Images: 1}},
		"pods are unknown": {
			nil, true, []string{"example.com/pod:1", "example.com/unused:1"}, 5, Pruned{Images: 2},
		},
		"all are needed": {append([]string{"example.com/unused:1"}, all...), false, nil, 5, Pruned{}},
	} {
		tool, s, _ := newTool(t)
		var removed []string
		pruned, err := tool.Prune(t.Context(), c.podImages, c.dryRun, func(i imagegc.Image) {
			removed = append(removed, i.Name())
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		slices.Sort(removed)
		if diff := cmp.Diff(c.want, removed); diff != "" {
			t.Errorf("%s: removed (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(c.pruned, pruned); diff != "" || len(s.images) != c.left {
			t.Errorf("%s: %d images left, want %d; result (-want +got):\n%s", name, len(s.images), c.left, diff)
		}
	}
}

func TestPull(t *testing.T) {
	const auth = `{"auths":{"example.com":{"auth":"dTpw"}}}` // u:p
	file := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(file, []byte(auth), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		authFile string
		keep     bool
		user     string
		kept     []string
	}{
		"plain":            {"", false, "", []string{"example.com/kept:*"}},
		"with credentials": {file, false, "u", []string{"example.com/kept:*"}},
		"kept":             {"", true, "", []string{"example.com/kept:*", "example.com/a:latest"}},
	} {
		tool, _, service := newTool(t)
		pulled, err := tool.Pull(t.Context(), "example.com/a", c.authFile, c.keep, func(images.Progress) {})
		if err != nil || pulled.Name != "example.com/a:latest" || pulled.Size != 4096 {
			t.Errorf("%s: Pull = %+v, %v; want example.com/a:latest of 4096 bytes", name, pulled, err)
			continue
		}
		if got := service.pulls[0].GetAuth().GetUsername(); got != c.user {
			t.Errorf("%s: pulled as user %q, want %q", name, got, c.user)
		}
		kept, err := imagegc.ReadKeep(tool.keepFile)
		if diff := cmp.Diff(c.kept, kept); err != nil || diff != "" {
			t.Errorf("%s: keep list: %v (-want +got):\n%s", name, err, diff)
		}
	}
	for tag, want := range map[string]string{
		"localhost/a:latest":         "localhost/a:latest",
		"docker.io/library/a:latest": "docker.io/library/a:latest",
		"example.com/other:1":        "docker.io/library/a:latest",
	} {
		tool, _, service := newTool(t)
		service.tags = []string{tag}
		pulled, err := tool.Pull(t.Context(), "a", "", true, func(images.Progress) {})
		if err != nil || pulled.Name != want || service.pulls[0].GetImage().GetImage() != "a:latest" {
			t.Errorf("Pull of a short name = %+v, %v, of the runtime %v; want %s, of the runtime a:latest", pulled, err,
				service.pulls, want)
		}
		kept, err := imagegc.ReadKeep(tool.keepFile)
		if diff := cmp.Diff([]string{"example.com/kept:*", want}, kept); err != nil || diff != "" {
			t.Errorf("keep list: %v (-want +got):\n%s", err, diff)
		}
	}
	tool, _, service := newTool(t)
	if _, err := tool.Pull(t.Context(), "sha256:"+strings.Repeat("67b7", 16), "", false, nil); err == nil ||
		!strings.Contains(err.Error(), "is the ID of an image") || len(service.pulls) > 0 {
		t.Errorf("Pull of an ID = %v, of the runtime %v; want an error that says what it is", err, service.pulls)
	}
	if _, err := tool.Pull(t.Context(), "example.com/a", file+"x", false, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Pull without the file of credentials = %v, want %v", err, os.ErrNotExist)
	}
	if len(service.pulls) > 0 {
		t.Errorf("pulls = %v, want none without the credentials", service.pulls)
	}
}

// writeArchive makes an archive with a manifest.json.
func writeArchive(t *testing.T, manifest string) string {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	header := &tar.Header{Name: "manifest.json", Mode: 0o644, Size: int64(len(manifest)), Typeflag: tar.TypeReg}
	if err := w.WriteHeader(header); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(manifest)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "images.tar")
	if err := errors.Join(w.Close(), os.WriteFile(file, buf.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestImport: the archive goes to ctr whole, and each of its images is reported, and kept if that is asked for.
func TestImport(t *testing.T) {
	bin := t.TempDir()
	got := filepath.Join(bin, "got")
	script := "#!/bin/sh\nPATH=/usr/bin:/bin\necho \"$@\" >" + got + ".args\ncat >" + got + "\n"
	if err := os.WriteFile(filepath.Join(bin, "ctr"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	file := writeArchive(t, `[{"RepoTags":["example.com/a:1","example.com/b:2"]}]`)
	for _, keep := range []bool{true, false} {
		tool, _, _ := newTool(t)
		var imported []string
		err := tool.Import(t.Context(), file, keep, func(name string, size uint64) {
			imported = append(imported, fmt.Sprint(name, " ", size))
		})
		want := []string{"example.com/a:1 4096", "example.com/b:2 4096"}
		if diff := cmp.Diff(want, imported); err != nil || diff != "" {
			t.Errorf("Import = %v, want no error; imported (-want +got):\n%s", err, diff)
		}
		kept, err := imagegc.ReadKeep(tool.keepFile)
		wantKept := []string{"example.com/kept:*"}
		if keep {
			wantKept = append(wantKept, "example.com/a:1", "example.com/b:2")
		}
		if diff := cmp.Diff(wantKept, kept); err != nil || diff != "" {
			t.Errorf("keep=%v: keep list: %v (-want +got):\n%s", keep, err, diff)
		}
	}
	sent, readErr := os.ReadFile(got)
	whole, err := os.ReadFile(file)
	if err := errors.Join(readErr, err); err != nil || !bytes.Equal(sent, whole) {
		t.Errorf("ctr got %d bytes, %v; want the %d bytes of the archive", len(sent), err, len(whole))
	}
	args, err := os.ReadFile(got + ".args")
	if want := "--address /run/test.sock --namespace k8s.io images import"; err != nil ||
		!strings.HasPrefix(string(args), want) {
		t.Errorf("ctr ran with %q, %v; want %q", args, err, want)
	}
}

func TestImportRefuses(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // without ctr
	missing := filepath.Join(t.TempDir(), "none.tar")
	for name, c := range map[string]struct{ file, want string }{
		"no file": {missing, "no such file"},
		"images of no name": {
			writeArchive(t, `[{"RepoTags":null}]`), "none of its images has a name; save them by name and tag",
		},
		"no ctr":     {writeArchive(t, `[{"RepoTags":["example.com/a:1"]}]`), "it is part of containerd"},
		"a bad name": {writeArchive(t, `[{"RepoTags":["Not A Name"]}]`), `image "Not A Name"`},
	} {
		tool, _, _ := newTool(t)
		err := tool.Import(t.Context(), c.file, true, func(name string, _ uint64) {
			t.Errorf("Import: imported %s, want nothing", name)
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Import = %v, want an error with %q", name, err, c.want)
		}
	}
}
