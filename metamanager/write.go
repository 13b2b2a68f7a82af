package metamanager

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/outbox"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/metamanager/tokens"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// identity is what the module has to know of an object; the rest of it is not decoded here.
type identity struct {
	Metadata  metadata        `json:"metadata"`
	ErrStatus json.RawMessage `json:"ErrStatus"`
}

type metadata struct {
	Name            string `json:"name"`
	Namespace       string `json:"namespace"`
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
	// DeletionTimestamp is empty or null unless the object is being deleted.
	DeletionTimestamp json.RawMessage `json:"deletionTimestamp"`
}

// deleting reports whether the object is being deleted.
func (m *metadata) deleting() bool {
	return len(m.DeletionTimestamp) > 0 && string(m.DeletionTimestamp) != "null"
}

// storable reports whether a message may name this object to store or to delete it.
func storable(key resource.Key) error {
	switch key.Type {
	case resource.TypePod, resource.TypeConfigMap, resource.TypeSecret, resource.TypeNode, resource.TypeLease,
		resource.TypeService, resource.TypeServiceAccountToken, resource.TypePersistentVolume,
		resource.TypePersistentVolumeClaim, resource.TypeVolumeAttachment,
		resource.TypeRuntimeClass, resource.TypeCSIDriver, resource.TypeCSINode, resource.TypeClusterTrustBundle,
		resource.TypeDevice, resource.TypeDeviceModel:
	default:
		return fmt.Errorf("%s: objects of the type %q are not stored on the edge", key, key.Type)
	}
	if key.Name == "" {
		return fmt.Errorf("%s: it has to name one object: want <namespace>/<type>/<name>", key)
	}
	return nil
}

// readIdentity decodes and checks an object of a message.
func readIdentity(key resource.Key, data []byte) (identity, error) {
	var id identity
	if err := checkElements(key, data); err != nil {
		return id, err
	}
	if err := json.Unmarshal(data, &id); err != nil {
		return id, fmt.Errorf("%s: content is not an object: %w", key, err)
	}
	if string(bytes.TrimSpace(data)) == "null" { // which decodes without an error
		return id, fmt.Errorf("%s: there is no object in the message", key)
	}
	if id.ErrStatus != nil {
		return id, fmt.Errorf("%s: content is an error, not an object", key)
	}
	if key.Type != resource.TypeServiceAccountToken && id.Metadata.Name != "" && id.Metadata.Name != key.Name {
		return id, fmt.Errorf("%s: content is an object of the name %q", key, id.Metadata.Name)
	}
	if ns := id.Metadata.Namespace; ns != "" && ns != key.Namespace {
		return id, fmt.Errorf("%s: content is an object of the namespace %q", key, ns)
	}
	return id, nil
}

// incoming is an object of a message, checked.
type incoming struct {
	id  identity
	row store.Meta
}

func readIncoming(key resource.Key, msg *model.Message) (incoming, error) {
	if err := storable(key); err != nil {
		return incoming{}, err
	}
	data := msg.ContentData()
	id, err := readIdentity(key, data)
	if err != nil {
		return incoming{}, err
	}
	if key.Type == resource.TypePod && id.Metadata.UID == "" {
		return incoming{}, fmt.Errorf("%s: the pod has no UID", key)
	}
	row, err := rowKey(key, data)
	return incoming{id: id, row: store.Meta{Key: row, Type: key.Type, Value: data}}, err
}

