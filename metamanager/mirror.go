package metamanager

import (
	"context"
	"fmt"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/outbox"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// reportMirror queues the status of a mirror pod. What is stored under its name is the status of the static pod that it
// shows, by which that is known after a restart; so this one is only told, as the patch that it is.
func (m *Module) reportMirror(ctx context.Context, key resource.Key, msg *model.Message) error {
	patch := *msg
	patch.Route.Operation = model.OpPatch
	r := outbox.Read(key, &patch)
	if key.Name == "" || !r.Valid {
		return fmt.Errorf("%s: the patch has no name or is not JSON", key)
	}
	return m.outbox.Add(ctx, r)
}
