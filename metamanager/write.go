package metamanager

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// identity is what the module has to know of an object; the rest of it is not decoded here.
type identity struct {
	Metadata struct {
		Name            string `json:"name"`
		Namespace       string `json:"namespace"`
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	ErrStatus json.RawMessage `json:"ErrStatus"`
}

// kept are the types that are stored.
func kept(typ string) bool {
	switch typ {
	case resource.TypePod, resource.TypeConfigMap, resource.TypeSecret, resource.TypeNode, resource.TypeLease,
		resource.TypeServiceAccountToken, resource.TypePersistentVolume, resource.TypePersistentVolumeClaim, resource.TypeVolumeAttachment:
		return true
	}
	return false
}

// readIdentity decodes and checks an object of a message.
func readIdentity(key resource.Key, data []byte) (identity, error) {
	var id identity
	if err := json.Unmarshal(data, &id); err != nil {
		return id, fmt.Errorf("%s: content is no object: %w", key, err)
	}
	if id.ErrStatus != nil {
		return id, fmt.Errorf("%s: content is an error, not an object", key)
	}
	if key.Type != resource.TypeServiceAccountToken && id.Metadata.Name != "" && id.Metadata.Name != key.Name {
		return id, fmt.Errorf("%s: content is an object of the name %q", key, id.Metadata.Name)
	}
	return id, nil
}

// upsert stores an object unless what is stored is newer, and then hands it to edged.
func (m *Module) upsert(ctx context.Context, key resource.Key, msg *model.Message, forward bool) error {
	if !kept(key.Type) || key.Name == "" {
		return fmt.Errorf("%s: objects of this type are not stored on the edge", key)
	}
	data := msg.ContentData()
	id, err := readIdentity(key, data)
	if err != nil {
		return err
	}
	if key.Type == resource.TypePod && id.Metadata.UID == "" {
		return fmt.Errorf("%s: the pod has no UID", key)
	}
	stale := false
	op := store.UpsertIf(store.Meta{Key: key.String(), Type: key.Type, Value: data}, func(old []byte) bool {
		stale = older(id, old)
		return !stale
	})
	if err := m.apply(ctx, op); err != nil {
		return err
	}
	if stale {
		klog.V(2).InfoS("Older version of an object passed over", "resource", key.String(), "resourceVersion", id.Metadata.ResourceVersion)
		return nil
	}
	if forward {
		m.forward(ctx, key, msg)
	}
	return nil
}

// older tells whether an object is an older version of the stored one. Another UID is another object, and
// versions that are no numbers do not compare: then what came last counts.
func older(id identity, stored []byte) bool {
	var old identity
	if json.Unmarshal(stored, &old) != nil || old.Metadata.UID != id.Metadata.UID {
		return false
	}
	now, err1 := strconv.ParseUint(id.Metadata.ResourceVersion, 10, 64)
	then, err2 := strconv.ParseUint(old.Metadata.ResourceVersion, 10, 64)
	return err1 == nil && err2 == nil && now < then
}

// remove deletes an object by its UID, with what was reported on it.
func (m *Module) remove(ctx context.Context, key resource.Key, msg *model.Message) error {
	if key.Name == "" {
		return fmt.Errorf("%s: a delete names one object", key)
	}
	id, err := readIdentity(key, msg.ContentData())
	if err != nil {
		return err
	}
	if id.Metadata.UID == "" && key.Type == resource.TypePod {
		return fmt.Errorf("%s: the delete names no UID", key)
	}
	same := func(old []byte) bool {
		var stored identity
		return id.Metadata.UID == "" || json.Unmarshal(old, &stored) != nil || stored.Metadata.UID == id.Metadata.UID
	}
	ops := []store.Op{store.DeleteIf(key.String(), same)}
	if key.Type == resource.TypePod {
		ops = append(ops, store.DeleteIf(patchKey(key), same))
	}
	if err := m.apply(ctx, ops...); err != nil {
		return err
	}
	m.forward(ctx, key, msg)
	return nil
}

// forward hands a message to edged, if it is one that concerns edged. The object is in the store: should edged
// not take it in time, its next look at the store makes it good.
func (m *Module) forward(ctx context.Context, key resource.Key, msg *model.Message) {
	switch key.Type {
	case resource.TypePod, resource.TypeConfigMap, resource.TypeSecret:
	default:
		return
	}
	if err := m.bus.SendToGroup(ctx, model.GroupEdged, msg); err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "Stored object not handed on", "resource", key.String())
	}
}

// patchKey is where the newest reported status of a pod is.
func patchKey(key resource.Key) string {
	key.Type = resource.TypePodPatch
	return key.String()
}

// statusKey is the same, from the key by which edged names a status that stays on the device.
func statusKey(key resource.Key) string { return patchKey(key) }

// report stores a patch that edged made, and queues it for the cloud.
func (m *Module) report(ctx context.Context, key resource.Key, msg *model.Message) error {
	if key.Type != resource.TypePodPatch && key.Type != resource.TypeNodePatch {
		return fmt.Errorf("%s: only pods and nodes are patched", key)
	}
	data := msg.ContentData()
	if !json.Valid(data) {
		return fmt.Errorf("%s: the patch is no JSON", key)
	}
	// The same report again is no news, so that the message's id and time must not make it one.
	row, err := m.store.Get(ctx, key.String())
	if err == nil && string(row.Value) == string(data) {
		return nil
	}
	return m.apply(ctx, store.Upsert(store.Meta{Key: key.String(), Type: key.Type, Value: data}), outbox(msg))
}

// keepStatus stores the status of a pod of which the cloud does not know.
func (m *Module) keepStatus(ctx context.Context, key resource.Key, msg *model.Message) error {
	data := msg.ContentData()
	if !json.Valid(data) {
		return fmt.Errorf("%s: the status is no JSON", key)
	}
	return m.apply(ctx, store.Upsert(store.Meta{Key: statusKey(key), Type: resource.TypePodPatch, Value: data}))
}

// outbox queues a message for the cloud under the object that it is about.
func outbox(msg *model.Message) store.Op {
	value, err := json.Marshal(msg)
	if err != nil {
		value = nil // a message that came over the bus always marshals
	}
	return store.OutboxPut(msg.Route.Operation+" "+msg.Route.Resource, value)
}
