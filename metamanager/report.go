package metamanager

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/outbox"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// takeReport takes what edged reports in an insert, an update or a delete. It returns false for what is no report, but
// an object.
func (m *Module) takeReport(ctx context.Context, key resource.Key, msg *model.Message) (taken bool, err error) {
	switch msg.Route.Operation {
	case model.OpInsert, model.OpUpdate:
		switch key.Type {
		case resource.TypeEvent:
			return true, m.outbox.AddEvent(ctx, outbox.Read(key, msg))
		case resource.TypePodStatus:
			return true, m.keepStatus(ctx, key, msg)
		case resource.TypePodPatch:
			return true, m.reportMirror(ctx, key, msg)
		}
	case model.OpDelete:
		switch key.Type {
		case resource.TypePodStatus:
			return true, m.forgetStatus(ctx, key, msg)
		case resource.TypePod: // a deleted pod has ended
			return true, m.outbox.AddUrgent(ctx, outbox.Read(key, msg))
		}
	}
	return false, nil
}

// report stores a patch that edged made, and queues it for the cloud.
func (m *Module) report(ctx context.Context, key resource.Key, msg *model.Message) error {
	if key.Type != resource.TypePodPatch {
		return fmt.Errorf("%s: only pods and nodes are patched", key)
	}
	r := outbox.Read(key, msg)
	if !r.Valid {
		return fmt.Errorf("%s: the patch is not JSON", key)
	}
	// The same report again changes nothing, so the message's ID and time are not compared.
	if row, err := m.store.Get(ctx, key.String()); err == nil && bytes.Equal(row.Value, r.Content) {
		return nil
	}
	pod, err := m.storedIdentity(ctx, resource.Key{Namespace: key.Namespace, Type: resource.TypePod, Name: key.Name})
	if err == nil && r.UID != "" && pod.UID != "" && pod.UID != r.UID {
		// Another pod has the name by now. The status that is stored under it is the other's, and stays.
		return m.outbox.Add(ctx, r)
	}
	status := store.Upsert(store.Meta{Key: key.String(), Type: key.Type, Value: r.Content})
	if err == nil && pod.deleting() {
		return m.outbox.AddUrgent(ctx, r, status) // on a full disk, too: its end is reported after its last status
	}
	return m.outbox.Add(ctx, r, status)
}

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

// keepStatus stores the status of a pod that the cloud does not know.
func (m *Module) keepStatus(ctx context.Context, key resource.Key, msg *model.Message) error {
	data := msg.ContentData()
	if !json.Valid(data) {
		return fmt.Errorf("%s: the status is not JSON", key)
	}
	return m.apply(ctx, key, store.Upsert(store.Meta{Key: statusKey(key), Type: resource.TypePodPatch, Value: data}))
}

// forgetStatus removes the stored status of a pod that is gone, unless it is that of another pod of the name by now. A
// message that names no UID means whichever is stored.
func (m *Module) forgetStatus(ctx context.Context, key resource.Key, msg *model.Message) error {
	row := statusKey(key)
	if _, err := m.store.Get(ctx, row); errors.Is(err, store.ErrNotFound) {
		return nil // as for most pods, whose status went with their row: nothing is to be written
	}
	var gone metadata
	if data := msg.ContentData(); len(data) > 0 {
		if err := json.Unmarshal(data, &gone); err != nil {
			return fmt.Errorf("%s: which status is to be removed: %w", key, err)
		}
	}
	return m.apply(ctx, key, store.DeleteIf(row, func(old []byte) bool {
		var stored identity
		return gone.UID == "" || json.Unmarshal(old, &stored) != nil || stored.Metadata.UID == gone.UID
	}))
}

// patchKey is where the newest reported status of a pod is.
func patchKey(key resource.Key) string {
	key.Type = resource.TypePodPatch
	return key.String()
}

// statusKey is the same, from the key by which edged names a status that stays on the device.
func statusKey(key resource.Key) string { return patchKey(key) }
