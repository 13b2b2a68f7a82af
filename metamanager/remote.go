package metamanager

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/answer"
	"github.com/edgecore-io/edgecore/metamanager/outbox"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/metamanager/tokens"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

const (
	// readTimeout is how long the cloud gets to answer a question that the store may be able to answer as well: less
	// than callers wait.
	readTimeout = 20 * time.Second
	// storedSecretTimeout is the same for a secret that is stored: a pod waits for it, and some CSI drivers want their
	// secrets every few seconds.
	storedSecretTimeout = 3 * time.Second
)

// route says where a request of edged is answered.
type route int

const (
	// here: from the store, and that is all.
	here route = iota
	// hereFirst: from the store; the cloud is asked for what is not in it (and for a token that is to be renewed).
	hereFirst
	// cloudFirst: by the cloud, and from the store while there is no link: the cloud does not push these.
	cloudFirst
	// cloudOnly: by the cloud or not at all.
	cloudOnly
)

// routeOf decides by what is asked. Whatever has to work offline is never cloudOnly.
func routeOf(operation string, key resource.Key) route {
	switch operation {
	case model.OpQuery:
		switch key.Type {
		case resource.TypeConfigMap, resource.TypeSecret, resource.TypeServiceAccountToken:
			if key.Name != "" {
				return hereFirst
			}
		case resource.TypeNode, resource.TypePersistentVolume, resource.TypePersistentVolumeClaim,
			resource.TypeVolumeAttachment, resource.TypeEndpoints, resource.TypeLease,
			resource.TypeRuntimeClass, resource.TypeCSIDriver, resource.TypeCSINode, resource.TypeClusterTrustBundle,
			resource.TypeClientCA:
			return cloudFirst
		case resource.TypeCSR:
			return cloudOnly
		}
	case model.OpInsert, model.OpUpdate:
		switch key.Type {
		case resource.TypeNode, resource.TypeLease, resource.TypePod, resource.TypeCSR, resource.TypeCSINode,
			resource.TypeTokenReview, resource.TypeAccessReview:
			return cloudOnly
		}
	case model.OpPatch:
		if key.Type == resource.TypePersistentVolumeClaim {
			return cloudOnly // said again by edged until it was heard
		}
		if key.Type == resource.TypeNodePatch {
			return cloudOnly // made again by edged when there is a link, and out of date when there is none
		}
	}
	return here
}

// routeOfMessage is routeOf for one request: edged marks secrets whose changes the cloud does not push, since no pod
// names them.
func routeOfMessage(key resource.Key, msg *model.Message) route {
	if msg.Route.Operation == model.OpQuery && key.Type == resource.TypeSecret && key.Name != "" {
		var how struct {
			CloudFirst bool `json:"cloudFirst"`
		}
		if json.Unmarshal(msg.ContentData(), &how) == nil && how.CloudFirst {
			return cloudFirst
		}
	}
	return routeOf(msg.Route.Operation, key)
}

// acked reports whether the cloud waits for an acknowledgement of its answer (docs/wire.md, Acknowledgements). Ours
// never does.
func acked(operation string, key resource.Key, link Link) bool {
	return operation != model.OpPatch && key.Type != resource.TypeEndpoints && !link.Features.Inventory
}

// oursOnly reports whether a cloudcore of KubeEdge never answers for a type.
func oursOnly(typ string) bool {
	switch typ {
	case resource.TypeRuntimeClass, resource.TypeCSIDriver, resource.TypeCSINode, resource.TypeClusterTrustBundle,
		resource.TypeTokenReview, resource.TypeAccessReview, resource.TypeClientCA:
		return true
	}
	return false
}

// unknownHere reports whether the store has only earlier answers for a type, so that a missing row does not mean that
// the object does not exist.
func unknownHere(typ string) bool {
	switch typ {
	case resource.TypePersistentVolume, resource.TypePersistentVolumeClaim, resource.TypeVolumeAttachment:
		return true
	}
	return oursOnly(typ)
}

