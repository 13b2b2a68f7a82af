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

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
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
			if err := h.bus.SendResp(ctx, m.Respond(json.RawMessage(text))); err != nil && !errors.Is(err, beehive.ErrNoWaiter) {
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

// has tells whether n messages whose names begin so came since sent was called.
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

// newLinked is an edge with a hub, in a bubble of time of its own; the link is down at first.
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
	return fmt.Sprintf(`{"Object":null,"Err":{"ErrStatus":{"status":"Failure","code":%d,"reason":%q,"message":"no"}}}`, code, reason)
}

// waiting are the keys of the outbox.
func (e *edge) waiting() []string {
	keys, _, _ := e.outbox()
	return keys
}

// TestOutboxDrains: nothing leaves without a link; with one the newest report on each object does, once.
func TestOutboxDrains(t *testing.T) {
	e, h := newLinked(t, Options{})
	h.answer(always(good))
	for i := range 5 {
		e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", fmt.Sprint(i)))))
	}
	e.ok(e.edged("patch", "default/podpatch/two", quote(t, patch("u2", "Running"))))
	e.ok(e.edged("delete", "default/pod/two", `{}`))
	e.ok(e.edged("insert", "default/event/e1", `{"reason":"Started"}`))
	if got := h.sent(); got != nil {
		t.Errorf("sent without a link: %v", got)
	}
	e.link(up)
	eventually(t, "the outbox is empty", func() bool { return len(e.waiting()) == 0 })
	want := []string{"delete default/pod/two", "insert default/event/e1", "patch default/podpatch/one", "patch default/podpatch/two"}
	if diff := cmp.Diff(want, h.sent()); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
	eventually(t, "a new report leaves at once", func() bool { return len(e.waiting()) == 0 })
	e.link(down)
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Failed"))))
	h.sent()
	e.link(up)
	eventually(t, "what came meanwhile leaves over the new link", func() bool { return len(e.waiting()) == 0 })
	if diff := cmp.Diff([]string{"patch default/podpatch/one"}, h.sent()); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
}

// TestOutboxOrder: the last status of a pod is with the cloud before its end is.
func TestOutboxOrder(t *testing.T) {
	e, h := newLinked(t, Options{})
	for i := range 20 {
		e.ok(e.edged("patch", fmt.Sprintf("default/podpatch/p%d", i), quote(t, patch("u", "Failed"))))
		e.ok(e.edged("delete", fmt.Sprintf("default/pod/p%d", i), `{}`))
	}
	var mu sync.Mutex
	patched := map[string]bool{}
	h.answer(func(m *model.Message) string {
		mu.Lock()
		defer mu.Unlock()
		key, err := resource.Parse(m.Route.Resource)
		if err != nil {
			t.Error(err)
		}
		if key.Type == resource.TypePodPatch {
			patched[key.Name] = true
			return good
		}
		if !patched[key.Name] {
			t.Errorf("%s ended before its status was sent", key.Name)
		}
		return `"OK"`
	})
	e.link(up)
	eventually(t, "the outbox is empty", func() bool { return len(e.waiting()) == 0 })
}

// TestReportRefused: what the cloud will never take goes, what it may take later stays and comes again.
func TestReportRefused(t *testing.T) {
	for _, c := range []struct {
		name, answer string
		again        bool
	}{
		{"the pod is gone", failure(404, "NotFound"), false},
		{"it is another pod", failure(409, "Conflict"), false},
		{"it makes no sense", failure(422, "Invalid"), false},
		{"it may not", failure(403, "Forbidden"), false},
		{"not at the top", `{"ErrStatus":{"code":404}}`, false},
		{"too many", failure(429, "TooManyRequests"), true},
		{"trouble", failure(500, "InternalError"), true},
		{"no words", `{"Object":null,"Err":{}}`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, h := newLinked(t, Options{})
			h.answer(always(c.answer))
			e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
			e.link(up)
			if !c.again {
				eventually(t, "it is dropped", func() bool { return len(e.waiting()) == 0 })
				return
			}
			eventually(t, "it is tried", func() bool { return len(h.sent()) > 0 })
			if len(e.waiting()) != 1 {
				t.Fatal("the report is lost")
			}
			h.answer(always(good))
			eventually(t, "it is tried again", func() bool { return len(e.waiting()) == 0 })
		})
	}
}