// upsert stores an object, and then hands it to edged. What came over a link without order is passed over where the
// stored object is newer.
func (m *Module) upsert(ctx context.Context, key resource.Key, msg *model.Message, fromCloud bool) error {
	in, err := readIncoming(key, msg)
	if err != nil {
		return err
	}
	to, err := m.makeRoom(ctx, key, in.row.Value)
	if err != nil {
		return err
	}
	if to.data == nil { // the stored version stays; the cloud need not send this one again
		m.questions.pushed(in.row.Key)
		return nil
	}
	whole := bytes.Equal(to.data, in.row.Value)
	if in.row.Value = to.data; !whole {
		msg = withContent(msg, to.data)
	}
	op, stale := store.Upsert(in.row), false
	if !fromCloud || !m.ordered.Load() {
		op = store.UpsertIf(in.row, func(old []byte) bool {
			stale = older(in.id, old)
			return !stale
		})
	}
	ops, err := m.withTokens(ctx, key, in, op)
	if err != nil {
		to.undo()
		return err
	}
	if fromCloud && key.Type == resource.TypePod && whole {
		m.askTokensAhead(ctx, key, in)
	}
	m.questions.pushed(in.row.Key)
	if err := m.apply(ctx, key, ops...); err != nil {
		to.undo()
		return err
	}
	if stale {
		to.undo()
		klog.V(2).InfoS("Older version of an object ignored", "resource", key.String(),
			"resourceVersion", in.id.Metadata.ResourceVersion)
		return nil
	}
	if !fromCloud {
		return nil
	}
	return m.forward(ctx, key, msg)
}

// withTokens adds to what stores a pod what removes the tokens of an earlier pod of its name.
func (m *Module) withTokens(ctx context.Context, key resource.Key, in incoming, op store.Op) ([]store.Op, error) {
	ops := []store.Op{op}
	if key.Type != resource.TypePod {
		return ops, nil
	}
	before, err := m.storedUID(ctx, key)
	if err != nil || before == "" || before == in.id.Metadata.UID { // a stored value that is of no use is overwritten
		return ops, nil
	}
	rows, err := m.store.List(ctx, resource.TypeServiceAccountToken)
	if err != nil {
		return nil, err
	}
	return append(ops, tokens.Delete(rows, before)...), nil
}

// upsertLate stores an answer without a waiter. It may be older than anything sent since, so it restores no deleted
// object, and replaces only an older version of the same object.
func (m *Module) upsertLate(ctx context.Context, key resource.Key, msg *model.Message) error {
	in, err := readIncoming(key, msg)
	if err != nil {
		return err
	}
	if uid, err := m.storedUID(ctx, key); err != nil || uid != in.id.Metadata.UID {
		return gone(err)
	}
	to, err := m.makeRoom(ctx, key, in.row.Value)
	if err != nil || to.data == nil {
		return err
	}
	in.row.Value, msg = to.data, withContent(msg, to.data)
	taken := false
	op := store.ReplaceIf(in.row, func(old []byte) bool {
		taken = sameUID(in.id, old) && !older(in.id, old)
		return taken
	})
	if err := m.apply(ctx, key, op); err != nil || !taken {
		to.undo()
		return err
	}
	return m.forward(ctx, key, msg)
}

// sameUID reports whether a stored object is the same one, in whatever version.
func sameUID(id identity, stored []byte) bool {
	var old identity
	return json.Unmarshal(stored, &old) == nil && old.Metadata.UID == id.Metadata.UID
}

// older reports whether an object is an older version of the stored one. Another UID is another object, and versions
// that are not numbers cannot be compared: then the last one counts.
func older(id identity, stored []byte) bool {
	var old identity
	if json.Unmarshal(stored, &old) != nil || old.Metadata.UID != id.Metadata.UID {
		return false
	}
	now, err1 := strconv.ParseUint(id.Metadata.ResourceVersion, 10, 64)
	then, err2 := strconv.ParseUint(old.Metadata.ResourceVersion, 10, 64)
	return err1 == nil && err2 == nil && now < then
}

// remove deletes an object by its UID; a pod with what was reported on it, and its tokens.
func (m *Module) remove(ctx context.Context, key resource.Key, msg *model.Message, forward bool) error {
	if err := storable(key); err != nil {
		return err
	}
	data := msg.ContentData()
	id, err := readIdentity(key, data)
	if err != nil {
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
	if _, err := m.storedUID(ctx, key); errors.Is(err, store.ErrNotFound) {
		m.outbox.Forget(key)
	}
	m.roomGone(ctx, key)
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

// patchKey is where the newest reported status of a pod is.
func patchKey(key resource.Key) string {
	key.Type = resource.TypePodPatch
	return key.String()
}

// statusKey is the same, from the key by which edged names a status that stays on the device.
func statusKey(key resource.Key) string { return patchKey(key) }

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
