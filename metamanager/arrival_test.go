package metamanager

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestMessageTwice: a message of the cloud that comes again, after others have changed what it said, is acknowledged
// and changes nothing. One that failed is carried out when it comes again.
func TestMessageTwice(t *testing.T) {
	e := newEdge(t, nil)
	msg := func(operation, res, content string) *model.Message {
		return model.New("edgecontroller", model.GroupResource, operation, res, json.RawMessage(content))
	}
	insert := msg("insert", "default/pod/one", object("default", "one", "u1", "1"))
	e.ok(e.send(insert))
	e.ok(e.send(msg("delete", "default/pod/one", object("default", "one", "u1", "1"))))
	e.ok(e.send(insert))
	if rows := e.rows("pod"); len(rows) != 0 {
		t.Errorf("pods after a deleted one was sent again = %v, want none", rows)
	}
	if diff := cmp.Diff([]string{"insert default/pod/one", "delete default/pod/one"}, e.forwarded()); diff != "" {
		t.Errorf("forwarded (-want +got):\n%s", diff)
	}
	// A configmap that a pod named, named no more, and names again, is the same object: it comes with another id.
	for range 2 {
		e.ok(e.send(msg("update", "default/configmap/c", object("default", "c", "u2", "5"))))
		if rows := e.rows("configmap"); len(rows) != 1 {
			t.Errorf("configmaps = %v, want one", rows)
		}
		e.ok(e.send(msg("delete", "default/configmap/c", object("default", "c", "u2", "5"))))
	}

	failing := []error{errors.New("disk is full"), nil}
	e = newEdge(t, func(inner Store) Store {
		return &gated{Store: inner, fail: func() (err error) { err, failing = failing[0], failing[1:]; return err }}
	})
	if a := e.send(insert); a.Route.Operation != model.OpError {
		t.Fatalf("answer = %s %s, want an error: the disk is full", a.Route.Operation, a.Content)
	}
	e.ok(e.send(insert))
	if rows := e.rows("pod"); len(rows) != 1 {
		t.Errorf("pods after the second try = %v, want one", rows)
	}
}

// linkedWith is an edge with a hub, whose module a test may change before it runs.
func linkedWith(t *testing.T, change func(*Module)) (*edge, *hub) {
	t.Helper()
	e := &edge{t: t, bus: beehive.New(), store: openStore(t)}
	h := &hub{bus: e.bus}
	m := New(e.bus, e.store, Options{})
	change(m)
	if err := errors.Join(e.bus.Add(m), e.bus.Add(h)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.bus.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return e, h
}

const upWithOurs = `{"connected":true,"features":{"inventory":true}}`

// TestEventStays: an event stays in the outbox until it is known to have arrived. A cloud of ours says so; with one of
// KubeEdge's the link has to live on for a while.
func TestEventStays(t *testing.T) {
	synced := func(then func(*model.Message) string) func(*model.Message) string {
		return func(m *model.Message) string {
			if m.Route.Operation == "inventory" {
				return `{"synced":true}`
			}
			return then(m)
		}
	}
	for name, tc := range map[string]struct {
		link  string
		grace time.Duration
		// arrives is how the cloud behaves when the event does arrive, silence how long it then stays.
		arrives func(*model.Message) string
		stays   bool
	}{
		"ours":                {upWithOurs, time.Nanosecond, always(`"OK"`), false},
		"ours, refused":       {upWithOurs, time.Nanosecond, always(failure(403, "Forbidden")), false},
		"ours, no answer":     {upWithOurs, time.Nanosecond, always(""), true},
		"ours, in trouble":    {upWithOurs, time.Nanosecond, always(failure(500, "InternalError")), true},
		"KubeEdge's":          {up, 10 * time.Second, always(""), false},
		"KubeEdge's, at once": {up, time.Hour, always(""), true},
	} {
		bubble(t, name, func(t *testing.T) {
			e, h := linkedWith(t, func(m *Module) { m.grace = tc.grace })
			h.answer(synced(e.noLink))
			e.ok(e.edged("insert", "default/event/e1", `{"reason":"Started"}`))
			e.link(tc.link)
			wait.True(t, "it was sent", func() bool { return !h.has("insert default/event/e1", 0) })
			e.link(down)
			if diff := cmp.Diff([]string{"insert default/event/e1"}, e.waiting()); diff != "" {
				t.Errorf("lost with the link (-want +got):\n%s", diff)
			}
			h.sent()
			h.answer(synced(tc.arrives))
			e.link(tc.link)
			wait.True(t, "it was sent again", func() bool { return !h.has("insert default/event/e1", 0) })
			if tc.stays {
				time.Sleep(30 * time.Minute) // of the simulated clock
				synctest.Wait()
				if got := e.waiting(); len(got) != 1 {
					t.Errorf("the outbox holds %v, want the event", got)
				}
				return
			}
			wait.True(t, "it left the outbox", func() bool { return len(e.waiting()) == 0 })
		})
	}
}

// TestEventRefusedByNewLink: an event that was meant for a cloud of KubeEdge, and that a cloud of ours over the link
// after it answers with "later", stays.
func TestEventRefusedByNewLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, h := linkedWith(t, func(*Module) {})
		h.answer(always(failure(429, "TooManyRequests")))
		e.link(up)
		e.ok(e.edged("insert", "a/event/e", `{"reason":"Started"}`))
		time.Sleep(2 * eventGrace)
		if got := e.waiting(); len(got) != 1 {
			t.Errorf("the outbox holds %v, want the event", got)
		}
	})
}
