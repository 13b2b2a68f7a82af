package metamanager

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
)

// slow is a cloud that answers requests when the test says so, one after another.
type slow struct {
	e        *edge
	mu       sync.Mutex
	requests []*model.Message
}

func newSlow(t *testing.T) (*edge, *slow) {
	t.Helper()
	e, h := newLinked(t, Options{})
	c := &slow{e: e}
	h.answer(func(m *model.Message) string {
		if m.Route.Operation == "inventory" {
			return `{"synced":true}`
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.requests = append(c.requests, m)
		return ""
	})
	return e, c
}

// ask has edged ask for something, and returns what yields the answer.
func (c *slow) ask(res, content string) func() string {
	c.e.t.Helper()
	answer := make(chan string, 1)
	m := model.New(model.ModuleEdged, model.GroupMeta, "query", res, json.RawMessage(content))
	go func() {
		got, err := c.e.bus.SendSync(c.e.t.Context(), model.ModuleMetaManager, m)
		if err != nil {
			answer <- err.Error()
			return
		}
		answer <- string(got.Content)
	}()
	synctest.Wait()
	return func() string { return <-answer }
}

// answer answers request number n.
func (c *slow) answer(n int, text string) {
	c.e.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if n >= len(c.requests) {
		c.e.t.Fatalf("the cloud was asked %d times, want request %d", len(c.requests), n)
	}
	if err := c.e.bus.SendResp(c.e.t.Context(), c.requests[n].Respond(json.RawMessage(text))); err != nil {
		c.e.t.Error(err)
	}
}

const notFoundAnswer = `{"ErrStatus":{"status":"Failure","code":404,"reason":"NotFound"}}`

// TestAnswersInTurn: an answer is not stored where something newer came since it was asked.
func TestAnswersInTurn(t *testing.T) {
	const conf, volume, sa = "a/configmap/c", "null/persistentvolume/v", "default/serviceaccounttoken/sa"
	old, young := object("a", "c", "u1", "9"), object("a", "c", "u2", "12")
	v1, v2 := object("", "v", "u1", "1"), object("", "v", "u2", "2")
	token := tokenRequest(t, 3600, "u")
	for _, link := range []string{up, upWithOurs} {
		for name, c := range map[string]struct {
			run  func(e *edge, c *slow)
			typ  string
			want map[string]string
		}{
			"deleted since": {func(e *edge, c *slow) {
				got := c.ask(conf, "null")
				e.ok(e.cloud("insert", conf, old))
				e.ok(e.cloud("delete", conf, old))
				c.answer(0, old)
				if text := got(); text != old {
					t.Errorf("answer %s, want what the cloud said", text)
				}
			}, "configmap", map[string]string{}},
			"pushed since": {func(e *edge, c *slow) {
				got := c.ask(conf, "null")
				e.ok(e.cloud("insert", conf, young))
				c.answer(0, old)
				if text := got(); text != young {
					t.Errorf("answer %s, want what was pushed", text)
				}
			}, "configmap", map[string]string{conf: young}},
			"a later answer came": {func(e *edge, c *slow) {
				first, second := c.ask(volume, "null"), c.ask(volume, "null")
				c.answer(1, v2)
				if text := second(); text != v2 {
					t.Errorf("second answer %s, want %s", text, v2)
				}
				c.answer(0, v1)
				if text := first(); text != v2 {
					t.Errorf("first answer %s, want the later one", text)
				}
			}, "persistentvolume", map[string]string{volume: v2}},
			"in order": {func(e *edge, c *slow) {
				first, second := c.ask(volume, "null"), c.ask(volume, "null")
				c.answer(0, v1)
				first()
				c.answer(1, v2)
				second()
			}, "persistentvolume", map[string]string{volume: v2}},
			"gone since": {func(e *edge, c *slow) {
				first, second := c.ask(volume, "null"), c.ask(volume, "null")
				c.answer(1, notFoundAnswer)
				second()
				c.answer(0, v1)
				first()
			}, "persistentvolume", map[string]string{}},
			"token of a pod that is gone": {func(e *edge, c *slow) {
				e.ok(e.cloud("insert", "default/pod/one", object("default", "one", "u", "1")))
				got := c.ask(sa, token)
				e.ok(e.cloud("delete", "default/pod/one", object("default", "one", "u", "1")))
				c.answer(0, token)
				if text := got(); text != token {
					t.Errorf("answer %s, want the token", text)
				}
			}, "serviceaccounttoken", map[string]string{}},
			"token of a replaced pod": {func(e *edge, c *slow) {
				e.ok(e.cloud("insert", "default/pod/one", object("default", "one", "u", "1")))
				e.ok(e.edged("insert", sa, tokenRequest(t, 600, "u")))
				got := c.ask(sa, token)
				e.ok(e.cloud("insert", "default/pod/one", object("default", "one", "u2", "5")))
				c.answer(0, token)
				got()
			}, "serviceaccounttoken", map[string]string{}},
		} {
			bubble(t, fmt.Sprintf("%s %s", name, link), func(t *testing.T) {
				e, cloud := newSlow(t)
				e.link(link)
				c.run(e, cloud)
				if diff := cmp.Diff(c.want, e.rows(c.typ)); diff != "" {
					t.Errorf("stored (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestGoneAtTheCloud: what the cloud does not have any more is not used offline. What it pushes goes when it says so.
func TestGoneAtTheCloud(t *testing.T) {
	for typ, removed := range map[string]bool{
		"persistentvolume": true, "persistentvolumeclaim": true, "volumeattachment": true,
		"runtimeclass": true, "csidriver": true, "csinode": true, "clustertrustbundle": true, "node": false,
	} {
		t.Run(typ, func(t *testing.T) {
			e, h := newLinked(t, Options{})
			one, res := object("", "x", "u", "1"), "null/"+typ+"/x"
			h.answer(synced(one))
			e.link(upWithOurs)
			e.edged("query", res, "null")
			for _, answer := range []string{
				`{"ErrStatus":{"code":403,"reason":"Forbidden"}}`,
				`{"ErrStatus":{"code":500,"reason":"InternalError"}}`,
			} {
				h.answer(synced(answer))
				e.edged("query", res, "null")
				if rows := e.rows(typ); rows[res] != one {
					t.Errorf("after %s the store has %v, want what was answered before", answer, rows)
				}
			}
			h.answer(synced(notFoundAnswer))
			if a := e.edged("query", res, "null"); !strings.Contains(string(a.Content), "NotFound") {
				t.Errorf("answer %s, want NotFound", a.Content)
			}
			if rows := e.rows(typ); (len(rows) == 0) != removed {
				t.Errorf("the store has %v; want it removed: %v", rows, removed)
			}
		})
	}
}

// full is a store that takes nothing.
type full struct{ Store }

func (full) Apply(context.Context, ...store.Op) error { return store.ErrFull }

// What the cloud answers is used although it cannot be stored.
func TestAnswerOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, h := linkedWith(t, func(m *Module) { m.store = full{m.store} })
		claim := object("a", "data", "u", "1")
		h.answer(synced(claim))
		e.link(upWithOurs)
		if got := string(e.edged("query", "a/persistentvolumeclaim/data", "null").Content); got != claim {
			t.Errorf("answer on a full disk = %s, want %s", got, claim)
		}
	})
}

// An answer for which nobody waits any more is not stored.
func TestAbandonedAnswer(t *testing.T) {
	var q questions
	one := q.open("a/secret/s")
	q.close(one)
	if q.counts(one) {
		t.Error("counts of a question that is done = true, want false")
	}
}