// askCloud asks the cloud, stores what it answers, and returns it.
func (m *Module) askCloud(ctx context.Context, key resource.Key, msg *model.Message) (json.RawMessage, error) {
	link := m.link.get()
	if !link.Connected ||
		(oursOnly(key.Type) ||
			msg.Route.Operation == model.OpPatch && key.Type == resource.TypePersistentVolumeClaim) &&
			!link.Features.Inventory {
		return nil, errOffline
	}
	ctx, cancel := context.WithTimeout(ctx, m.opts.RemoteTimeout)
	defer cancel()
	row, err := rowKey(key, msg.ContentData()) // by what is asked: an answer may have more
	if err != nil {
		return nil, err
	}
	q := m.questions.open(row)
	defer m.questions.close(q)
	// Under an id of its own: the one of msg is edged's, who waits for it.
	content := msg.Content
	if key.Type == resource.TypeSecret {
		content = nil // what it says is for this module
	}
	request := model.New(msg.Route.Source, model.GroupMeta, msg.Route.Operation, msg.Route.Resource, content)
	got, err := m.bus.SendSync(ctx, model.ModuleEdgeHub, request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errOffline, err)
	}
	data := got.ContentData()
	if got.Route.Operation == model.OpError {
		return nil, fmt.Errorf("%w: %s", errOffline, data)
	}
	if err := checkElements(key, data); err != nil {
		return nil, fmt.Errorf("answer of the cloud: %w", err)
	}
	if kept(msg.Route.Operation, key) {
		var pod tokens.Ref // for a token: it goes with the pod, and so it is stored in the pod's turn
		if key.Type == resource.TypeServiceAccountToken {
			pod = tokens.BoundPod(msg.ContentData())
		}
		err := m.queues.runInTurn(ctx, answerLane(key, pod), func() (err error) {
			if ctx.Err() != nil { // nobody waits for it any more
				return ctx.Err()
			}
			data, err = m.keepAnswer(ctx, key, pod, q, data)
			return err
		})
		switch {
		case errors.Is(err, store.ErrFull), errors.Is(err, store.ErrReadOnly): // a condition of the device says so
			klog.V(2).InfoS("Answer of the cloud used, but not stored", "resource", key.String(), "err", err)
		case err != nil:
			return nil, err
		}
	}
	if acked(msg.Route.Operation, key, link) {
		m.toCloud(ctx, got.Respond(model.OK))
	}
	return data, nil
}

// kept reports whether the answer to a request is stored, so that it is there when the link is not.
func kept(operation string, key resource.Key) bool {
	return operation == model.OpQuery && key.Type != resource.TypeLease && key.Type != resource.TypeCSR &&
		key.Type != resource.TypeEndpoints
}

// answerLane is the queue in which an answer is stored: that of the object, and for a token that of its pod.
func answerLane(key resource.Key, pod tokens.Ref) string {
	if pod.Name != "" {
		key.Type, key.Name = resource.TypePod, pod.Name
	}
	return outbox.ObjectOf(key.String())
}