// TestForbidden: an API server that does not know yet what cloudcore may do is asked again, about pods that are here.
func TestForbidden(t *testing.T) {
	e, h := newLinked(t, Options{})
	e.ok(e.cloud("insert", "default/pod/one", object("default", "one", "u1", "1")))
	h.answer(always(failure(403, "Forbidden")))
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
	e.ok(e.edged("patch", "default/podpatch/gone", quote(t, patch("u2", "Running"))))
	e.link(up)
	eventually(t, "that on a pod which is gone is dropped", func() bool { return slices.Equal(e.waiting(), []string{"patch default/podpatch/one"}) })
	h.answer(always(good))
	eventually(t, "the other is tried again", func() bool { return len(e.waiting()) == 0 })
}

// TestNewerReportOvertakes: the answer to a report is none to a newer one.
func TestNewerReportOvertakes(t *testing.T) {
	e, h := newLinked(t, Options{})
	first, release := make(chan struct{}, 1), make(chan struct{})
	var once sync.Once
	var mu sync.Mutex
	var contents []string
	h.answer(func(m *model.Message) string {
		mu.Lock()
		contents = append(contents, string(m.ContentData()))
		mu.Unlock()
		once.Do(func() {
			first <- struct{}{}
			<-release
		})
		return good
	})
	e.link(up)
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Pending"))))
	<-first
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
	close(release)
	eventually(t, "both are answered", func() bool { return len(e.waiting()) == 0 })
	if diff := cmp.Diff([]string{patch("u1", "Pending"), patch("u1", "Running")}, contents); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
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
	eventually(t, "the answer is acknowledged", func() bool { return h.has("response default/configmap/conf", 1) })
	h.sent()
	h.answer(always(object("default", "conf", "u1", "8")))
	if a := e.edged("query", "default/configmap/conf", "null"); string(a.Content) != want {
		t.Errorf("from the store: %s, want %s", a.Content, want)
	}
	if got := h.sent(); got != nil {
		t.Errorf("the cloud was asked for what is stored: %v", got)
	}
	h.answer(always(`{"ErrStatus":{"status":"Failure","code":404,"reason":"NotFound"}}`))
	if a := e.edged("query", "default/secret/none", "null"); !isNotFound(a) {
		t.Errorf("what there is not: %s, want NotFound", a.Content)
	}
	if rows := e.rows("secret"); len(rows) != 0 {
		t.Errorf("an error was stored: %v", rows)
	}
	// These are asked for anew each time: nobody pushes them. The store answers when there is no link.
	h.answer(always(object("", "v", "u2", "1")))
	e.edged("query", "null/persistentvolume/v", "null")
	h.answer(always(object("", "v", "u2", "2")))
	if a := e.edged("query", "null/persistentvolume/v", "null"); string(a.Content) != object("", "v", "u2", "2") {
		t.Errorf("volume: %s", a.Content)
	}
	e.link(down)
	if a := e.edged("query", "null/persistentvolume/v", "null"); string(a.Content) != object("", "v", "u2", "2") {
		t.Errorf("volume without a link: %s", a.Content)
	}
	for _, c := range [][3]string{{"insert", "null/node/n", "{}"}, {"patch", "null/nodepatch/n", `"{}"`}, {"update", "kube-node-lease/lease/n", "{}"}} {
		if a := e.edged(c[0], c[1], c[2]); a.Route.Operation != model.OpError || !strings.Contains(string(a.Content), "not connected") {
			t.Errorf("%v without a link: %s", c, a.Content)
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
				t.Error("an answer from nowhere")
			}
		})
	}
	eventually(t, "all were asked for", func() bool { return h.has("", 2*inHand) })
	e.ok(e.cloud("insert", "default/configmap/c1", object("default", "c1", "u", "1")))
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
	cancel()
	wg.Wait()
}

// TestAcknowledgementsTravel: what nobody on the device waits for goes to the cloud.
func TestAcknowledgementsTravel(t *testing.T) {
	e, h := newLinked(t, Options{})
	m := model.New("edgecontroller", model.GroupResource, "insert", "default/pod/one", json.RawMessage(object("default", "one", "u", "1")))
	if err := e.bus.Send(t.Context(), model.ModuleMetaManager, m); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the acknowledgement", func() bool { return slices.Equal(h.sent(), []string{"response default/pod/one"}) })
	if len(e.rows("pod")) != 1 {
		t.Error("acknowledged and not stored")
	}
}

