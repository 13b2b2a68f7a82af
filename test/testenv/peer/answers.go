package peer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// tokenLength is about that of an API server's token that is bound to a pod.
const tokenLength = 1100

// objectResponse answers a write.
type objectResponse struct {
	Object any
	Err    *statusError
}

// statusError is an error as it is on the wire, also as the answer to a query.
type statusError struct{ ErrStatus metav1.Status }

var errNotServed = errors.New("this cloud knows no such thing")

func notFound(key resource.Key) *statusError {
	s := apierrors.NewNotFound(schema.GroupResource{Resource: key.Type + "s"}, key.Name).ErrStatus
	return &statusError{s}
}

// answer does what the edge asks for; nil is no answer.
func (c *Cloud) answer(m *model.Message) *model.Message {
	if m.Route.Operation == model.OpKeepalive {
		return nil
	}
	key, err := resource.Parse(m.Route.Resource)
	if err != nil {
		return m.RespondError(source, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	content, version, err := c.asked(m, key)
	if err != nil {
		c.refused = append(c.refused, fmt.Sprintf("%s %s: %v", m.Route.Operation, m.Route.Resource, err))
		return m.RespondError(source, err)
	}
	if content == nil {
		return nil
	}
	data, err := json.Marshal(content)
	if err != nil {
		return m.RespondError(source, err)
	}
	to := m.Respond(data)
	to.Route.Source, to.Route.Group, to.Header.ResourceVersion = source, model.GroupResource, version
	return to
}

// asked is the content of the answer. The lock is held.
func (c *Cloud) asked(m *model.Message, key resource.Key) (content any, version string, err error) {
	query := m.Route.Operation == model.OpQuery
	switch key.Type {
	case resource.TypeNode:
		if query {
			return orNotFound(c.nodeObj, key), "", nil
		}
		c.nodeObj, err = c.kept(m.ContentData(), "Node")
		return objectResponse{Object: c.nodeObj}, "", err
	case resource.TypeNodePatch:
		return objectResponse{Object: c.nodeObj}, "", nil
	case resource.TypeLease:
		if query && c.lease == nil {
			return objectResponse{Object: metav1.PartialObjectMetadata{}, Err: notFound(key)}, "", nil
		}
		if !query {
			c.lease, err = c.kept(m.ContentData(), "Lease")
		}
		return objectResponse{Object: c.lease}, "", err
	case resource.TypeEvent:
		return nil, "", nil
	case resource.TypePodPatch:
		return c.patched(key, m.ContentData())
	case resource.TypePod:
		if m.Route.Operation == model.OpDelete {
			return c.ended(key, m.ContentData())
		}
		made, err := c.kept(m.ContentData(), "Pod") // a static pod's mirror
		return objectResponse{Object: made}, "", err
	case resource.TypeConfigMap, resource.TypeSecret:
		if o := c.objects[key.String()]; o != nil && !o.Deleted {
			return o.data, strconv.Itoa(o.version), nil
		}
		return notFound(key), "", nil
	case resource.TypeServiceAccountToken:
		return c.token(key, m.ContentData())
	}
	return nil, "", errNotServed
}

// token is one for a pod of the node. It is as long as an API server's, and nobody takes it for one.
func (c *Cloud) token(key resource.Key, content []byte) (any, string, error) {
	var request authenticationv1.TokenRequest
	if err := json.Unmarshal(content, &request); err != nil {
		return nil, "", err
	}
	ref := ptr.Deref(request.Spec.BoundObjectRef, authenticationv1.BoundObjectReference{})
	pod := resource.Key{Namespace: key.Namespace, Type: resource.TypePod, Name: ref.Name}
	if o := c.objects[pod.String()]; o == nil || o.Deleted || o.uid != ref.UID {
		return notFound(pod), "", nil
	}
	token := "of-" + key.Name + "-for-" + string(ref.UID) + "-"
	request.Name, request.Namespace = key.Name, key.Namespace
	request.Status = authenticationv1.TokenRequestStatus{
		Token: token + strings.Repeat("x", max(0, tokenLength-len(token))),
		ExpirationTimestamp: metav1.NewTime(time.Now().
			Add(time.Duration(ptr.Deref(request.Spec.ExpirationSeconds, 3600)) * time.Second)),
	}
	return request, "", nil
}

func orNotFound(data json.RawMessage, key resource.Key) any {
	if data == nil {
		return notFound(key)
	}
	return data
}

// kept is an object of the edge's as it is stored here.
func (c *Cloud) kept(data []byte, kind string) (json.RawMessage, error) {
	var obj map[string]any
	if err := json.Unmarshal(data, &obj); err != nil {
		return nil, err
	}
	meta, _ := obj["metadata"].(map[string]any)
	if meta == nil {
		return nil, fmt.Errorf("a %s without metadata", kind)
	}
	c.version++
	meta["resourceVersion"] = strconv.Itoa(c.version)
	if meta["uid"] == nil {
		meta["uid"] = model.NewID()
	}
	return json.Marshal(obj)
}

// patched takes the status of a pod.
func (c *Cloud) patched(key resource.Key, patch []byte) (content any, version string, err error) {
	key.Type = resource.TypePod
	o := c.objects[key.String()]
	if o == nil || o.Deleted {
		return objectResponse{Object: metav1.PartialObjectMetadata{}, Err: notFound(key)}, "", nil
	}
	before, err := json.Marshal(v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: o.uid}, Status: o.status})
	if err != nil {
		return nil, "", err
	}
	after, err := strategicpatch.StrategicMergePatch(before, patch, v1.Pod{})
	if err != nil {
		return nil, "", err
	}
	var pod v1.Pod
	if err := json.Unmarshal(after, &pod); err != nil {
		return nil, "", err
	}
	if pod.UID == o.uid {
		o.status = pod.Status
		o.Finished = o.Finished || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
	}
	return objectResponse{Object: o.data}, strconv.Itoa(o.version), nil
}

// ended takes the report that a deleted pod has ended.
func (c *Cloud) ended(key resource.Key, content []byte) (any, string, error) {
	var options metav1.DeleteOptions
	if err := json.Unmarshal(content, &options); err != nil {
		return nil, "", err
	}
	o := c.objects[key.String()]
	if o != nil && options.Preconditions != nil && options.Preconditions.UID != nil &&
		*options.Preconditions.UID == o.uid {
		o.Deleted = true
		c.nudge()
	}
	return model.OK, "", nil
}
