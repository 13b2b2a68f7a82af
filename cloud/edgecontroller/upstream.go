package edgecontroller

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// maxRoute is the maximum length of a request's resource and operation: names in Kubernetes have up to 253 bytes.
const maxRoute = 1024

// request is a request from a node.
type request struct {
	node    string
	key     resource.Key
	op      string
	content []byte
	// capable is set for our edgecores.
	capable bool
	// received is when the request came from its node. arrived is when the hub passed it on; it expires RequestTimeout
	// later, whatever it waits for.
	received, arrived time.Time
}

// contentOf returns a message's content. KubeEdge 1.12.0's edgecores send patches as Go's bytes, which JSON encodes as
// base64.
func contentOf(m *model.Message) []byte {
	data := m.ContentData()
	if len(m.Content) == 0 || m.Content[0] != '"' {
		return data
	}
	plain := make([]byte, base64.StdEncoding.DecodedLen(len(data)))
	n, err := base64.StdEncoding.Decode(plain, data)
	if err != nil || n == 0 || plain[0] != '{' || !json.Valid(plain[:n]) {
		return data
	}
	return plain[:n]
}

// requestHandler carries a request out. The context has a deadline and the node.
type requestHandler func(ctx context.Context, r *request) result

// requestType is one row of the table of requests.
type requestType struct {
	serve requestHandler
	// objectResp: errors are answered in an ObjectResp, and not like a query's.
	objectResp bool
	// unnamed: the key may lack a name.
	unnamed bool
	// silent: KubeEdge's edgecores expect no answer. Ours repeat a report until there is one.
	silent bool
	// limit bounds the content; the zero value means smallContent.
	limit contentLimit
}

type requestName struct{ kind, op string }

// requestTypes returns the table in docs/wire.md, Requests of the node.
func (c *Controller) requestTypes() map[requestName]requestType {
	medium, large := mediumContent(), largeContent()
	return map[requestName]requestType{
		{resource.TypeNode, model.OpInsert}:                 {serve: c.registerNode, objectResp: true, limit: large},
		{resource.TypeNode, model.OpQuery}:                  {serve: c.queryNode},
		{resource.TypeNode, model.OpUpdate}:                 {serve: c.updateNode, limit: large},
		{resource.TypeNodePatch, model.OpPatch}:             {serve: c.patchNodeStatus, objectResp: true, limit: large},
		{resource.TypeNodeStatus, model.OpInsert}:           {serve: c.registerOldNode, limit: large},
		{resource.TypeNodeStatus, model.OpUpdate}:           {serve: c.updateOldNodeStatus, limit: large},
		{resource.TypeLease, model.OpQuery}:                 {serve: c.queryLease, objectResp: true},
		{resource.TypeLease, model.OpInsert}:                {serve: c.createLease, objectResp: true},
		{resource.TypeLease, model.OpUpdate}:                {serve: c.updateLease, objectResp: true},
		{resource.TypePod, model.OpQuery}:                   {serve: c.queryPod},
		{resource.TypePod, model.OpInsert}:                  {serve: c.createMirrorPod, objectResp: true, limit: large},
		{resource.TypePod, model.OpDelete}:                  {serve: c.deletePod},
		{resource.TypePodPatch, model.OpPatch}:              {serve: c.patchPodStatus, objectResp: true, limit: large},
		{resource.TypePodStatus, model.OpUpdate}:            {serve: c.updateOldPodStatus, unnamed: true, limit: large},
		{resource.TypeConfigMap, model.OpQuery}:             {serve: c.queryConfigMap},
		{resource.TypeSecret, model.OpQuery}:                {serve: c.querySecret},
		{resource.TypeServiceAccountToken, model.OpQuery}:   {serve: c.requestToken},
		{resource.TypePersistentVolume, model.OpQuery}:      {serve: c.queryPersistentVolume},
		{resource.TypePersistentVolumeClaim, model.OpQuery}: {serve: c.queryPersistentVolumeClaim},
		{resource.TypePersistentVolumeClaim, model.OpPatch}: {serve: c.patchClaimStatus, objectResp: true},
		{resource.TypeVolumeAttachment, model.OpQuery}:      {serve: c.queryVolumeAttachment},
		{resource.TypeRuntimeClass, model.OpQuery}:          {serve: c.queryRuntimeClass},
		{resource.TypeCSIDriver, model.OpQuery}:             {serve: c.queryCSIDriver},
		{resource.TypeCSINode, model.OpQuery}:               {serve: c.queryCSINode},
		{resource.TypeCSINode, model.OpInsert}:              {serve: c.createCSINode, objectResp: true, limit: medium},
		{resource.TypeCSINode, model.OpUpdate}:              {serve: c.updateCSINode, objectResp: true, limit: medium},
		{resource.TypeClusterTrustBundle, model.OpQuery}:    {serve: c.queryClusterTrustBundle, unnamed: true},
		{resource.TypeCSR, model.OpInsert}:                  {serve: c.createCSR, objectResp: true},
		{resource.TypeCSR, model.OpQuery}:                   {serve: c.queryCSR},
		{resource.TypeTokenReview, model.OpInsert}:          {serve: c.reviewToken, objectResp: true, limit: medium},
		{resource.TypeAccessReview, model.OpInsert}:         {serve: c.reviewAccess, objectResp: true, limit: medium},
		{resource.TypeClientCA, model.OpQuery}:              {serve: c.queryClientCA},
		{resource.TypeService, model.OpQuery}:               {serve: c.queryService},
		{resource.TypeEndpoints, model.OpQuery}:             {serve: c.queryEndpoints},
		{resource.TypeEvent, model.OpInsert}:                {serve: c.createEvent, silent: true, limit: medium},
		{resource.TypeEvent, model.OpUpdate}:                {serve: c.updateEvent, silent: true, limit: medium},
		{resource.TypeEvent, model.OpPatch}:                 {serve: c.patchEvent, silent: true, limit: medium},
	}
}