// TestInventory: a cloud of ours is told what is here, and edged hears when all is as it should be.
func TestInventory(t *testing.T) {
	synced := make(chan struct{}, 9)
	e, h := newLinked(t, Options{
		Synced: func(context.Context) { synced <- struct{}{} },
	})
	if err := e.bus.Add(edged{}); err != nil {
		t.Fatal(err)
	}
	e.ok(e.cloud("insert", "default/pod/one", object("default", "one", "u1", "1")))
	e.ok(e.cloud("insert", "default/secret/s", object("default", "s", "u2", "1")))
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
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
	want := fmt.Sprintf(`{"objects":[{"k":"default/pod/one","u":"u1","v":%q},{"k":"default/secret/s","u":"u2","v":%q}]}`, version(pod), version(secret))
	if told != want {
		t.Errorf("inventory %s, want %s", told, want)
	}
	eventually(t, "edged is told of the link, and that all is there", func() bool {
		forwarded = append(forwarded, e.forwarded()...)
		return slices.Equal(forwarded, []string{"connect null/link", "connect null/link"})
	})
	// The cloud renews the lease itself.
	h.sent()
	if a := e.edged("update", "kube-node-lease/lease/n", `{"x":1}`); string(a.Content) != `{"Err":null,"Object":{"x":1}}` {
		t.Errorf("lease: %s", a.Content)
	}
	if got := h.sent(); got != nil {
		t.Errorf("sent: %v", got)
	}
}

// TestEventsAreBounded: of those that wait the newest are kept.
func TestEventsAreBounded(t *testing.T) {
	e, _ := newLinked(t, Options{})
	for i := range eventsMax + 50 {
		e.ok(e.edged("insert", fmt.Sprintf("default/event/e%04d", i), fmt.Sprintf(`{"n":%d}`, i)))
	}
	keys := e.waiting()
	if len(keys) > eventsMax || len(keys) < eventsMax*4/5 {
		t.Errorf("%d events wait, want up to %d", len(keys), eventsMax)
	}
	if last := fmt.Sprintf("insert default/event/e%04d", eventsMax+49); keys[len(keys)-1] != last || keys[0] == "insert default/event/e0000" {
		t.Errorf("from %s to %s, want the newest", keys[0], keys[len(keys)-1])
	}
}

func token(made time.Time, life int64) []byte {
	data, err := json.Marshal(map[string]any{
		"spec":   map[string]any{"expirationSeconds": life},
		"status": map[string]any{"token": "t", "expirationTimestamp": metav1.NewTime(made.Add(time.Duration(life) * time.Second))},
	})
	if err != nil {
		panic(err)
	}
	return data
}

func TestTokenFresh(t *testing.T) {
	made := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		age  time.Duration
		life int64
		want bool
	}{
		{0, 3600, true}, {47 * time.Minute, 3600, true}, {49 * time.Minute, 3600, false}, {time.Hour * 2, 3600, false},
		{23 * time.Hour, 7 * 86400, true}, {25 * time.Hour, 7 * 86400, false}, {-40 * 365 * 24 * time.Hour, 3600, true},
	} {
		if got := tokenFresh(token(made, c.life), made.Add(c.age)); got != c.want {
			t.Errorf("after %v of %d s: %v, want %v", c.age, c.life, got, c.want)
		}
	}
	if tokenFresh([]byte(`{}`), made) || tokenFresh([]byte(`x`), made) {
		t.Error("what is no token is fresh")
	}
}

// TestToken: renewed when it is time and there is a link; kept otherwise, however old.
func TestToken(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e, h := newLinked(t, Options{Now: func() time.Time { return now }})
	request := `{"spec":{"audiences":null,"expirationSeconds":3607,"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"p","uid":"u"}}}`
	ask := func() string { return string(e.edged("query", "default/serviceaccounttoken/sa", request).Content) }
	first, second := string(token(now, 3607)), string(token(now.Add(time.Hour), 3607))
	h.answer(always(first))
	e.link(up)
	if got := ask(); got != first {
		t.Errorf("first: %s", got)
	}
	h.answer(always(second))
	if got := ask(); got != first {
		t.Errorf("asked for before its time: %s", got)
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
		t.Errorf("renewed: %s", got)
	}
}

// TestBackoff: a lane that fails waits longer each time, and others do not wait for it.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDrain()
		var waits []time.Duration
		for range 8 {
			waits = append(waits, d.backoff("a")/time.Second)
		}
		if diff := cmp.Diff([]time.Duration{1, 2, 4, 8, 16, 32, 60, 60}, waits); diff != "" {
			t.Errorf("waits (-want +got):\n%s", diff)
		}
		if d.backoff("b") != retryFirst {
			t.Error("b waits for a's sake")
		}
		d.worked("a")
		if d.backoff("a") != retryFirst {
			t.Error("a waits for what is over")
		}
	})
}
