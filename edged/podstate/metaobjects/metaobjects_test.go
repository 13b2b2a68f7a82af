package metaobjects

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edged/podstate/metaclient"
	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// bus answers by resource, and keeps the requests.
type bus struct {
	answers map[string]string
	asked   []*model.Message
}

func (b *bus) SendSync(_ context.Context, _ string, m *model.Message) (*model.Message, error) {
	b.asked = append(b.asked, m)
	answer, ok := b.answers[m.Route.Resource]
	if !ok {
		return nil, errors.New("no link")
	}
	return m.Respond(json.RawMessage(answer)), nil
}

// TestServices: a pod gets the services of its namespace and of default. What cannot be read is left out.
func TestServices(t *testing.T) {
	b := &bus{answers: map[string]string{
		"default/service": `[{"metadata":{"name":"kubernetes","namespace":"default"}}]`,
		"shop/service":    `[{"metadata":{"name":"web","namespace":"shop"}}]`,
	}}
	o := New(metaclient.New(b), "edge-1")
	for namespace, want := range map[string][]string{
		"default": {"kubernetes"}, "shop": {"kubernetes", "web"}, "unknown": {"kubernetes"},
	} {
		var got []string
		for _, s := range o.Services(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}) {
			got = append(got, s.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("services of a pod in %s (-want +got):\n%s", namespace, diff)
		}
	}
}

// TestToken: a token is bound to its pod, and a static pod gets none.
func TestToken(t *testing.T) {
	b := &bus{answers: map[string]string{"shop/serviceaccounttoken/default": `{"status":{"token":"secret"}}`}}
	o := New(metaclient.New(b), "edge-1")
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"}}
	got, _, err := o.Token(t.Context(), pod, &v1.ServiceAccountTokenProjection{Audience: "vault"})
	if err != nil || got != "secret" {
		t.Errorf("Token = %q, %v, want secret", got, err)
	}
	const want = `"audiences":["vault"],"expirationSeconds":3600,"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"web","uid":"u"}`
	if text := string(b.asked[0].ContentData()); !strings.Contains(text, want) {
		t.Errorf("requested %s, want %s in it", text, want)
	}
	pod.Annotations = map[string]string{source.AnnotationSource: "file"}
	if _, _, err := o.Token(t.Context(), pod, &v1.ServiceAccountTokenProjection{}); err == nil || len(b.asked) != 1 {
		t.Errorf("Token of a static pod: %v, %d requests, want an error and no other request", err, len(b.asked))
	}
}

// TestRenewAt: a token is asked for again when metamanager renews it, before it ends where that failed, and now and
// then where that does not matter or does not help.
func TestRenewAt(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		life, left, want time.Duration
	}{
		{time.Hour, time.Hour, 48 * time.Minute},
		{time.Hour, 13 * time.Minute, time.Minute},
		{time.Hour, 12 * time.Minute, 3 * time.Minute}, // due, and not renewed
		{time.Hour, time.Minute, minTokenRetry},
		{time.Hour, -time.Hour, maxTokenRetry},
		{10 * time.Minute, 10 * time.Minute, 8 * time.Minute},
		{10 * time.Minute, 2 * time.Minute, 30 * time.Second},
		{365 * 24 * time.Hour, 365 * 24 * time.Hour, 24 * time.Hour},
		{365 * 24 * time.Hour, 300 * 24 * time.Hour, maxTokenRetry},
	} {
		token := &authenticationv1.TokenRequest{}
		token.Spec.ExpirationSeconds = ptr.To(int64(c.life / time.Second))
		token.Status.ExpirationTimestamp = metav1.NewTime(now.Add(c.left))
		if got := renewAt(token, now).Sub(now); got != c.want {
			t.Errorf("a token for %v with %v left: again in %v, want %v", c.life, c.left, got, c.want)
		}
	}
}

// TestClaimGrown: the patch sets the capacity and removes the conditions of a resize.
func TestClaimGrown(t *testing.T) {
	b := &bus{}
	o := New(metaclient.New(b), "edge-1")
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"}}
	if err := o.ClaimGrown(t.Context(), claim, apiresource.MustParse("2Gi")); err == nil {
		t.Error("ClaimGrown without a link = nil, want an error")
	}
	text := string(b.asked[0].ContentData())
	for _, want := range []string{`"storage":"2Gi"`, `"type":"FileSystemResizePending"`, `"$patch":"delete"`} {
		if !strings.Contains(text, want) {
			t.Errorf("patch %s, want %s in it", text, want)
		}
	}
}

// TestSelects: the labels are those of the Node.
func TestSelects(t *testing.T) {
	selector := &v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{{
			Key: "disk", Operator: v1.NodeSelectorOpIn, Values: []string{"ssd"},
		}}}},
	}
	b := &bus{answers: map[string]string{"null/node/edge-1": `{"metadata":{"name":"edge-1","labels":{"disk":"ssd"}}}`}}
	if ok, err := New(metaclient.New(b), "edge-1").Selects(t.Context(), selector); err != nil || !ok {
		t.Errorf("Selects = %t, %v, want true", ok, err)
	}
	if _, err := New(metaclient.New(&bus{}), "edge-1").Selects(t.Context(), selector); err == nil {
		t.Error("Selects without a link = nil, want an error")
	}
}
