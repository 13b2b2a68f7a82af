package outbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

const upWithBatches = `{"connected":true,"features":{"inventory":true,"batch":true}}`

// commits is a store that notes how many operations each Apply has.
type commits struct {
	Store
	mu   sync.Mutex
	each []int
}

func (s *commits) Apply(ctx context.Context, ops ...store.Op) error {
	s.mu.Lock()
	s.each = append(s.each, len(ops))
	s.mu.Unlock()
	return s.Store.Apply(ctx, ops...)
}

// TestEventsOfABatch: over a link with batches, as many events are on their way as one carries, and the answered ones
// leave the store in one commit. One that the cloud refuses for good leaves it as well; one that is to be tried again,
// or was not answered before the link ended, stays and is sent again. Without batches there are few on their way.
func TestEventsOfABatch(t *testing.T) {
	for name, c := range map[string]struct {
		link string
		want int
	}{"batches": {upWithBatches, wire.BatchMax}, "no batches": {upWithOurs, eventSendersMax}} {
		bubble(t, name, func(t *testing.T) {
			s := &commits{}
			e, h := linkedWith(t, func(o *Outbox) { s.Store, o.store = o.store, s })
			var mu sync.Mutex
			var got []*model.Message
			later := func(m *model.Message) string {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, m)
				return ""
			}
			h.answer(later)
			const events = wire.BatchMax + 3
			for i := range events {
				e.ok(e.edged("insert", fmt.Sprintf("a/event/e%02d", i), `{"reason":"Started"}`))
			}
			take := func() []*model.Message {
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				taken := got
				got = nil
				return taken
			}
			e.link(c.link)
			lost := take()
			if len(lost) != c.want {
				t.Fatalf("%d events are on their way, want %d", len(lost), c.want)
			}
			h.answer(e.noLink)
			for _, m := range lost { // as edgehub does when the link ends before the answers
				if err := e.bus.SendResp(t.Context(), m.RespondError(model.ModuleEdgeHub, errNoLink)); err != nil {
					t.Fatal(err)
				}
			}
			e.link(down)
			if n := len(e.waiting()); n != events {
				t.Fatalf("%d events wait after a link without answers, want all %d", n, events)
			}
			h.answer(later)
			e.link(c.link)
			sent := take()
			if len(sent) != c.want {
				t.Fatalf("%d events were sent again, want %d", len(sent), c.want)
			}
			s.mu.Lock()
			s.each = nil
			s.mu.Unlock()
			answers := []string{failure(429, "TooManyRequests"), failure(403, "Forbidden")}
			for i, m := range sent {
				answer := good
				if i < len(answers) {
					answer = answers[i]
				}
				if err := e.bus.SendResp(t.Context(), m.Respond([]byte(answer))); err != nil {
					t.Fatal(err)
				}
			}
			waitRemoved()
			s.mu.Lock()
			if diff := cmp.Diff([]int{len(sent) - 1}, s.each); diff != "" {
				t.Errorf("removed by each commit (-want +got):\n%s", diff)
			}
			s.mu.Unlock()
			again := sent[0].Route.Operation + " " + sent[0].Route.Resource
			if left := e.waiting(); !slices.Contains(left, again) || len(left) != events-len(sent)+1 {
				t.Errorf("the outbox holds %s, want %s and what was not sent", strings.Join(left, ", "), again)
			}
		})
	}
}

// TestRemovedAtStop: what the cloud answered just before the agent stops leaves the store.
func TestRemovedAtStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t)
		o := New(nil, s, Options{})
		if err := s.Apply(t.Context(), store.OutboxPut("insert a/event/e", []byte(`{}`))); err != nil {
			t.Fatal(err)
		}
		reports, err := s.OutboxKeys(t.Context())
		if err != nil || len(reports) != 1 {
			t.Fatalf("OutboxKeys = %v, %v; want one", reports, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		o.acknowledged(ctx, reports[0])
		stop()
		o.wg.Wait()
		if left, err := s.OutboxKeys(t.Context()); err != nil || len(left) != 0 {
			t.Errorf("the outbox holds %v, %v; want nothing", left, err)
		}
	})
}
