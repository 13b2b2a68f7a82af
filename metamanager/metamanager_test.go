package metamanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// edge is a metamanager on a bus with an edged that does nothing: the test receives in its place.
type edge struct {
	t      testing.TB
	bus    *beehive.Bus
	store  *store.Store
	module *Module // of newEdge
}

type edged struct{}

func (edged) Name() string                  { return model.ModuleEdged }
func (edged) Group() string                 { return model.GroupEdged }
func (edged) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func openStore(t testing.TB) *store.Store {
	t.Helper()
	s, recovery, err := store.Open(context.Background(), filepath.Join(t.TempDir(), "edgecore.db"), store.Options{})
	if err != nil || recovery != nil {
		t.Fatalf("store.Open: recovery %v, err %v; want neither", recovery, err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newEdge runs a metamanager until the test ends. wrap, which may be nil, puts something before the store.
func newEdge(t testing.TB, wrap func(Store) Store, opts ...beehive.Option) *edge {
	t.Helper()
	e := &edge{t: t, bus: beehive.New(opts...), store: openStore(t)}
	var s Store = e.store
	if wrap != nil {
		s = wrap(s)
	}
	e.module = New(e.bus, s, Options{})
	if err := errors.Join(e.bus.Add(e.module), e.bus.Add(edged{})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.bus.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return e
}

// cloud sends a message as it comes from the cloud, and returns the answer.
func (e *edge) cloud(operation, res, content string) *model.Message {
	e.t.Helper()
	return e.send(model.New("edgecontroller", model.GroupResource, operation, res, json.RawMessage(content)))
}

// edged sends a message as edged does, and returns the answer.
func (e *edge) edged(operation, res, content string) *model.Message {
	e.t.Helper()
	return e.send(model.New(model.ModuleEdged, model.GroupMeta, operation, res, json.RawMessage(content)))
}

func (e *edge) send(m *model.Message) *model.Message {
	e.t.Helper()
	answer, err := e.bus.SendSync(e.t.Context(), model.ModuleMetaManager, m)
	if err != nil {
		e.t.Fatalf("%s %s: %v", m.Route.Operation, m.Route.Resource, err)
	}
	if answer.Header.ParentID != m.Header.ID || answer.Route.Resource != m.Route.Resource ||
		answer.Route.Group != m.Route.Group {
		e.t.Errorf("answer %+v, want ID, resource and group of the message %+v", answer, m)
	}
	return answer
}

// ok fails the test unless the answer is an acknowledgement.
func (e *edge) ok(answer *model.Message) {
	e.t.Helper()
	if answer.Route.Operation != model.OpResponse || string(answer.Content) != `"OK"` {
		e.t.Fatalf("%s: %s %s, want OK", answer.Route.Resource, answer.Route.Operation, answer.Content)
	}
}

// forwarded returns "operation resource" of what waits for edged.
func (e *edge) forwarded() []string {
	e.t.Helper()
	var all []string
	for {
		// An answer comes after what is handed on, so that there is nothing to wait for.
		waiting := 0
		for _, s := range e.bus.Stats() {
			if s.Module == model.ModuleEdged {
				waiting = s.Waiting
			}
		}
		if waiting == 0 {
			return all
		}
		m, err := e.bus.Receive(e.t.Context(), model.ModuleEdged)
		if err != nil {
			e.t.Fatal(err)
		}
		all = append(all, m.Route.Operation+" "+m.Route.Resource)
	}
}

// rows returns the keys and values of a type.
func (e *edge) rows(typ string) map[string]string {
	e.t.Helper()
	list, err := e.store.List(e.t.Context(), typ)
	if err != nil {
		e.t.Fatal(err)
	}
	all := map[string]string{}
	for _, m := range list {
		all[m.Key] = string(m.Value)
	}
	return all
}

// object is one of a kind of objects of which only the identity matters.
func object(namespace, name, uid, version string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":%q,"uid":%q,"resourceVersion":%q},"x":{"b":1,"a":[2]}}`,
		name, namespace, uid, version)
}

// TestObjects: each type through its life.
func TestObjects(t *testing.T) {
	for _, c := range []struct {
		typ, namespace, objectNamespace string
		forwarded                       bool
	}{
		{"pod", "default", "default", true},
		{"configmap", "default", "default", true},
		{"secret", "kube-system", "kube-system", true},
		{"node", "null", "", false},
		{"lease", "kube-node-lease", "kube-node-lease", false},
		{"persistentvolume", "null", "", false},
		{"persistentvolumeclaim", "default", "default", false},
		{"volumeattachment", "default", "", false},
	} {
		t.Run(c.typ, func(t *testing.T) {
			e := newEdge(t, nil)
			res := c.namespace + "/" + c.typ + "/one"
			first, second := object(c.objectNamespace, "one", "u1", "9"), object(c.objectNamespace, "one", "u1", "10")
			missing := func() {
				t.Helper()
				var got struct{ ErrStatus metav1.Status }
				answer := e.edged("query", res, "null")
				reason, code, text := metav1.StatusReasonNotFound, int32(404), c.typ+` "one" not found`
				if unknownHere(c.typ) { // and there is no cloud to ask
					reason, code, text = metav1.StatusReasonServiceUnavailable, 503,
						c.typ+` "one" was not read before on this node, and the cloud cannot be asked for it now`
				}
				if err := json.Unmarshal(answer.Content, &got); err != nil || answer.Route.Operation != "response" ||
					got.ErrStatus.Reason != reason || got.ErrStatus.Code != code || got.ErrStatus.Message != text {
					t.Errorf("%s %s, want a status %s", answer.Route.Operation, answer.Content, reason)
				}
			}
			is := func(want string) {
				t.Helper()
				if got := string(e.edged("query", res, "null").Content); got != want {
					t.Errorf("query: %s, want %s", got, want)
				}
				if diff := cmp.Diff(map[string]string{res: want}, e.rows(c.typ)); diff != "" {
					t.Errorf("rows (-want +got):\n%s", diff)
				}
			}
			missing()
			e.ok(e.cloud("insert", res, first))
			is(first)
			quoted, err := json.Marshal(second) // an object may travel as a string
			if err != nil {
				t.Fatal(err)
			}
			e.ok(e.cloud("update", res, string(quoted)))
			is(second)
			e.ok(e.cloud("delete", res, object(c.objectNamespace, "one", "another", "11")))
			is(second)
			e.ok(e.cloud("delete", res, `{"metadata":{"name":"one","uid":"u1"}}`))
			missing()
			e.ok(e.cloud("delete", res, `{"metadata":{"name":"one","uid":"u1"}}`)) // again
			var want []string
			if c.forwarded {
				want = []string{"insert " + res, "update " + res, "delete " + res, "delete " + res, "delete " + res}
			}
			if diff := cmp.Diff(want, e.forwarded()); diff != "" {
				t.Errorf("forwarded (-want +got):\n%s", diff)
			}
		})
	}
}

// TestVersions: what an object does to the one that is stored.
func TestVersions(t *testing.T) {
	type v struct{ uid, version string }
	for name, c := range map[string]struct {
		stored, comes v
		applied       bool
	}{
		"newer":                     {v{"u", "9"}, v{"u", "10"}, true},
		"older":                     {v{"u", "10"}, v{"u", "9"}, false},
		"same version":              {v{"u", "10"}, v{"u", "10"}, true},
		"older, of another UID":     {v{"u", "10"}, v{"w", "9"}, true},
		"no number":                 {v{"u", "10"}, v{"u", "x9"}, true},
		"no number stored":          {v{"u", "x10"}, v{"u", "9"}, true},
		"no version":                {v{"u", "10"}, v{"u", ""}, true},
		"more than 64 bits":         {v{"u", "10"}, v{"u", "99999999999999999999999"}, true},
		"older, as a string, is >":  {v{"u", "100"}, v{"u", "99"}, false},
		"negative is not a version": {v{"u", "10"}, v{"u", "-1"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			const res = "default/pod/one"
			stored := object("default", "one", c.stored.uid, c.stored.version)
			comes := strings.Replace(object("default", "one", c.comes.uid, c.comes.version), `"b":1`, `"b":2`, 1)
			e.ok(e.cloud("insert", res, stored))
			e.ok(e.cloud("update", res, comes))
			want, n := stored, 1
			if c.applied {
				want, n = comes, 2
			}
			if got := e.rows("pod")[res]; got != want {
				t.Errorf("stored %s, want %s", got, want)
			}
			if got := e.forwarded(); len(got) != n {
				t.Errorf("forwarded %v, want %d", got, n)
			}
		})
	}
}

func TestLists(t *testing.T) {
	e := newEdge(t, nil)
	pods := map[string]string{}
	for _, ns := range []string{"a", "ab"} {
		for _, name := range []string{"x", "y"} {
			res := ns + "/pod/" + name
			pods[res] = object(ns, name, ns+name, "1")
			e.ok(e.cloud("insert", res, pods[res]))
		}
	}
	e.ok(e.cloud("insert", "a/secret/x", object("a", "x", "s", "1")))
	if err := e.store.Apply(t.Context(),
		store.Upsert(store.Meta{Key: "a/pod/damaged", Type: "pod", Value: []byte("{")})); err != nil {
		t.Fatal(err)
	}
	for res, want := range map[string]string{
		"null/podlist": "[" +
			strings.Join([]string{pods["a/pod/x"], pods["a/pod/y"], pods["ab/pod/x"], pods["ab/pod/y"]}, ",") + "]",
		"a/pod":    "[" + pods["a/pod/x"] + "," + pods["a/pod/y"] + "]",
		"none/pod": "[]",
	} {
		if got := string(e.edged("query", res, "null").Content); got != want {
			t.Errorf("%s: %s, want %s", res, got, want)
		}
	}
	if answer := e.edged("query", "a/pod/damaged", "null"); answer.Route.Operation != model.OpError {
		t.Errorf("answer for a damaged row = %s, want an error", answer.Content)
	}
}

// TestBadMessages: each is answered with an error that names the object and the cause, and nothing comes of it.
func TestBadMessages(t *testing.T) {
	e := newEdge(t, nil)
	good := object("default", "one", "u1", "5")
	e.ok(e.cloud("insert", "default/pod/one", good))
	e.forwarded()
	for name, c := range map[string]struct{ operation, res, content, cause string }{
		"no resource":        {"update", "", good, "want <namespace>/<type>"},
		"one part":           {"query", "pod", "null", "want <namespace>/<type>"},
		"empty part":         {"query", "default//one", "null", "empty part"},
		"operation":          {"explode", "default/pod/one", good, `operation "explode"`},
		"type":               {"insert", "default/teapot/one", good, "not stored"},
		"no name":            {"insert", "default/pod", good, "name one object"},
		"no content":         {"insert", "default/pod/one", "", "not an object"},
		"null":               {"update", "default/configmap/one", "null", "no object"},
		"null in a string":   {"update", "default/configmap/one", `" null "`, "no object"},
		"a word":             {"insert", "default/pod/one", `"hello"`, "not an object"},
		"a list":             {"insert", "default/pod/one", `[]`, "not an object"},
		"broken":             {"insert", "default/pod/one", `{"metadata":`, "not an object"},
		"metadata":           {"insert", "default/pod/one", `{"metadata":7}`, "not an object"},
		"an error":           {"insert", "default/secret/one", `{"ErrStatus":{"code":500}}`, "is an error"},
		"no UID":             {"insert", "default/pod/one", `{"metadata":{"name":"one"}}`, "no UID"},
		"another name":       {"update", "default/pod/one", object("default", "two", "u1", "9"), `name "two"`},
		"another namespace":  {"update", "default/pod/one", object("other", "one", "u1", "9"), `namespace "other"`},
		"delete nothing":     {"delete", "default/pod", good, "name one object"},
		"delete without UID": {"delete", "default/pod/one", `{"metadata":{"name":"one"}}`, "no UID"},
		"delete, no content": {"delete", "default/pod/one", "null", "no object"},
		"token, no spec":     {"query", "default/serviceaccounttoken/one", "{}", "no spec"},
		"token, no request":  {"query", "default/serviceaccounttoken/one", `"x"`, "not a TokenRequest"},
		"patch of what":      {"patch", "default/secret/one", `"{}"`, "only pods and nodes"},
		"patch, broken":      {"patch", "default/podpatch/one", `"{"`, "not JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			answer := e.cloud(c.operation, c.res, c.content)
			text := string(answer.ContentData())
			if answer.Route.Operation != model.OpError || answer.Route.Source != model.ModuleMetaManager ||
				!strings.Contains(text, c.res) || !strings.Contains(text, c.cause) {
				t.Errorf("%s %q; want an error with %q and %q", answer.Route.Operation, text, c.res, c.cause)
			}
		})
	}
	if diff := cmp.Diff(map[string]string{"default/pod/one": good}, e.rows("pod")); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if f := e.forwarded(); f != nil {
		t.Errorf("forwarded = %v, want none", f)
	}
	for _, typ := range []string{"configmap", "secret", "teapot", "podpatch", "serviceaccounttoken"} {
		if got := e.rows(typ); len(got) != 0 {
			t.Errorf("stored %s = %v, want none", typ, got)
		}
	}
}