// keepAnswer stores what the cloud answered, in its turn, and returns what the caller gets: what is stored, if that
// came later. What the cloud does not have any more is removed, but for what it pushes.
func (m *Module) keepAnswer(
	ctx context.Context, key resource.Key, pod tokens.Ref, q *question, data []byte,
) ([]byte, error) {
	if !m.questions.counts(q) {
		stored, err := m.store.Get(ctx, q.row)
		if err == nil && json.Valid(stored.Value) {
			return stored.Value, nil
		}
		return data, nil
	}
	if failure := answer.Failure(data); failure != nil {
		mayGo := unknownHere(key.Type) || key.Type == resource.TypeSecret // a secret that is pushed is not asked for
		if failure.Code == http.StatusNotFound && mayGo && key.Name != "" {
			err := m.apply(ctx, key, store.Delete(q.row))
			if m.missing(ctx, key) {
				m.roomGone(ctx, key)
			}
			return data, err
		}
		return data, nil
	}
	if key.Name == "" {
		return data, m.keepAll(ctx, key, data)
	}
	in, err := readIncoming(key, data)
	if err != nil {
		return nil, fmt.Errorf("answer of the cloud: %w", err)
	}
	if pod.UID != "" {
		uid, err := m.storedUID(ctx, resource.Key{Namespace: key.Namespace, Type: resource.TypePod, Name: pod.Name})
		if errors.Is(err, store.ErrNotFound) || err == nil && uid != pod.UID {
			return data, nil // its other tokens were removed with it
		}
	}
	fit, err := m.makeRoom(ctx, in)
	if err != nil {
		return nil, err
	}
	if fit.data == nil { // the stored version stays in use
		stored, err := m.store.Get(ctx, q.row)
		return stored.Value, err
	}
	row, taken := store.Meta{Key: q.row, Type: key.Type, Value: fit.data}, true
	err = m.apply(ctx, key, store.UpsertIf(row, func(old []byte) bool {
		taken = m.ordered.Load() || !in.older(old)
		return taken
	}))
	if err != nil || !taken {
		fit.undo()
	}
	if !fit.whole {
		return m.refusedAnswer(key, fit.data, err)
	}
	return data, err
}

// keepAll stores all objects of a type that the cloud answered, and deletes those that it does not have any more.
func (m *Module) keepAll(ctx context.Context, key resource.Key, data []byte) error {
	var list []json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil || list == nil {
		return fmt.Errorf("answer of the cloud: %s: content is not a list", key)
	}
	have := make(map[string]bool, len(list))
	var ops []store.Op
	for _, data := range list {
		one := key
		var id identity
		if err := json.Unmarshal(data, &id); err != nil {
			return fmt.Errorf("answer of the cloud: %s: an element of the list is not an object: %w", key, err)
		}
		if one.Name = id.Metadata.Name; one.Name == "" || strings.Contains(one.Name, "/") {
			return fmt.Errorf("answer of the cloud: %s: an element of the list has the name %q", key, one.Name)
		}
		if err := id.check(one, data); err != nil {
			return fmt.Errorf("answer of the cloud: %w", err)
		}
		have[one.String()] = true
		row := store.Meta{Key: one.String(), Type: one.Type, Value: data}
		ops = append(ops, store.UpsertIf(row, func(old []byte) bool {
			return !bytes.Equal(old, data) && (m.ordered.Load() || !id.older(old))
		}))
	}
	rows, err := m.store.List(ctx, key.Type)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if strings.HasPrefix(row.Key, key.Namespace+"/") && !have[row.Key] {
			ops = append(ops, store.Delete(row.Key))
		}
	}
	return m.apply(ctx, key, ops...)
}

// remote answers a request of edged that may need the cloud.
func (m *Module) remote(ctx context.Context, how route, key resource.Key, msg *model.Message) (json.RawMessage, error) {
	switch how {
	case hereFirst:
		return m.askWhatIsMissing(ctx, key, msg)
	case cloudFirst:
		asked, cancel := context.WithTimeout(ctx, m.patience(ctx, key))
		data, err := m.askCloud(asked, key, msg)
		cancel()
		if err == nil && key.Type == resource.TypeSecret {
			return m.orStored(ctx, key, msg, data)
		}
		if !errors.Is(err, errOffline) {
			return data, err
		}
		klog.V(4).InfoS("Answering from the store", "resource", key.String(), "err", err)
		stored, err := m.query(ctx, key, msg)
		if failure := answer.Failure(stored); err == nil && failure != nil && failure.Code == http.StatusNotFound &&
			unknownHere(key.Type) {
			return notStored(key)
		}
		return stored, err
	}
	if key.Type == resource.TypeLease && m.link.get().Features.Lease {
		return leaseKept(msg)
	}
	return m.askCloud(ctx, key, msg)
}

