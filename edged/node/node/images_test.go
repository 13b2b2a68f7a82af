package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestImages(t *testing.T) {
	have := []*runtimeapi.Image{
		{RepoTags: []string{"b:1"}, Size: 10}, {RepoTags: []string{"a:1"}, RepoDigests: []string{"a@sha256:1"},
			Size: 10},
		{Size: 1000}, {RepoTags: []string{"1", "2", "3", "4", "5", "6"}, RepoDigests: []string{"x@sha256:2"}, Size: 99},
	}
	big := v1.ContainerImage{Names: []string{"x@sha256:2", "1", "2", "3", "4"}, SizeBytes: 99}
	a, b := v1.ContainerImage{Names: []string{"a@sha256:1", "a:1"}, SizeBytes: 10},
		v1.ContainerImage{Names: []string{"b:1"}, SizeBytes: 10}
	for most, want := range map[int][]v1.ContainerImage{
		-1: {big, a, b}, 0: nil, 1: {big}, 2: {big, a}, 50: {big, a, b},
	} {
		if diff := cmp.Diff(want, Images(have, most)); diff != "" {
			t.Errorf("at most %d (-want +got):\n%s", most, diff)
		}
	}
}
