// Package requests carries out the requests of nodes. Every write for a node, and every read that the caches cannot
// answer, impersonates the node (user system:node:<name>, group system:nodes), so that the API server's node authorizer
// and NodeRestriction admission decide what a node may do, as for any kubelet. The API server must run with both, as
// kubeadm's does. In its own name cloudcore only creates Nodes, which need a label that a node may not set itself.
//
// The table of requests is in table.go. Each group of requests has its handlers, which have what they need and no more.
//
// No request makes the process exit: a request that cannot be understood is answered with a metav1.Status that says
// why.
package requests

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/slots"
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

// Requests carries out the requests of nodes.
type Requests struct {
	Options
	table map[requestName]requestType
	// recent says which pods changed while a request waited.
	recent *recentChanges
}

// Options configures Requests. All fields must be set, but Permit, LocalIP and NodeLabels.
type Options struct {
	// AsNode acts as the node of the context (impersonate.WithNode), Own as cloudcore itself.
	AsNode, Own kubernetes.Interface
	Caches      Caches
	Sessions    *sessions.Sessions
	Endpoints   Endpoints
	// Whole returns the whole of a pod that may be trimmed, Content a ConfigMap or Secret; nil if it does not exist.
	Whole   func(ctx context.Context, pod *v1.Pod) (*v1.Pod, error)
	Content func(key resource.Key) (*cloudhub.Object, error)
	// Slots limits how many requests are carried out at a time, each for up to Timeout. QPS is the rate limit of a
	// node.
	Slots   slots.Semaphore
	Timeout time.Duration
	QPS     float64
	// Permit returns an error if a node may not make requests now. It is called right before a request is carried out;
	// a refused request gets no answer. nil permits all.
	Permit func(ctx context.Context, node string) error
	// LocalIP is this cloudcore's address for CloudcoreAnnotation. If it is empty, nodes get no annotation.
	LocalIP string
	// NodeLabels returns labels that a Node gets at registration in addition to EdgeLabel; nil is none.
	NodeLabels func(node string) map[string]string
	// Reported is called for each status of a pod that the API server has stored.
	Reported func(node string, pod *v1.Pod)
	// Answered counts the requests by type, operation and code of the answer.
	Answered *prometheus.CounterVec
}

// Caches is what requests need from the caches of the API server's objects. They must not be modified.
type Caches interface {
	// Node returns a Node with EdgeLabel, or nil.
	Node(name string) *v1.Node
	// Pod returns a pod of an edge node, which may be trimmed, or nil.
	Pod(namespace, name string) *v1.Pod
	// Named returns which ConfigMap or Secret there is of a key; nil if there is none, or it is not cached.
	Named(key resource.Key) *metav1.PartialObjectMetadata
	// Names reports whether a pod on the node names a ConfigMap or Secret.
	Names(node string, key resource.Key) bool
}

// Endpoints knows where callers reach the kubelet APIs of nodes.
type Endpoints interface {
	// Complete gives the status that a node reports its endpoint, or removes one that is not its own.
	Complete(node string, status *v1.NodeStatus)
	// Tunnelled returns a patch of a node's status with its endpoint, if it has one.
	Tunnelled(node string, patch []byte) ([]byte, error)
	// ForDevice returns the copy of a Node that its device gets.
	ForDevice(node *v1.Node) *v1.Node
}

// Hub is what requests need from the hub.
type Hub interface {
	// Holds reports that a node has an object that the hub may not know of.
	Holds(node string, key resource.Key, uid types.UID)
	// ToRecord returns what a Node's annotation must become; see edgecontroller.Hub.
	ToRecord(node string, have cloudhub.Record) (next cloudhub.Record, wait time.Duration, ok bool)
}

// New makes requests. Start must be called before the first one.
func New(options Options) *Requests {
	return &Requests{Options: options, recent: newRecentChanges()}
}

// PodChanged must be called for each pod that is new or changed; nil is ignored.
func (q *Requests) PodChanged(pod *v1.Pod) { q.recent.changed(pod) }

// Start sets the hub. It must return before the first request comes.
func (q *Requests) Start(hub Hub) { q.table = q.requestTypes(hub) }

// Handle implements cloudhub.Upstream.
func (q *Requests) Handle(ctx context.Context, node string, m *model.Message) *model.Message {
	r := request{node: node, op: m.Route.Operation, capable: q.Sessions.Capable(node), arrived: time.Now()}
	r.received = r.arrived
	if at, ok := cloudhub.Arrival(ctx); ok {
		r.received = at
	}
	res := q.handle(ctx, &r, m)
	name := requestName{r.key.Type, r.op}
	_, known := q.table[name]
	q.count(name, known, res)
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

func (q *Requests) handle(ctx context.Context, r *request, m *model.Message) (res result) {
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
	f, known := q.table[requestName{key.Type, r.op}]
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
	ctx, cancel := context.WithDeadline(ctx, r.arrived.Add(q.Timeout))
	defer cancel()
	place, err := q.admit(ctx, r)
	if err != nil {
		return fail(err)
	}
	defer place.Release()
	ctx = slots.WithSlot(ctx, place)
	if r.content, err = cmp.Or(f.limit, smallContent()).read(r, m); err != nil {
		return fail(err)
	}
	if q.Permit != nil {
		if err := q.Permit(ctx, r.node); err != nil {
			klog.V(1).InfoS("Request failed", "node", r.node, "operation", r.op, "resource", text, "err", err)
			return result{none: true}
		}
	}
	return f.serve(impersonate.WithNode(ctx, r.node), r)
}

// admit waits until a request may be carried out. It leaves a third of the request's time for that: a request that
// starts later would time out, and the node would repeat it.
func (q *Requests) admit(ctx context.Context, r *request) (*slots.Slot, error) {
	if err := q.awaitRateLimit(ctx, r); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, q.lastStart(r))
	defer cancel()
	place := &slots.Slot{Of: q.Slots}
	if err := place.Acquire(ctx); err != nil {
		return nil,
			apierrors.NewServiceUnavailable(fmt.Sprintf("%s: cloudcore has %d requests at the API server and dropped "+
				"this one: %v", r.key, cap(q.Slots), err))
	}
	return place, nil
}

// lastStart is the latest time at which a request may start.
func (q *Requests) lastStart(r *request) time.Time {
	return r.arrived.Add(q.Timeout * 2 / 3)
}

// awaitRateLimit waits while a node exceeds its rate limit.
func (q *Requests) awaitRateLimit(ctx context.Context, r *request) error {
	ctx, cancel := context.WithDeadline(ctx, q.lastStart(r))
	defer cancel()
	if q.Sessions.Limiter(r.node).Wait(ctx) != nil {
		return apierrors.NewTooManyRequests(fmt.Sprintf("node %s sends more than %g requests a second", r.node,
			q.QPS), 5)
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