// patience returns how long the cloud gets to answer a question.
func (m *Module) patience(ctx context.Context, key resource.Key) time.Duration {
	if key.Type == resource.TypeSecret {
		if _, err := m.store.Get(ctx, key.String()); err == nil {
			return storedSecretTimeout
		}
	}
	return readTimeout
}

// orStored returns an answer of the cloud, but what is stored instead of a failure that says nothing about the object.
func (m *Module) orStored(
	ctx context.Context, key resource.Key, msg *model.Message, data []byte,
) (json.RawMessage, error) {
	if failure := answer.Failure(data); failure == nil || !answer.Again(failure) {
		return data, nil
	}
	stored, err := m.query(ctx, key, msg)
	if err != nil || answer.Failure(stored) != nil {
		return data, nil
	}
	return stored, nil
}

// notStored is the answer about an object that only the cloud may know.
func notStored(key resource.Key) (json.RawMessage, error) {
	return json.Marshal(map[string]metav1.Status{"ErrStatus": {
		Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonServiceUnavailable,
		Code:   http.StatusServiceUnavailable,
		Message: fmt.Sprintf("%s %q was not read before on this node, and the cloud cannot be asked for it now",
			key.Type, key.Name),
		Details: &metav1.StatusDetails{Name: key.Name, Kind: key.Type},
	}})
}

// leaseKept answers for a cloud that renews the lease itself.
func leaseKept(msg *model.Message) (json.RawMessage, error) {
	return json.Marshal(map[string]json.RawMessage{"Object": msg.Content, "Err": json.RawMessage("null")})
}

// askWhatIsMissing answers from the store, and asks the cloud only for what is not there or has grown old.
func (m *Module) askWhatIsMissing(ctx context.Context, key resource.Key, msg *model.Message) (json.RawMessage, error) {
	stored, err := m.query(ctx, key, msg)
	if err != nil {
		return nil, err
	}
	missing := answer.Failure(stored) != nil
	if !missing && (key.Type != resource.TypeServiceAccountToken || m.tokens.Keep(stored, m.opts.Now())) {
		return stored, nil
	}
	ask := m.askCloud
	if key.Type == resource.TypeServiceAccountToken {
		ask = m.tokens.Ask
	}
	data, err := ask(ctx, key, msg)
	if err != nil {
		if !errors.Is(err, errOffline) {
			return nil, err
		}
		return stored, nil // however old: only its successor replaces it
	}
	if !missing && answer.Failure(data) != nil {
		klog.InfoS("Token not renewed; the old one stays in "+
			"use", "resource", key.String(), "err", fmt.Sprintf("%.200s", data))
		return stored, nil
	}
	return data, nil
}

// askTokensAhead requests the tokens of a pod that has arrived and is not stored yet.
func (m *Module) askTokensAhead(ctx context.Context, in *incoming) {
	if !m.link.get().Connected {
		return
	}
	key := in.key
	for _, msg := range tokens.Requests(key, in.sized.pod) {
		select {
		case m.asking <- struct{}{}:
		default:
			return // edged asks for them
		}
		m.background(ctx, func(ctx context.Context) {
			defer func() { <-m.asking }()
			account, err := resource.Parse(msg.Route.Resource)
			if err == nil {
				_, err = m.tokens.Ask(ctx, account, msg)
			}
			if err != nil {
				klog.V(4).InfoS("Token not fetched ahead; edged will ask for it", "pod", key.String(), "err", err)
			}
		})
	}
}

// rowKey is where an object is in the store: under its name on the wire, but a token under what it was asked for.
func rowKey(key resource.Key, content []byte) (string, error) {
	if key.Type != resource.TypeServiceAccountToken {
		return key.String(), nil
	}
	return tokens.Key(key, content)
}

// toCloud sends a message without waiting for an answer.
func (m *Module) toCloud(ctx context.Context, msg *model.Message) {
	if err := m.bus.Send(ctx, model.ModuleEdgeHub, msg); err != nil {
		klog.V(2).InfoS("Message for the cloud not sent", "resource", msg.Route.Resource,
			"operation", msg.Route.Operation, "err", err)
	}
}
