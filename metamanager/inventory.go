package metamanager

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/outbox"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/refused"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// inventoryTypes are what a cloud of ours keeps in step: it deletes what the node is not to have any more.
var inventoryTypes = [...]string{
	resource.TypePod, resource.TypeConfigMap, resource.TypeSecret, resource.TypeService, resource.TypeDevice,
	resource.TypeDeviceModel,
}

// reportAgainAtOnce is how many statuses that the cloud asks for are queued at a time: they share the store's
// transactions.
const reportAgainAtOnce = 16

// inventory lists what the store has of the cloud.
func (m *Module) inventory(ctx context.Context) ([]wire.Held, error) {
	// Before the outbox: what is reported in between is said to be pending.
	statuses, err := m.statusHashes(ctx)
	if err != nil {
		return nil, err
	}
	pending, err := m.outbox.Pending(ctx)
	if err != nil {
		return nil, err
	}
	list := []wire.Held{}
	for _, typ := range inventoryTypes {
		err := m.store.Each(ctx, typ, func(row store.Meta) error {
			var id annotated
			err := checkElements(resource.Key{Type: typ}, row.Value)
			if err == nil {
				err = json.Unmarshal(row.Value, &id)
			}
			if err != nil || id.Metadata.UID == "" {
				// It does not count, so that the cloud sends it again.
				klog.V(2).InfoS("Stored object is invalid; requesting it again", "key", row.Key, "err", err)
				return nil
			}
			version, err := wire.Version(row.Value)
			if err != nil {
				version = ""
			}
			if stub, ok := refused.Of(id.Metadata.Annotations); ok {
				version = stub.Version
			}
			held := wire.Held{Key: row.Key, UID: id.Metadata.UID, Version: version}
			if typ == resource.TypePod {
				held.Status = statuses[outbox.PodQueue(row.Key, id.statusUID())]
				if pending[outbox.PodQueue(row.Key, id.Metadata.UID)] || pending[outbox.PodQueue(row.Key, "")] {
					held.Status = wire.StatusPending
				}
			}
			list = append(list, held)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// annotated is what is decoded of a stored object to name its version and its status.
type annotated struct {
	Metadata struct {
		UID         string            `json:"uid"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
}

// statusUID returns the UID in the stored status of a pod: the pod's own, except for a mirror pod, whose status has the
// UID of its static pod.
func (a *annotated) statusUID() string {
	return cmp.Or(a.Metadata.Annotations[v1.MirrorPodAnnotationKey], a.Metadata.UID)
}

// statusHashes returns the hash of the stored status of each pod, by its queue. A row that is invalid has none.
func (m *Module) statusHashes(ctx context.Context) (map[string]string, error) {
	hashes := map[string]string{}
	err := m.store.Each(ctx, resource.TypePodPatch, func(row store.Meta) error {
		var id identity
		if err := checkElements(resource.Key{Type: row.Type}, row.Value); err != nil {
			klog.V(2).InfoS("Stored status is invalid", "key", row.Key, "err", err)
			return nil
		}
		hash, err := wire.StatusHash(row.Value)
		if err == nil && json.Unmarshal(row.Value, &id) == nil && id.Metadata.UID != "" {
			hashes[outbox.PodQueue(row.Key, id.Metadata.UID)] = hash
		}
		return nil
	})
	return hashes, err
}

// tellInventory returns when the cloud has sent all that differs, and all of it is stored; or after a time without
// that. Of the pods that it returns, the status is to be reported again.
func (m *Module) tellInventory(ctx context.Context, patience time.Duration) (again []wire.Held, err error) {
	list, err := m.inventory(ctx)
	if err != nil {
		return nil, err
	}
	message, err := wire.NewInventory(list)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := m.bus.SendSync(ctx, model.ModuleEdgeHub, message)
	if err != nil {
		return nil, err
	}
	var done wire.Synced
	if err := checkElements(resource.Key{Type: wire.OpInventory}, answer.ContentData()); err != nil {
		return nil, fmt.Errorf("answer of the cloud: %w", err)
	}
	if answer.Route.Operation == model.OpError || json.Unmarshal(answer.ContentData(), &done) != nil || !done.Synced {
		return nil, fmt.Errorf("the cloud answers %s %.200s", answer.Route.Operation, answer.ContentData())
	}
	return reportAgain(list, done.Report), nil
}

// reportAgain returns those of the pods that the cloud names whose status was in the inventory, each once.
func reportAgain(reported []wire.Held, named []string) []wire.Held {
	asked := make(map[string]bool, min(len(named), len(reported)))
	for _, key := range named {
		if len(asked) >= len(reported) && !asked[key] {
			break // it names pods that are not here
		}
		asked[key] = true
	}
	var again []wire.Held
	for _, held := range reported {
		if asked[held.Key] && held.Status != "" && held.Status != wire.StatusPending {
			again = append(again, held)
		}
	}
	return again
}

// reportStatuses queues the stored statuses of pods again, in the pods' queues, since newer ones may be stored
// meanwhile.
func (m *Module) reportStatuses(ctx context.Context, pods []wire.Held) {
	if len(pods) == 0 {
		return
	}
	klog.V(1).InfoS("The cloud does not have the status of some pods; reporting them again", "pods", len(pods))
	var wg sync.WaitGroup
	defer wg.Wait()
	room := make(chan struct{}, reportAgainAtOnce)
	for _, pod := range pods {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		wg.Go(func() {
			defer func() { <-room }()
			err := m.queues.runInTurn(ctx, outbox.ObjectOf(pod.Key), func() error { return m.reportStatus(ctx, pod) })
			if err != nil && ctx.Err() == nil {
				klog.ErrorS(err, "Pod status not reported again", "pod", pod.Key)
			}
		})
	}
}

// reportRequested reports the status of one pod again, as the cloud has asked.
func (m *Module) reportRequested(ctx context.Context, msg *model.Message) error {
	uid, err := wire.ParseReportRequest(msg)
	if err != nil {
		return err
	}
	klog.V(1).InfoS("Cloud asked to report the status of a pod again", "resource", msg.Route.Resource)
	return m.reportStatus(ctx, wire.Held{Key: msg.Route.Resource, UID: uid})
}

// reportStatus queues the stored status of a pod, unless the pod is gone or another by now, or a report on it waits.
func (m *Module) reportStatus(ctx context.Context, pod wire.Held) error {
	key, err := resource.Parse(pod.Key)
	if err != nil {
		return err
	}
	row, err := m.store.Get(ctx, key.String())
	if err != nil {
		return gone(err)
	}
	var stored annotated
	if err := json.Unmarshal(row.Value, &stored); err != nil {
		return fmt.Errorf("%s: the stored value is not an object: %w", key, err)
	}
	if stored.Metadata.UID != pod.UID {
		return nil
	}
	key.Type = resource.TypePodPatch
	if row, err = m.store.Get(ctx, key.String()); err != nil {
		return gone(err)
	}
	patch, err := statusFor(pod.UID, stored.statusUID(), row.Value)
	if patch == nil || err != nil {
		return err
	}
	content, err := json.Marshal(string(patch)) // on the wire a patch is a string
	if err != nil {
		return err
	}
	msg := model.New(model.ModuleEdged, model.GroupMeta, model.OpPatch, key.String(), content)
	r := outbox.Read(key, msg)
	if waits, err := m.outbox.Waits(ctx, r); waits || err != nil {
		return err
	}
	return m.outbox.Add(ctx, r)
}

// statusFor returns a stored status as a patch for the pod with a UID; nil if the status was not stored under the UID
// from.
func statusFor(uid, from string, stored []byte) ([]byte, error) {
	var id identity
	if err := json.Unmarshal(stored, &id); err != nil || id.Metadata.UID != from {
		return nil, nil
	}
	if uid == from {
		return stored, nil
	}
	var patch map[string]json.RawMessage
	err := json.Unmarshal(stored, &patch)
	if err == nil {
		patch["metadata"], err = json.Marshal(map[string]string{"uid": uid})
	}
	if err != nil {
		return nil, fmt.Errorf("status of a mirror pod: %w", err)
	}
	return json.Marshal(patch)
}

// gone returns an error of the store, and nil for ErrNotFound.
func gone(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}
