package logrotate

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// reopens is a runtime that notes which log it was to reopen.
type reopens struct {
	runtimeapi.RuntimeServiceClient
	id string
}

func (r *reopens) ReopenContainerLog(
	_ context.Context, req *runtimeapi.ReopenContainerLogRequest, _ ...grpc.CallOption,
) (*runtimeapi.ReopenContainerLogResponse, error) {
	r.id = req.GetContainerId()
	return nil, nil
}

// TestFor: only the log of a running container is rotated, and the runtime is asked to reopen it.
func TestFor(t *testing.T) {
	const running, exited = runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED
	pods := []*observed.Pod{{Namespace: "shop", Name: "a", Containers: []*observed.Container{
		{ID: "2", Name: "main", State: running},
		{ID: "1", Name: "main", State: exited},
	}}}
	path := func(_ *observed.Pod, c *observed.Container) string { return "/logs/" + c.ID }
	want := []Log{{ID: "2", Path: "/logs/2", Name: "shop/a/main"}}
	asked := &reopens{}
	o := Options{MaxFiles: 3}.For(asked, func() []*observed.Pod { return pods }, path)
	if diff := cmp.Diff(want, o.Logs()); diff != "" {
		t.Errorf("logs (-want +got):\n%s", diff)
	}
	if err := o.Reopen(t.Context(), "2"); err != nil || asked.id != "2" || o.MaxFiles != 3 {
		t.Errorf("Reopen = %v, the runtime was asked for %q, MaxFiles %d; want nil, 2, 3", err, asked.id, o.MaxFiles)
	}
}
