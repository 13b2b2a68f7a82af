package metamanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// hub stands in for edgehub and the cloud behind it: it keeps what it is sent, and answers as the test says.
type hub struct {
	bus *beehive.Bus
	mu  sync.Mutex
	// got is "operation resource" of each message; a report has its content, too.
	got []string
	// say answers a request; "" is no answer.
	say func(m *model.Message) string
}

func (*hub) Name() string  { return model.ModuleEdgeHub }
func (*hub) Group() string { return model.GroupHub }

func (h *hub) Run(ctx context.Context) error {
	for {
		m, err := h.bus.Receive(ctx, h.Name())
		if err != nil {
			return nil
		}
		h.mu.Lock()
		h.got = append(h.got, strings.TrimSpace(m.Route.Operation+" "+m.Route.Resource))
		say := h.say
		h.mu.Unlock()
		if m.IsResponse() || say == nil {
			continue
		}
		if text := say(m); text != "" {
			if err := h.bus.SendResp(ctx, m.Respond(json.RawMessage(text))); err != nil &&
				!errors.Is(err, beehive.ErrNoWaiter) {
				return err
			}
		}
	}
}

func (h *hub) answer(say func(*model.Message) string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.say = say
}

// sent returns what came since the last call.
func (h *hub) sent() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	got := h.got
	h.got = nil
	slices.Sort(got)
	return got
}

// has reports whether n messages whose names begin so came since sent was called.
func (h *hub) has(prefix string, n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, got := range h.got {
		if strings.HasPrefix(got, prefix) {
			n--
		}
	}
	return n == 0
}

// always is a cloud with one answer.
func always(text string) func(*model.Message) string {
	return func(*model.Message) string { return text }
}

