package outbox

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestEventStays: an event stays in the outbox until it is known to have arrived. A cloud of ours says so; with one of
// KubeEdge's the link has to live on for a while.
func TestEventStays(t *testing.T) {
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
			e, h := linkedWith(t, func(o *Outbox) { o.grace = tc.grace })
			h.answer(e.noLink)
			e.ok(e.edged("insert", "default/event/e1", `{"reason":"Started"}`))
			e.link(tc.link)
			wait.True(t, "it was sent", func() bool { return !h.has("insert default/event/e1", 0) })
			e.link(down)
			if diff := cmp.Diff([]string{"insert default/event/e1"}, e.waiting()); diff != "" {
				t.Errorf("lost with the link (-want +got):\n%s", diff)
			}
			h.sent()
			h.answer(tc.arrives)
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
		e, h := linkedWith(t, func(*Outbox) {})
		h.answer(always(failure(429, "TooManyRequests")))
		e.link(up)
		e.ok(e.edged("insert", "a/event/e", `{"reason":"Started"}`))
		time.Sleep(2 * eventGrace)
		if got := e.waiting(); len(got) != 1 {
			t.Errorf("the outbox holds %v, want the event", got)
		}
	})
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
	if last := fmt.Sprintf("insert default/event/e%04d", eventsMax+49); keys[len(keys)-1] != last ||
		keys[0] == "insert default/event/e0000" {
		t.Errorf("from %s to %s, want the newest", keys[0], keys[len(keys)-1])
	}
}
