package logrotate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/observed"
)

// TestWritten: only a container that runs writes its log.
func TestWritten(t *testing.T) {
	const running, exited = runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED
	pods := []*observed.Pod{{Namespace: "shop", Name: "a", Containers: []*observed.Container{
		{ID: "2", Name: "main", State: running},
		{ID: "1", Name: "main", State: exited},
	}}}
	path := func(_ *observed.Pod, c *observed.Container) string { return "/logs/" + c.ID }
	want := []Log{{ID: "2", Path: "/logs/2", Name: "shop/a/main"}}
	if diff := cmp.Diff(want, Written(pods, path)); diff != "" {
		t.Errorf("logs (-want +got):\n%s", diff)
	}
}