// bubble runs a subtest on a simulated clock, so that tries again come at once.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// newLinked is an edge with a hub; the link is down at first.
func newLinked(t *testing.T, opts Options) (*edge, *hub) {
	t.Helper()
	e := &edge{t: t, bus: beehive.New(), store: openStore(t)}
	h := &hub{bus: e.bus}
	if err := errors.Join(e.bus.Add(New(e.bus, e.store, opts)), e.bus.Add(h)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.bus.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return e, h
}

func (e *edge) link(text string) {
	e.t.Helper()
	m := model.New(model.ModuleEdgeHub, model.GroupMeta, wire.OpConnect, wire.ResourceLink, json.RawMessage(text))
	e.ok(e.send(m))
}

const up, down = `{"connected":true}`, `{"connected":false}`

const good = `{"Object":{},"Err":null}`

func failure(code int, reason string) string {
	return fmt.Sprintf(`{"Object":null,"Err":{"ErrStatus":{"status":"Failure","code":%d,"reason":%q,"message":"no"}}}`,
		code, reason)
}

// TestQueries: from the store where it has the object, else from the cloud, which is then stored and acknowledged.
func TestQueries(t *testing.T) {
	e, h := newLinked(t, Options{})
	h.answer(always(object("default", "conf", "u1", "7")))
	isNotFound := func(a *model.Message) bool { return strings.Contains(string(a.Content), `"NotFound"`) }
	if a := e.edged("query", "default/configmap/conf", "null"); !isNotFound(a) {
		t.Errorf("without a link: %s, want NotFound", a.Content)
	}
	e.link(up)
	want := object("default", "conf", "u1", "7")
	if a := e.edged("query", "default/configmap/conf", "null"); string(a.Content) != want {
		t.Errorf("over the link: %s, want %s", a.Content, want)
	}
	wait.True(t, "the answer is acknowledged", func() bool { return h.has("response default/configmap/conf", 1) })
	h.sent()
	h.answer(always(object("default", "conf", "u1", "8")))
	if a := e.edged("query", "default/configmap/conf", "null"); string(a.Content) != want {
		t.Errorf("from the store: %s, want %s", a.Content, want)
	}
	if got := h.sent(); got != nil {
		t.Errorf("sent for what is stored = %v, want nothing", got)
	}
	h.answer(always(`{"ErrStatus":{"status":"Failure","code":404,"reason":"NotFound"}}`))
	if a := e.edged("query", "default/secret/none", "null"); !isNotFound(a) {
		t.Errorf("what there is not: %s, want NotFound", a.Content)
	}
	if rows := e.rows("secret"); len(rows) != 0 {
		t.Errorf("secrets after an error = %v, want none", rows)
	}
	// These are asked for again each time: nobody pushes them. The store answers when there is no link.
	h.answer(always(object("", "v", "u2", "1")))
	e.edged("query", "null/persistentvolume/v", "null")
	h.answer(always(object("", "v", "u2", "2")))
	if a := e.edged("query", "null/persistentvolume/v", "null"); string(a.Content) != object("", "v", "u2", "2") {
		t.Errorf("volume = %s, want version 2", a.Content)
	}
	e.link(down)
	if a := e.edged("query", "null/persistentvolume/v", "null"); string(a.Content) != object("", "v", "u2", "2") {
		t.Errorf("volume without a link = %s, want version 2", a.Content)
	}
	for _, c := range [][3]string{
		{"insert", "null/node/n", "{}"}, {"patch", "null/nodepatch/n", `"{}"`},
		{"update", "kube-node-lease/lease/n", "{}"},
	} {
		if a := e.edged(c[0], c[1], c[2]); a.Route.Operation != model.OpError ||
			!strings.Contains(string(a.Content), "not connected") {
			t.Errorf("%v without a link = %s, want the error not connected", c, a.Content)
		}
	}
}

// TestSlowCloud: requests that wait for the cloud hold up nothing else.
func TestSlowCloud(t *testing.T) {
	e, h := newLinked(t, Options{})
	h.answer(always(""))
	e.link(up)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 2 * inHand {
		wg.Go(func() {
			m := model.New(model.ModuleEdged, model.GroupMeta, "query", fmt.Sprintf("default/configmap/c%d", i), nil)
			if _, err := e.bus.SendSync(ctx, model.ModuleMetaManager, m); err == nil {
				t.Error("SendSync without an answer of the cloud = nil, want an error")
			}
		})
	}
	wait.True(t, "all were asked for", func() bool { return h.has("", 2*inHand) })
	e.ok(e.cloud("insert", "default/configmap/c1", object("default", "c1", "u", "1")))
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
	cancel()
	wg.Wait()
}

// TestAcknowledgementsTravel: what nobody on the device waits for goes to the cloud.
func TestAcknowledgementsTravel(t *testing.T) {
	e, h := newLinked(t, Options{})
	m := model.New("edgecontroller", model.GroupResource, "insert", "default/pod/one",
		json.RawMessage(object("default", "one", "u", "1")))
	if err := e.bus.Send(t.Context(), model.ModuleMetaManager, m); err != nil {
		t.Fatal(err)
	}
	wait.True(t, "the acknowledgement", func() bool {
		return slices.Equal(h.sent(), []string{"response default/pod/one"})
	})
	if rows := e.rows("pod"); len(rows) != 1 {
		t.Errorf("pods after the acknowledgement = %v, want one", rows)
	}
}

// TestInventory: a cloud of ours is told what is here, and edged hears when all is as it should be.
func TestInventory(t *testing.T) { synctest.Test(t, testInventory) }

func testInventory(t *testing.T) {
	synced := make(chan struct{}, 9)
	e, h := newLinked(t, Options{
		Synced: func(context.Context) { synced <- struct{}{} },
	})
	if err := e.bus.Add(edged{}); err != nil {
		t.Fatal(err)
	}
	e.ok(e.cloud("insert", "default/pod/one", object("default", "one", "u1", "1")))
	e.ok(e.cloud("insert", "default/secret/s", object("default", "s", "u2", "1")))
	e.ok(e.edged("patch", "default/podpatch/other", quote(t, patch("u3", "Running"))))
	e.forwarded()
	var told string
	var forwarded []string
	h.answer(func(m *model.Message) string {
		if m.Route.Operation != wire.OpInventory {
			return good
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if told == "" {
			told = string(m.Content)
			return `{"synced":false}` // it comes again
		}
		return `{"synced":true}`
	})
	e.link(`{"connected":true,"features":{"inventory":true,"lease":true}}`)
	<-synced
	pod, secret := object("default", "one", "u1", "1"), object("default", "s", "u2", "1")
	version := func(obj string) string {
		v, err := wire.Version([]byte(obj))
		if err != nil {
			t.Error(err)
		}
		return v
	}
	want := fmt.Sprintf(
		`{"objects":[{"k":"default/pod/one","u":"u1","v":%q},{"k":"default/secret/s","u":"u2","v":%q}]}`, version(pod),
		version(secret))
	if told != want {
		t.Errorf("inventory %s, want %s", told, want)
	}
	wait.True(t, "edged is told of the link, and that all is there", func() bool {
		forwarded = append(forwarded, e.forwarded()...)
		return slices.Equal(forwarded, []string{"connect null/link", "connect null/link"})
	})
	wait.True(t, "the report has left", func() bool { return len(e.waiting()) == 0 })
	// The cloud renews the lease itself.
	h.sent()
	if a := e.edged("update", "kube-node-lease/lease/n",
		`{"x":1}`); string(a.Content) != `{"Err":null,"Object":{"x":1}}` {
		t.Errorf("lease = %s, want it back with no error", a.Content)
	}
	if got := h.sent(); got != nil {
		t.Errorf("sent for a lease = %v, want nothing", got)
	}
}

func token(made time.Time, life int64) []byte {
	data, err := json.Marshal(map[string]any{
		"spec": map[string]any{"expirationSeconds": life},
		"status": map[string]any{
			"token": "t", "expirationTimestamp": metav1.NewTime(made.Add(time.Duration(life) * time.Second)),
		},
	})
	if err != nil {
		panic(err)
	}
	return data
}

// TestToken: renewed when it is time and there is a link; kept otherwise, however old.
func TestToken(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e, h := newLinked(t, Options{Now: func() time.Time { return now }})
	request :=
		`{"spec":{"audiences":null,"expirationSeconds":3607,"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"p","uid":"u"}}}`
	e.ok(e.cloud("insert", "default/pod/p", object("default", "p", "u", "1")))
	ask := func() string { return string(e.edged("query", "default/serviceaccounttoken/sa", request).Content) }
	first, second := string(token(now, 3607)), string(token(now.Add(time.Hour), 3607))
	h.answer(always(first))
	e.link(up)
	if got := ask(); got != first {
		t.Errorf("first token = %s, want %s", got, first)
	}
	h.answer(always(second))
	if got := ask(); got != first {
		t.Errorf("token before its renewal = %s, want %s as before", got, first)
	}
	now = now.Add(50 * time.Minute)
	e.link(down)
	if got := ask(); got != first {
		t.Errorf("without a link: %s, want the old one", got)
	}
	now = now.Add(1000 * time.Hour)
	h.answer(always(`{"ErrStatus":{"code":403,"reason":"Forbidden"}}`))
	e.link(up)
	if got := ask(); got != first {
		t.Errorf("refused: %s, want the old one", got)
	}
	h.answer(always(second))
	if got := ask(); got != second {
		t.Errorf("renewed token = %s, want %s", got, second)
	}
}

// TestRareObjects: what nobody pushes is asked of a cloud of ours, and used from the store when it cannot be asked. One
// of KubeEdge is not asked for what it does not know, as it would never answer.
func TestRareObjects(t *testing.T) {
	const ours = `{"connected":true,"features":{"inventory":true}}`
	unavailable := func(a *model.Message) bool { return strings.Contains(string(a.Content), `"ServiceUnavailable"`) }
	for typ, upstreamKnows := range map[string]bool{
		"runtimeclass": false, "csidriver": false, "csinode": false, "clustertrustbundle": false, "clientca": false,
		"persistentvolume": true, "persistentvolumeclaim": true, "volumeattachment": true,
	} {
		t.Run(typ, func(t *testing.T) {
			e, h := newLinked(t, Options{})
			one, two := object("", "x", "u", "1"), object("", "x", "u", "2")
			res := "null/" + typ + "/x"
			query := func() *model.Message { t.Helper(); return e.edged("query", res, "null") }
			if a := query(); !unavailable(a) {
				t.Errorf("without a link = %s, want ServiceUnavailable", a.Content)
			}
			h.answer(always(one))
			e.link(up)
			if a := query(); upstreamKnows != (string(a.Content) == one) || !upstreamKnows && !unavailable(a) {
				t.Errorf("from a cloud of KubeEdge = %s, want the object: %v, else ServiceUnavailable", a.Content,
					upstreamKnows)
			}
			if asked := len(h.sent()) > 0; asked != upstreamKnows {
				t.Errorf("a cloud of KubeEdge was asked = %v, want %v", asked, upstreamKnows)
			}
			e.link(ours)
			if a := query(); string(a.Content) != one {
				t.Errorf("from cloudcore = %s, want %s", a.Content, one)
			}
			h.answer(always(two))
			if a := query(); string(a.Content) != two {
				t.Errorf("after a change = %s, want %s", a.Content, two)
			}
			for _, link := range []string{down, up} {
				h.answer(always(two))
				e.link(link)
				if a := query(); string(a.Content) != two {
					t.Errorf("from the store, with the link %s = %s, want %s", link, a.Content, two)
				}
			}
			e.link(ours)
			h.answer(always(`{"ErrStatus":{"status":"Failure","code":404,"reason":"NotFound"}}`))
			if a := query(); !strings.Contains(string(a.Content), `"NotFound"`) {
				t.Errorf("after its deletion = %s, want NotFound", a.Content)
			}
		})
	}
}

// TestReviews: who someone is and what they may is asked of a cloud of ours only, and is stored nowhere.
func TestReviews(t *testing.T) {
	for _, typ := range []string{"tokenreview", "subjectaccessreview"} {
		e, h := newLinked(t, Options{})
		h.answer(always(`{"Object":{"status":{"allowed":true}},"Err":null}`))
		ask := func() *model.Message {
			t.Helper()
			return e.edged("insert", "null/"+typ+"/n", `{"spec":{"token":"hunter2"}}`)
		}
		for _, link := range []string{"", up, down} {
			if link != "" {
				e.link(link)
			}
			if a, sent := ask(), h.sent(); a.Route.Operation != model.OpError || len(sent) > 0 {
				t.Errorf("%s with the link %q = %s, sent %v; want an error and nothing sent", typ, link, a.Content,
					sent)
			}
		}
		e.link(`{"connected":true,"features":{"inventory":true}}`)
		if a := ask(); !strings.Contains(string(a.Content), `"allowed":true`) {
			t.Errorf("%s = %s, want it allowed", typ, a.Content)
		}
		rows, err := e.store.List(t.Context(), typ)
		if err != nil || len(rows) > 0 {
			t.Errorf("List(%s) = %v, %v; want nothing stored", typ, rows, err)
		}
	}
}

// TestListFromCloud: a list takes the place of all that is stored of its type.
func TestListFromCloud(t *testing.T) {
	e, h := newLinked(t, Options{})
	a, b, c := object("", "a", "ua", "1"), object("", "b", "ub", "2"), object("", "c", "uc", "3")
	list := func() string { t.Helper(); return string(e.edged("query", "null/clustertrustbundle", "null").Content) }
	if got := list(); got != "[]" {
		t.Errorf("list at first = %s, want []", got)
	}
	e.link(`{"connected":true,"features":{"inventory":true}}`)
	for _, want := range []string{"[" + a + "," + b + "]", "[" + b + "," + c + "]", "[]", "[" + a + "]"} {
		h.answer(always(want))
		if got := list(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for _, bad := range []string{
		`7`, `{}`, `null`, `[7]`, `[{}]`, `[{"metadata":{"name":"a/b"}}]`,
		`[{"metadata":{"name":"a","namespace":"other"}}]`,
	} {
		h.answer(always(bad))
		if answer := e.edged("query", "null/clustertrustbundle", "null"); answer.Route.Operation != model.OpError {
			t.Errorf("list answered with %s = %s, want an error", bad, answer.Content)
		}
	}
	h.answer(always(`{"ErrStatus":{"status":"Failure","code":403,"reason":"Forbidden"}}`))
	if got := list(); !strings.Contains(got, "Forbidden") {
		t.Errorf("list refused by the cloud = %s, want Forbidden", got)
	}
	e.link(down)
	if got := list(); got != "["+a+"]" {
		t.Errorf("list from the store = %s, want [%s]", got, a)
	}
	if got := string(e.edged("query", "null/clustertrustbundle/a", "null").Content); got != a {
		t.Errorf("object from the store = %s, want %s", got, a)
	}
}
