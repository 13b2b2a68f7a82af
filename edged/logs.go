package edged

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/logrotate"
)

// newLogs makes what bounds the logs of containers. It learns which run from the newest snapshots of the runtime.
func (e *Edged) newLogs() *logrotate.Rotator {
	opts := e.opts.Logs
	opts.Logs = func() []logrotate.Log { return logrotate.Written(e.pleg.All(), e.runtime.LogPath) }
	opts.Reopen = func(ctx context.Context, id string) error {
		_, err := e.client.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
		return err
	}
	return logrotate.New(opts)
}
