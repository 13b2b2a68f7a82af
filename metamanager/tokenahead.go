package metamanager

import (
	"cmp"
	"context"
	"encoding/json"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/answer"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// A container waits for the tokens of its pod. metamanager requests them when the pod arrives, while it stores the pod,
// so that they are here or on their way when edged mounts the volumes.

const (
	// tokenSeconds is the lifetime of a token that edged requests if the pod does not set one.
	tokenSeconds = 3600
	// tokensAhead is how many tokens of one pod are requested ahead.
	tokensAhead = 8
)

// tokenAsks are the pending requests for tokens, by the row that the answer is stored in.
type tokenAsks struct {
	mu    sync.Mutex
	byRow map[string]*tokenAsk
}

// tokenAsk is one request. data and err are its result once done is closed.
type tokenAsk struct {
	done chan struct{}
	data json.RawMessage
	err  error
}

// start returns the request for a row. If mine is set, the caller makes the request and calls end.
func (a *tokenAsks) start(row string) (ask *tokenAsk, mine bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ask := a.byRow[row]; ask != nil {
		return ask, false
	}
	if a.byRow == nil {
		a.byRow = map[string]*tokenAsk{}
	}
	ask = &tokenAsk{done: make(chan struct{}), err: errOffline}
	a.byRow[row] = ask
	return ask, true
}

func (a *tokenAsks) end(row string, ask *tokenAsk) {
	a.mu.Lock()
	delete(a.byRow, row)
	a.mu.Unlock()
	close(ask.done)
}

// askToken requests a token from the cloud, or waits for the answer to the same request if that is pending. If the
// latter fails, it makes its own request: the API server may not have known the pod when it arrived.
func (m *Module) askToken(ctx context.Context, key resource.Key, msg *model.Message) (json.RawMessage, error) {
	row, err := rowKey(key, msg.ContentData())
	if err != nil {
		return nil, err
	}
	ask, mine := m.tokenAsks.start(row)
	if mine {
		defer m.tokenAsks.end(row, ask)
		ask.data, ask.err = m.ask(ctx, key, msg)
		return ask.data, ask.err
	}
	select {
	case <-ask.done:
		if _, failed := answer.Failure(ask.data); ask.err != nil || failed {
			return m.ask(ctx, key, msg)
		}
		return ask.data, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// askTokensAhead requests the tokens of a pod that has arrived and is not stored yet.
func (m *Module) askTokensAhead(ctx context.Context, key resource.Key, pod incoming) {
	uid, err := m.storedUID(ctx, key)
	if err == nil && uid == pod.id.Metadata.UID || !m.link.get().Connected {
		return
	}
	for _, msg := range tokenRequests(key, pod.row.Value) {
		select {
		case m.asking <- struct{}{}:
		default:
			return // edged asks for them
		}
		m.background(ctx, func(ctx context.Context) {
			defer func() { <-m.asking }()
			account, err := resource.Parse(msg.Route.Resource)
			if err == nil {
				_, err = m.askToken(ctx, account, msg)
			}
			if err != nil {
				klog.V(4).InfoS("Token not fetched ahead; edged will ask for it", "pod", key.String(), "err", err)
			}
		})
	}
}

// tokenRequests returns the requests that edged will make for the tokens in a pod's volumes. There are none for a pod
// that does not start here: the mirror of a static pod, or a pod that has ended or is being deleted.
func tokenRequests(key resource.Key, data []byte) []*model.Message {
	var pod struct {
		Metadata struct {
			metadata
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec struct {
			ServiceAccountName string `json:"serviceAccountName"`
			Volumes            []struct {
				Projected struct {
					Sources []struct {
						Token *tokenProjection `json:"serviceAccountToken"`
					} `json:"sources"`
				} `json:"projected"`
			} `json:"volumes"`
		} `json:"spec"`
		Status struct {
			Phase string `json:"phase"`
		} `json:"status"`
	}
	if json.Unmarshal(data, &pod) != nil || pod.Metadata.deleting() {
		return nil
	}
	ended := pod.Status.Phase == "Succeeded" || pod.Status.Phase == "Failed"
	if ended || pod.Metadata.Annotations[v1.MirrorPodAnnotationKey] != "" {
		return nil
	}
	account := resource.Key{
		Namespace: key.Namespace,
		Type:      resource.TypeServiceAccountToken,
		Name:      cmp.Or(pod.Spec.ServiceAccountName, "default"),
	}
	var requests []*model.Message
	for _, volume := range pod.Spec.Volumes {
		for _, source := range volume.Projected.Sources {
			if source.Token == nil || len(requests) == tokensAhead {
				continue
			}
			content, err := json.Marshal(map[string]any{"spec": source.Token.spec(key.Name, pod.Metadata.UID)})
			if err != nil {
				continue
			}
			requests = append(requests, model.New(model.ModuleEdged, model.GroupMeta, model.OpQuery, account.String(),
				content))
		}
	}
	return requests
}

// tokenProjection is a token in a projected volume of a pod.
type tokenProjection struct {
	Audience          string `json:"audience"`
	ExpirationSeconds *int64 `json:"expirationSeconds"`
}

func (p *tokenProjection) spec(pod, uid string) tokenSpec {
	spec := tokenSpec{
		ExpirationSeconds: tokenSeconds,
		BoundObjectRef:    boundRef{Kind: "Pod", APIVersion: "v1", Name: pod, UID: uid},
	}
	if p.ExpirationSeconds != nil {
		spec.ExpirationSeconds = *p.ExpirationSeconds
	}
	if p.Audience != "" {
		spec.Audiences = []string{p.Audience}
	}
	return spec
}
