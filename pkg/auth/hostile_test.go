package auth

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/lru"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edged/podstate/metaclient"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// answers is a bus on which the cloud answers one thing about tokens and another about access.
type answers struct{ token, access string }

func (a answers) SendSync(_ context.Context, _ string, m *model.Message) (*model.Message, error) {
	content := a.access
	if strings.Contains(m.Route.Resource, "/"+resource.TypeTokenReview+"/") {
		content = a.token
	}
	return m.Respond(json.RawMessage(content)), nil
}

// FuzzReviews: whatever a stranger shows for a token, and whatever the cloud says of it, a request takes memory in
// proportion to both, and what is kept of a user and of an answer is bounded.
func FuzzReviews(f *testing.F) {
	const user, allowed = `{"Object":{"status":{"authenticated":true,"user":{"username":"u"`, `{"Object":{"status":{"allowed":true}}}`
	f.Add("Bearer t", user+`}}}}`, allowed)
	f.Add("Bearer t", `{"Err":{"ErrStatus":{"code":403,"message":"no"}}}`, allowed)
	f.Add("Bearer "+strings.Repeat("x", 100_000), user+`}}}}`, allowed)
	f.Add(strings.Repeat(" ", 100_000)+"bearer\t", user+`}}}}`, allowed)
	for _, text := range membound.JSON("", "", 64<<10) {
		f.Add("Bearer t", user+`,"groups":`+text+`}}}}`, allowed)
		f.Add("Bearer t", user+`,"extra":`+text+`}}}}`, allowed)
		f.Add("Bearer t", user+`,"uid":`+text+`}}}}`, `{"Object":{"status":{"reason":`+text+`}}}`)
		f.Add("Bearer t", `{"Object":{"metadata":{"managedFields":`+text+`}}}`, allowed)
		f.Add("Bearer t", user+`}}}}`, `{"Err":{"ErrStatus":{"details":{"causes":`+text+`}}}}`)
	}
	f.Add("Bearer t", user+`,"extra":{"k":["`+strings.Repeat("x", 1<<20)+`"]}}}}}`, allowed)
	f.Add("Bearer t", user+`}}}}`, `{"Object":{"status":{"reason":"`+strings.Repeat("x", 1<<20)+`"}}}`)
	f.Fuzz(func(t *testing.T, header, token, may string) {
		if !json.Valid([]byte(token)) || !json.Valid([]byte(may)) {
			return // the codec refuses it
		}
		reviews := metaclient.Reviews{Client: metaclient.New(answers{token, may}), Node: "edge1"}
		a := New(Options{
			Node:       "edge1",
			Cloud:      reviews,
			Tokens:     true,
			TokenAge:   time.Hour,
			AllowedAge: time.Hour,
			DeniedAge:  time.Hour,
		})
		r := (&http.Request{Header: http.Header{"Authorization": {header}}}).WithContext(t.Context())
		var err error
		// An entry of managedFields takes 3 bytes there and 150 here, in a list that grows.
		membound.Check(t, membound.Linear(len(header)+len(token)+len(may), 512), func() {
			err = a.Check(r, "get", "metrics", "proxy")
		})
		var refusal *Refusal
		if err != nil && !errors.As(err, &refusal) {
			t.Errorf("Check = %v (%T), want nil or a *Refusal", err, err)
		}
		for _, user := range values(t, a.tokens) {
			if user.size() > maxUser || cap(user.Groups) > 2*maxGroups {
				t.Errorf("a user of %d bytes with room for %d groups is kept, want at most %d and %d",
					user.size(), cap(user.Groups), maxUser, 2*maxGroups)
			}
		}
		for _, answer := range values(t, a.access) {
			if len(answer.reason) > maxReason {
				t.Errorf("a reason of %d bytes is kept, want at most %d", len(answer.reason), maxReason)
			}
		}
	})
}

// values empties a cache and returns what it kept.
func values[V any](t *testing.T, c *cache[V]) []V {
	t.Helper()
	var list []V
	n := c.len()
	take := func(_ lru.Key, e any) { list = append(list, e.(entry[V]).value) }
	if err := c.entries.SetEvictionFunc(take); err != nil {
		t.Fatal(err)
	}
	if c.entries.Clear(); len(list) != n {
		t.Fatalf("%d of the cache's entries seen, want %d", len(list), n)
	}
	return list
}
