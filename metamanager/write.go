package metamanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/metamanager/tokens"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// upsert stores an object, and then hands it to edged.
func (m *Module) upsert(ctx context.Context, key resource.Key, msg *model.Message, fromCloud bool) error {
	in, err := readStorable(key, msg.ContentData())
	if err != nil {
		return err
	}
	fit, err := m.makeRoom(ctx, in)
	if err != nil {
		return err
	}
	stored, err := m.write(ctx, in, fit, fromCloud)
	if !stored {
		fit.undo()
		return err
	}
	if !fromCloud {
		return nil
	}
	if !fit.whole {
		msg = withContent(msg, fit.data)
	}
	return m.forward(ctx, key, msg)
}

// write writes an object to the store, where it is durable on return. It returns false where the stored one stays: it
// fails, the new one does not fit, or it came over a link without order and is older.
func (m *Module) write(ctx context.Context, in *incoming, fit replaced, fromCloud bool) (stored bool, err error) {
	if fit.data == nil { // the cloud need not send it again
		m.questions.pushed(in.row)
		return false, nil
	}
	row, stale := store.Meta{Key: in.row, Type: in.key.Type, Value: fit.data}, false
	op := store.Upsert(row)
	if !fromCloud || !m.ordered.Load() {
		op = store.UpsertIf(row, func(old []byte) bool {
			stale = in.older(old)
			return !stale
		})
	}
	ops, err := m.withTokens(ctx, in, op, fromCloud && fit.whole)
	if err != nil {
		return false, err
	}
	m.questions.pushed(in.row)
	in.sized = nil // the decoded pod is not kept while the store writes
	if err := m.apply(ctx, in.key, ops...); err != nil {
		return false, err
	}
	if stale {
		klog.V(2).InfoS("Older version of an object ignored", "resource", in.key.String(),
			"resourceVersion", in.Metadata.ResourceVersion)
	}
	return !stale, nil
}

// withTokens adds to what stores a pod what removes the tokens of an earlier pod of its name. With ahead, it requests
// those of a pod that is not stored yet.
func (m *Module) withTokens(ctx context.Context, in *incoming, op store.Op, ahead bool) ([]store.Op, error) {
	ops := []store.Op{op}
	if in.key.Type != resource.TypePod {
		return ops, nil
	}
	before, err := m.storedUID(ctx, in.key) // a stored value that is invalid is overwritten
	if err == nil && before == in.Metadata.UID {
		return ops, nil
	}
	if err == nil && before != "" {
		rows, err := m.store.List(ctx, resource.TypeServiceAccountToken)
		if err != nil {
			return nil, err
		}
		ops = append(ops, tokens.Delete(rows, before)...)
	}
	if ahead {
		m.askTokensAhead(ctx, in)
	}
	return ops, nil
}

// upsertLate stores an answer without a waiter. It may be older than anything sent since, so it restores no deleted
// object, and replaces only an older version of the same object.
func (m *Module) upsertLate(ctx context.Context, key resource.Key, msg *model.Message) error {
	in, err := readStorable(key, msg.ContentData())
	if err != nil {
		return err
	}
	if uid, err := m.storedUID(ctx, key); err != nil || uid != in.Metadata.UID {
		return gone(err)
	}
	fit, err := m.makeRoom(ctx, in)
	if err != nil || fit.data == nil {
		return err
	}
	taken := false
	op := store.ReplaceIf(store.Meta{Key: in.row, Type: key.Type, Value: fit.data}, func(old []byte) bool {
		same, older := in.compare(old)
		taken = same && !older
		return taken
	})
	if err := m.apply(ctx, key, op); err != nil || !taken {
		fit.undo()
		return err
	}
	return m.forward(ctx, key, withContent(msg, fit.data))
}

// remove deletes an object by its UID; a pod with what was reported on it, and its tokens.
func (m *Module) remove(ctx context.Context, key resource.Key, msg *model.Message, forward bool) error {
	if err := storable(key); err != nil {
		return err
	}
	data := msg.ContentData()
	var id identity
	if err := id.read(key, data); err != nil {
		return err
	}
	ops, err := m.deletes(ctx, key, data, id.Metadata.UID)
	if err != nil {
		return err
	}
	m.questions.pushed(key.String())
	if err := m.apply(ctx, key, ops...); err != nil {
		return err
	}
	if m.missing(ctx, key) {
		m.outbox.Forget(key)
		m.roomGone(ctx, key)
	}
	if !forward {
		return nil
	}
	return m.forward(ctx, key, msg)
}

// deletes are the operations that delete an object and what hangs on it.
func (m *Module) deletes(ctx context.Context, key resource.Key, data []byte, uid string) ([]store.Op, error) {
	if key.Type == resource.TypeServiceAccountToken { // which has no UID of its own
		row, err := rowKey(key, data)
		return []store.Op{store.Delete(row)}, err
	}
	if uid == "" {
		return nil, fmt.Errorf("%s: the delete names no UID", key)
	}
	same := func(old []byte) bool {
		var stored identity
		return json.Unmarshal(old, &stored) != nil || stored.Metadata.UID == uid
	}
	ops := []store.Op{store.DeleteIf(key.String(), same)}
	if key.Type != resource.TypePod {
		return ops, nil
	}
	rows, err := m.store.List(ctx, resource.TypeServiceAccountToken)
	if err != nil {
		return nil, err
	}
	return append(append(ops, store.DeleteIf(patchKey(key), same)), tokens.Delete(rows, uid)...), nil
}

// forward hands a message to the modules that it concerns: edged, or devicetwin. What they do not take in time is not
// acknowledged: it comes again, and is handed on again then. A module that is not there reads the store when it starts.
func (m *Module) forward(ctx context.Context, key resource.Key, msg *model.Message) error {
	group := model.GroupEdged
	switch key.Type {
	case resource.TypePod, resource.TypeConfigMap, resource.TypeSecret:
	case resource.TypeDevice, resource.TypeDeviceModel:
		group = devicemsg.Group
	default:
		return nil
	}
	err := m.bus.SendToGroup(ctx, group, msg)
	if err == nil || errors.Is(err, beehive.ErrNoGroup) || errors.Is(err, beehive.ErrRemoved) {
		return nil
	}
	return fmt.Errorf("%s: stored, but not handed to the group %s: %w", key, group, err)
}

// missing reports whether an object is not stored.
func (m *Module) missing(ctx context.Context, key resource.Key) bool {
	_, err := m.store.Get(ctx, key.String())
	return errors.Is(err, store.ErrNotFound)
}

// storedUID is the UID of a stored object. The error is store.ErrNotFound where there is none.
func (m *Module) storedUID(ctx context.Context, key resource.Key) (string, error) {
	have, err := m.storedIdentity(ctx, key)
	return have.UID, err
}

func (m *Module) storedIdentity(ctx context.Context, key resource.Key) (metadata, error) {
	row, err := m.store.Get(ctx, key.String())
	if err != nil {
		return metadata{}, err
	}
	var id identity
	if err := json.Unmarshal(row.Value, &id); err != nil {
		return metadata{}, fmt.Errorf("%s: the stored value is not an object: %w", key, err)
	}
	return id.Metadata, nil
}