// Handle implements cloudhub.Upstream.
func (c *Controller) Handle(ctx context.Context, node string, m *model.Message) *model.Message {
	r := request{node: node, op: m.Route.Operation, capable: c.sessions.capable(node), arrived: time.Now()}
	r.received = r.arrived
	if at, ok := cloudhub.Arrival(ctx); ok {
		r.received = at
	}
	res := c.handle(ctx, &r, m)
	name := requestName{r.key.Type, r.op}
	_, known := c.table[name]
	c.metrics.answered(name, known, res)
	if res.none {
		return nil
	}
	to, err := answer(m, res)
	if err != nil {
		klog.ErrorS(err, "Request of a node not answered", "node", node)
		return nil
	}
	return to
}

func (c *Controller) handle(ctx context.Context, r *request, m *model.Message) (res result) {
	text := m.Route.Resource
	if len(text)+len(r.op) > maxRoute {
		return failed(apierrors.NewBadRequest(fmt.Sprintf("a resource and its operation have %d bytes, limit %d",
			len(text)+len(r.op), maxRoute)))
	}
	key, err := resource.Parse(text)
	if err != nil {
		return failed(apierrors.NewBadRequest(err.Error()))
	}
	r.key = key
	f, known := c.table[requestName{key.Type, r.op}]
	if !known {
		klog.V(2).InfoS("Request of an unknown node", "node", r.node, "operation", r.op, "resource", text)
		return failed(badRequest(key, "operation %q of resource type %q is unknown to this cloudcore", r.op, key.Type))
	}
	fail := func(err error) result {
		switch {
		case f.silent && !r.capable:
			return result{none: true}
		case f.objectResp:
			return written(nil, err, false)
		}
		return failed(err)
	}
	defer func() {
		if cause := recover(); cause != nil {
			klog.ErrorS(fmt.Errorf("%v", cause), "A request of a node failed in cloudcore itself", "node", r.node,
				"operation", r.op, "resource", text, "stack", string(debug.Stack()))
			res = fail(apierrors.NewInternalError(fmt.Errorf("%s %s: cloudcore failed: %v", r.op, text, cause)))
		}
		if f.silent && !r.capable {
			res = result{none: true}
		}
	}()
	if key.Name == "" && !f.unnamed {
		return fail(badRequest(key, "it has no name; want <namespace>/%s/<name>", key.Type))
	}
	ctx, cancel := context.WithDeadline(ctx, r.arrived.Add(c.options.RequestTimeout))
	defer cancel()
	place, err := c.admit(ctx, r)
	if err != nil {
		return fail(err)
	}
	defer place.release()
	ctx = withSlot(ctx, place)
	if r.content, err = cmp.Or(f.limit, smallContent()).read(r, m); err != nil {
		return fail(err)
	}
	if c.options.Permit != nil {
		if err := c.options.Permit(ctx, r.node); err != nil {
			klog.V(1).InfoS("Request failed", "node", r.node, "operation", r.op, "resource", text, "err", err)
			return result{none: true}
		}
	}
	return f.serve(withNode(ctx, r.node), r)
}

// admit waits until a request may be carried out. It leaves a third of the request's time for that: a request that
// starts later would time out, and the node would repeat it.
func (c *Controller) admit(ctx context.Context, r *request) (*slot, error) {
	if err := c.awaitRateLimit(ctx, r); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, c.lastStart(r))
	defer cancel()
	place := &slot{of: c.requests}
	if err := place.acquire(ctx); err != nil {
		return nil,
			apierrors.NewServiceUnavailable(fmt.Sprintf("%s: cloudcore has %d requests at the API server and dropped "+
				"this one: %v", r.key, cap(c.requests), err))
	}
	return place, nil
}

// lastStart is the latest time at which a request may start.
func (c *Controller) lastStart(r *request) time.Time {
	return r.arrived.Add(c.options.RequestTimeout * 2 / 3)
}

// awaitRateLimit waits while a node exceeds its rate limit.
func (c *Controller) awaitRateLimit(ctx context.Context, r *request) error {
	ctx, cancel := context.WithDeadline(ctx, c.lastStart(r))
	defer cancel()
	if c.sessions.limiter(r.node).Wait(ctx) != nil {
		return apierrors.NewTooManyRequests(fmt.Sprintf("node %s sends more than %g requests a second", r.node,
			c.options.NodeQPS), 5)
	}
	return nil
}

// decode decodes a request's content.
func decode[T any](r *request, what string) (*T, error) {
	if len(r.content) == 0 || bytes.Equal(bytes.TrimSpace(r.content), []byte("null")) {
		return nil, badRequest(r.key, "the content is empty; want a %s", what)
	}
	out := new(T)
	if err := json.Unmarshal(r.content, out); err != nil {
		return nil, badRequest(r.key, "the content is not a %s: %v", what, err)
	}
	return out, nil
}

// patchText checks that the content is a patch, a JSON object.
func patchText(r *request) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(r.content, &fields); err != nil || fields == nil {
		return nil, badRequest(r.key, "the content is not a patch: want a JSON object, got %.80q", r.content)
	}
	return fields, nil
}
