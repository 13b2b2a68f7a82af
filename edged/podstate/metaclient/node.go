package metaclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// What follows needs the cloud: without a link it fails at once, and is to be tried again when there is one.

// leaseNamespace is where the leases of nodes are.
const leaseNamespace = "kube-node-lease"

// errNoObject: the cloud answered neither with an object nor with an error.
var errNoObject = errors.New("the answer has no object")

// done is how the cloud answers what is to be done (docs/wire.md, Requests of the node).
type done struct {
	Object json.RawMessage `json:"Object"`
	Err    json.RawMessage `json:"Err"`
}

// act has something done in the cloud, and returns the object that it made of it.
func act[T any](ctx context.Context, c *Client, operation string, key resource.Key, obj any) (*T, error) {
	var content json.RawMessage
	if obj != nil {
		var err error
		if content, err = json.Marshal(obj); err != nil {
			return nil, fmt.Errorf("encode %s: %w", key, err)
		}
	}
	data, err := c.request(ctx, operation, key, content)
	if err != nil {
		return nil, err
	}
	var answer done
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("%s %s: answer of the cloud: %w", operation, key, err)
	}
	if text := string(answer.Err); text != "" && text != "null" {
		if err := statusError(answer.Err); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s %s: the cloud failed and gave no reason", operation, key)
	}
	if text := string(answer.Object); text == "" || text == "null" {
		return nil, fmt.Errorf("%s %s: %w", operation, key, errNoObject)
	}
	out := new(T)
	if err := json.Unmarshal(answer.Object, out); err != nil {
		return nil, fmt.Errorf("%s %s: answer of the cloud: %w", operation, key, err)
	}
	return out, nil
}

func nodeKey(name string) resource.Key {
	return resource.Key{Namespace: resource.NullNamespace, Type: resource.TypeNode, Name: name}
}

// RegisterNode makes the Node; apierrors.IsAlreadyExists tells one that is there.
func (c *Client) RegisterNode(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	return act[v1.Node](ctx, c, model.OpInsert, nodeKey(node.Name), node)
}

// Node returns the Node as the cloud has it, or as it was when there was a link.
func (c *Client) Node(ctx context.Context, name string) (*v1.Node, error) {
	return Get[v1.Node](ctx, c, nodeKey(name))
}

// UpdateNode changes the Node's labels, annotations and taints.
func (c *Client) UpdateNode(ctx context.Context, node *v1.Node) error {
	content, err := json.Marshal(node)
	if err != nil {
		return err
	}
	_, err = c.request(ctx, model.OpUpdate, nodeKey(node.Name), content)
	return err
}

// PatchNodeStatus applies a strategic merge patch to the Node's status.
func (c *Client) PatchNodeStatus(ctx context.Context, name string, patch []byte) error {
	key := nodeKey(name)
	key.Type = resource.TypeNodePatch
	_, err := act[v1.Node](ctx, c, model.OpPatch, key, string(patch)) // on the wire a patch is a string
	return err
}

// PatchClaimStatus applies a strategic merge patch to the status of a PersistentVolumeClaim. Clouds of KubeEdge take
// none.
func (c *Client) PatchClaimStatus(ctx context.Context, namespace, name string, patch []byte) error {
	key := resource.Key{Namespace: namespace, Type: resource.TypePersistentVolumeClaim, Name: name}
	_, err := act[v1.PersistentVolumeClaim](ctx, c, model.OpPatch, key, json.RawMessage(patch))
	return err
}

func leaseKey(name string) resource.Key {
	return resource.Key{Namespace: leaseNamespace, Type: resource.TypeLease, Name: name}
}

// Lease returns the node's lease.
func (c *Client) Lease(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	return act[coordinationv1.Lease](ctx, c, model.OpQuery, leaseKey(name), nil)
}

// CreateLease makes the node's lease.
func (c *Client) CreateLease(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return act[coordinationv1.Lease](ctx, c, model.OpInsert, leaseKey(lease.Name), lease)
}

// UpdateLease renews the node's lease.
func (c *Client) UpdateLease(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return act[coordinationv1.Lease](ctx, c, model.OpUpdate, leaseKey(lease.Name), lease)
}

func csiNodeKey(name string) resource.Key {
	return resource.Key{Namespace: resource.NullNamespace, Type: resource.TypeCSINode, Name: name}
}

// CSINode returns the node's CSINode, which lists its CSI drivers.
func (c *Client) CSINode(ctx context.Context, name string) (*storagev1.CSINode, error) {
	return Get[storagev1.CSINode](ctx, c, csiNodeKey(name))
}

// CreateCSINode makes the node's CSINode; apierrors.IsAlreadyExists tells one that is there.
func (c *Client) CreateCSINode(ctx context.Context, node *storagev1.CSINode) (*storagev1.CSINode, error) {
	return act[storagev1.CSINode](ctx, c, model.OpInsert, csiNodeKey(node.Name), node)
}

// UpdateCSINode replaces the node's CSINode; apierrors.IsConflict tells that it was changed meanwhile.
func (c *Client) UpdateCSINode(ctx context.Context, node *storagev1.CSINode) (*storagev1.CSINode, error) {
	return act[storagev1.CSINode](ctx, c, model.OpUpdate, csiNodeKey(node.Name), node)
}

// Token returns a token of a service account: the stored one until it is time to renew it, and after that as long
// as it cannot be renewed.
func (c *Client) Token(
	ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	content, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	key := resource.Key{Namespace: namespace, Type: resource.TypeServiceAccountToken, Name: account}
	data, err := c.request(ctx, model.OpQuery, key, content)
	if err != nil {
		return nil, err
	}
	out := &authenticationv1.TokenRequest{}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("decode %s: %w", key, err)
	}
	if out.Status.Token == "" {
		return nil, fmt.Errorf("token of service account %s/%s: the answer has none", namespace, account)
	}
	return out, nil
}

// Services returns the stored services of a namespace.
func (c *Client) Services(ctx context.Context, namespace string) ([]v1.Service, error) {
	list, err := Get[[]v1.Service](ctx, c, resource.Key{Namespace: namespace, Type: resource.TypeService})
	if err != nil {
		return nil, err
	}
	return *list, nil
}

// ReportEvent queues an event for the cloud; again says that it was reported before.
func (c *Client) ReportEvent(ctx context.Context, event *v1.Event, again bool) error {
	content, err := json.Marshal(event)
	if err != nil {
		return err
	}
	operation := model.OpInsert
	if again {
		operation = model.OpUpdate
	}
	key := resource.Key{Namespace: event.Namespace, Type: resource.TypeEvent, Name: event.Name}
	_, err = c.request(ctx, operation, key, content)
	return err
}

// LinkNews decodes what metamanager reports about the link.
func LinkNews(m *model.Message) (connected, synced bool) {
	var link struct {
		Connected bool `json:"connected"`
		Synced    bool `json:"synced"`
	}
	return json.Unmarshal(m.ContentData(), &link) == nil && link.Connected, link.Synced
}
