package edged

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/logrotate"
)

// newLogs makes what bounds the logs of containers. It learns which run from the newest snapshots of the runtime.
func (e *Edged) newLogs() *logrotate.Rotator {
	opts := e.opts.Logs
	opts.Logs = e.writtenLogs
	opts.Reopen = func(ctx context.Context, id string) error {
		_, err := e.client.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
		return err
	}
	return logrotate.New(opts)
}

// writtenLogs are the logs of the containers that run.
func (e *Edged) writtenLogs() []logrotate.Log {
	var logs []logrotate.Log
	for _, pod := range e.pleg.All() {
		for _, c := range pod.Containers {
			if c.Running() {
				logs = append(logs, logrotate.Log{ID: c.ID, Path: e.runtime.LogPath(pod, c), Name: pod.Namespace + "/" + pod.Name + "/" + c.Name})
			}
		}
	}
	return logs
}
