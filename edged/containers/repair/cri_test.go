package repair

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
)

func TestImagesOf(t *testing.T) {
	list := []imagegc.Image{
		{ID: "pinned", Names: []string{"pause:3.10"}, Pinned: true},
		{ID: "named", Names: []string{"pause:3.9", "pause@sha256:1"}},
		{ID: "plain", Names: []string{"demo:1"}},
		{ID: "nameless"},
	}
	want := []Image{
		{ID: "pinned", Names: []string{"pause:3.10"}, Sandbox: true},
		{ID: "named", Names: []string{"pause:3.9", "pause@sha256:1"}, Sandbox: true},
		{ID: "plain", Names: []string{"demo:1"}},
		{ID: "nameless"},
	}
	if diff := cmp.Diff(want, imagesOf(list, []string{"pause:3.9"})); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
}

func TestContainersOf(t *testing.T) {
	list := []*runtimeapi.Container{
		{Id: "by id", ImageRef: "sha256:a"},
		{Id: "by newer id", ImageId: "sha256:a", ImageRef: "demo@sha256:1"},
		{Id: "by name", Image: &runtimeapi.ImageSpec{Image: "demo:1"}},
		{Id: "other", ImageRef: "sha256:b", Image: &runtimeapi.ImageSpec{Image: "other:1"}},
		{Id: "unknown"},
	}
	images := []Image{{ID: "sha256:a", Names: []string{"demo:1", ""}}, {ID: "sha256:b", Names: []string{"other:1"}}}
	want := []string{"by id", "by newer id", "by name"}
	if diff := cmp.Diff(want, containersOf(list, images, "sha256:a")); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
}
