package metamanager

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// inventoryTypes are what a cloud of ours keeps in step: it deletes what the node is not to have any more.
var inventoryTypes = [...]string{resource.TypePod, resource.TypeConfigMap, resource.TypeSecret, resource.TypeService}

// inventory lists what the store has of the cloud.
func (m *Module) inventory(ctx context.Context) ([]wire.Held, error) {
	list := []wire.Held{}
	for _, typ := range inventoryTypes {
		err := m.store.Each(ctx, typ, func(row store.Meta) error {
			var id identity
			if err := json.Unmarshal(row.Value, &id); err != nil || id.Metadata.UID == "" {
				// It does not count, so that the cloud sends it anew.
				klog.V(2).InfoS("Stored object is of no use; asking for it again", "key", row.Key, "err", err)
				return nil
			}
			version, err := wire.Version(row.Value)
			if err != nil {
				version = ""
			}
			list = append(list, wire.Held{Key: row.Key, UID: id.Metadata.UID, Version: version})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// tellInventory returns when the cloud has sent all that differs, and all of it is stored; or after a time without that.
func (m *Module) tellInventory(ctx context.Context, patience time.Duration) error {
	list, err := m.inventory(ctx)
	if err != nil {
		return err
	}
	message, err := wire.NewInventory(list)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := m.bus.SendSync(ctx, model.ModuleEdgeHub, message)
	if err != nil {
		return err
	}
	var done wire.Synced
	if answer.Route.Operation == model.OpError || json.Unmarshal(answer.ContentData(), &done) != nil || !done.Synced {
		return fmt.Errorf("the cloud answers %s %.200s", answer.Route.Operation, answer.ContentData())
	}
	return nil
}
