package repair

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/edged/imagegc"
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
