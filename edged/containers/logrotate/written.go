package logrotate

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// For returns o for the containers of a runtime: pods are its newest snapshots, and path returns the file of a
// container's log.
func (o Options) For(
	runtime runtimeapi.RuntimeServiceClient, pods func() []*observed.Pod,
	path func(*observed.Pod, *observed.Container) string,
) Options {
	o.Logs = func() []Log { return written(pods(), path) }
	o.Reopen = func(ctx context.Context, id string) error {
		_, err := runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
		return err
	}
	return o
}

// written returns the logs of the containers that run. It is pure.
func written(pods []*observed.Pod, path func(*observed.Pod, *observed.Container) string) []Log {
	var logs []Log
	for _, pod := range pods {
		for _, c := range pod.Containers {
			if c.Running() {
				logs = append(logs, Log{
					ID: c.ID, Path: path(pod, c), Name: pod.Namespace + "/" + pod.Name + "/" + c.Name,
				})
			}
		}
	}
	return logs
}
