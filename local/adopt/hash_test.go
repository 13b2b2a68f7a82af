package adopt

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/containers/runtime"
)

// TestHashes holds both hashes against values that Kubernetes' own tests state for this container: that of releases
// up to 1.30, and that of those since.
func TestHashes(t *testing.T) {
	c := &v1.Container{
		Name:  "test_container",
		Image: "foo/image:v1",
		Args:  []string{"/bin/sh", "-c", "echo abc"},
		Ports: []v1.ContainerPort{{ContainerPort: 8001}},
	}
	if got, want := SpecHash(c), uint64(0x3c42280f); got != want {
		t.Errorf("hash of the whole spec %#x, want %#x", got, want)
	}
	if got, want := runtime.Hash(c), uint64(0x8e45cbd0); got != want {
		t.Errorf("hash of name and image %#x, want %#x", got, want)
	}
}
