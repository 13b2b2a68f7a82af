package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// edge is an outbox with a store and a link: it does with reports what metamanager does.
type edge struct {
	t      testing.TB
	bus    *beehive.Bus
	store  *store.Store
	outbox *Outbox
}

// newLinked is an edge with a hub; the link is down at first.
func newLinked(t *testing.T, opts Options) (*edge, *hub) {
	t.Helper()
	return linked(t, opts, func(*Outbox) {})
}

// linkedWith is newLinked with an outbox that a test may change before it runs.
func linkedWith(t *testing.T, change func(*Outbox)) (*edge, *hub) {
	t.Helper()
	return linked(t, Options{}, change)
}

func linked(t *testing.T, opts Options, change func(*Outbox)) (*edge, *hub) {
	t.Helper()
	e := &edge{t: t, bus: beehive.New(), store: openStore(t)}
	opts.Write = func(ctx context.Context, _ resource.Key, ops ...store.Op) error { return e.store.Apply(ctx, ops...) }
	opts.StoredUID = e.storedUID
	if opts.Refused == nil {
		opts.Refused = func(string, error) {}
	}
	e.outbox = New(e.bus, e.store, opts)
	change(e.outbox)
	h := &hub{bus: e.bus}
	if err := e.bus.Add(h); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.bus.Run(ctx) })
	wg.Go(func() { e.outbox.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return e, h
}

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

func (e *edge) storedUID(ctx context.Context, object resource.Key) (string, error) {
	row, err := e.store.Get(ctx, object.String())
	if err != nil {
		return "", err
	}
	var stored struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	err = json.Unmarshal(row.Value, &stored)
	return stored.Metadata.UID, err
}

// edged reports something.
func (e *edge) edged(operation, res, content string) error {
	e.t.Helper()
	object, err := resource.Parse(res)
	if err != nil {
		return err
	}
	r := Read(object, model.New(model.ModuleEdged, model.GroupMeta, operation, res, json.RawMessage(content)))
	switch {
	case object.Type == resource.TypeEvent:
		return e.outbox.AddEvent(e.t.Context(), r)
	case operation == model.OpDelete:
		return e.outbox.AddUrgent(e.t.Context(), r)
	}
	return e.outbox.Add(e.t.Context(), r)
}

// cloud stores or deletes an object.
func (e *edge) cloud(operation, res, content string) error {
	e.t.Helper()
	object, err := resource.Parse(res)
	if err != nil {
		return err
	}
	if operation == model.OpDelete {
		err := e.store.Apply(e.t.Context(), store.Delete(res))
		e.outbox.Forget(object)
		return err
	}
	row := store.Meta{Key: res, Type: object.Type, Value: []byte(content)}
	return e.store.Apply(e.t.Context(), store.Upsert(row))
}

func (e *edge) ok(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// link is edgehub's report on the link.
func (e *edge) link(text string) {
	e.t.Helper()
	var link struct {
		Connected bool          `json:"connected"`
		Features  wire.Features `json:"features"`
	}
	e.ok(json.Unmarshal([]byte(text), &link))
	if link.Connected {
		e.outbox.LinkUp(link.Features)
	} else {
		e.outbox.LinkDown()
	}
}

const (
	up         = `{"connected":true}`
	upWithOurs = `{"connected":true,"features":{"inventory":true}}`
	down       = `{"connected":false}`
)

// waiting are the reports on the disk: "operation resource" of each.
func (e *edge) waiting() (keys []string) {
	e.t.Helper()
	reports, err := e.store.Outbox(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	for _, r := range reports {
		var m model.Message
		if err := json.Unmarshal(r.Value, &m); err != nil || m.Header.ID == "" || m.Route.Source != model.ModuleEdged {
			e.t.Errorf("report %s = %s, %v; want a message of edged", r.Key, r.Value, err)
		}
		keys = append(keys, m.Route.Operation+" "+m.Route.Resource)
	}
	return keys
}

// waitRemoved waits, in a bubble, until answered reports are out of the outbox.
func waitRemoved() {
	synctest.Wait()
	time.Sleep(ackGather)
	synctest.Wait()
}

// hub stands in for edgehub and the cloud behind it: it keeps what it is sent, and answers as the test says.
type hub struct {
	bus *beehive.Bus
	mu  sync.Mutex
	// got is "operation resource" of each message.
	got []string
	// say answers a report; "" is no answer.
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
		h.got = append(h.got, m.Route.Operation+" "+m.Route.Resource)
		say := h.say
		h.mu.Unlock()
		if say == nil {
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

var errNoLink = errors.New("not connected to the cloud")

// noLink says what edgehub says of a request when there is no link, or none any more.
func (e *edge) noLink(m *model.Message) string {
	_ = e.bus.SendResp(context.Background(), m.RespondError(model.ModuleEdgeHub, errNoLink))
	return ""
}

const good = `{"Object":{},"Err":null}`

func failure(code int, reason string) string {
	return fmt.Sprintf(`{"Object":null,"Err":{"ErrStatus":{"status":"Failure","code":%d,"reason":%q,"message":"no"}}}`,
		code, reason)
}

// quote is text as a JSON string, as patches travel.
func quote(t testing.TB, text string) string {
	t.Helper()
	out, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func patch(uid, phase string) string {
	return fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"phase":%q}}`, uid, phase)
}

func end(uid string) string {
	return fmt.Sprintf(`{"gracePeriodSeconds":0,"preconditions":{"uid":%q}}`, uid)
}

func object(namespace, name, uid, version string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":%q,"uid":%q,"resourceVersion":%q}}`, name, namespace, uid,
		version)
}

// bubble runs a subtest on a simulated clock, so that tries again come at once.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}
