// Package tokens has the tokens of service accounts that pods use: where they are in the store, which pods need some,
// and when they are renewed.
//
// A container waits for the tokens of its pod. They are requested when the pod arrives (Requests), so that they are
// here or on their way when edged mounts the volumes.
package tokens

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/answer"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

const (
	// defaultSeconds is the lifetime of a token that edged requests if the pod does not set one.
	defaultSeconds = 3600
	// aheadMax is how many tokens of one pod are requested ahead.
	aheadMax = 8
)

// Ask requests a token from the cloud. The answer may be a failure.
type Ask func(ctx context.Context, account resource.Key, request *model.Message) (json.RawMessage, error)

// Tokens requests tokens. Its methods may be called from any goroutine.
type Tokens struct {
	ask     Ask
	pending pending
	pace    pace
}

// New makes one that requests tokens with ask.
func New(ask Ask) *Tokens { return &Tokens{ask: ask} }

// LinkUp lets no token be renewed for a while that can wait: what matters more goes over a new link first.
func (t *Tokens) LinkUp(now time.Time) { t.pace.pauseRenewals(now) }

// Keep reports whether a stored token is not to be renewed now.
func (t *Tokens) Keep(token []byte, now time.Time) bool {
	return fresh(token, now) || canWait(token, now) && !t.pace.allow(now)
}

// pending are the requests that are on their way, by the row that the answer is stored in.
type pending struct {
	mu    sync.Mutex
	byRow map[string]*request
}

// request is one of them. data and err are its result once done is closed.
type request struct {
	done chan struct{}
	data json.RawMessage
	err  error
}

// errPanicked is the error of a request that did not end otherwise.
var errPanicked = errors.New("the request for the token panicked")

// start returns the request for a row. If mine is set, the caller makes the request and calls finish.
func (p *pending) start(row string) (ask *request, mine bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ask := p.byRow[row]; ask != nil {
		return ask, false
	}
	if p.byRow == nil {
		p.byRow = map[string]*request{}
	}
	ask = &request{done: make(chan struct{}), err: errPanicked}
	p.byRow[row] = ask
	return ask, true
}

func (p *pending) finish(row string, ask *request) {
	p.mu.Lock()
	delete(p.byRow, row)
	p.mu.Unlock()
	close(ask.done)
}

// Ask requests a token from the cloud, or waits for the answer to the same request if that is pending. If the latter
// fails, it makes its own request: the API server may not have known the pod when it arrived.
func (t *Tokens) Ask(ctx context.Context, account resource.Key, msg *model.Message) (json.RawMessage, error) {
	row, err := Key(account, msg.ContentData())
	if err != nil {
		return nil, err
	}
	ask, mine := t.pending.start(row)
	if mine {
		defer t.pending.finish(row, ask)
		ask.data, ask.err = t.ask(ctx, account, msg)
		return ask.data, ask.err
	}
	select {
	case <-ask.done:
		if ask.err != nil || answer.Failure(ask.data) != nil {
			return t.ask(ctx, account, msg)
		}
		return ask.data, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Requests returns the requests that edged will make for the tokens in a pod's volumes. There are none for a pod that
// does not start here: the mirror of a static pod, or a pod that has ended or is being deleted.
func Requests(key resource.Key, pod *v1.Pod) []*model.Message {
	ended := pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
	if ended || pod.DeletionTimestamp != nil || pod.Annotations[v1.MirrorPodAnnotationKey] != "" {
		return nil
	}
	account := resource.Key{
		Namespace: key.Namespace,
		Type:      resource.TypeServiceAccountToken,
		Name:      cmp.Or(pod.Spec.ServiceAccountName, "default"),
	}
	var requests []*model.Message
	for i := range pod.Spec.Volumes {
		projected := pod.Spec.Volumes[i].Projected
		if projected == nil {
			continue
		}
		for _, source := range projected.Sources {
			if source.ServiceAccountToken == nil || len(requests) == aheadMax {
				continue
			}
			spec := specOf(source.ServiceAccountToken, key.Name, string(pod.UID))
			content, err := json.Marshal(map[string]any{"spec": spec})
			if err != nil {
				continue
			}
			requests = append(requests, model.New(model.ModuleEdged, model.GroupMeta, model.OpQuery, account.String(),
				content))
		}
	}
	return requests
}

// specOf returns what edged asks for, for a token in a projected volume of a pod.
func specOf(token *v1.ServiceAccountTokenProjection, pod, uid string) spec {
	s := spec{
		ExpirationSeconds: defaultSeconds,
		BoundObjectRef:    Ref{Kind: "Pod", APIVersion: "v1", Name: pod, UID: uid},
	}
	if token.ExpirationSeconds != nil {
		s.ExpirationSeconds = *token.ExpirationSeconds
	}
	if token.Audience != "" {
		s.Audiences = []string{token.Audience}
	}
	return s
}
