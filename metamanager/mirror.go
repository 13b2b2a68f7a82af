package metamanager

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// reportMirror queues the status of a mirror pod. What is stored under its name is the status of the static pod that it
// shows, by which that is known after a restart; so this one is only told, as the patch that it is.
func (m *Module) reportMirror(ctx context.Context, key resource.Key, msg *model.Message) error {
	if key.Name == "" || !json.Valid(msg.ContentData()) {
		return fmt.Errorf("%s: the patch has no name or is not JSON", key)
	}
	patch := *msg
	patch.Route.Operation = model.OpPatch
	return m.queue(ctx, key, &patch)
}
