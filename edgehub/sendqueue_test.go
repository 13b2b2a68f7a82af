package edgehub

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

func outgoing(operation, resource string) *model.Message {
	return model.New(model.ModuleEdged, model.GroupMeta, operation, resource, json.RawMessage(`{}`))
}

func takeAll(q *sendQueue) []string {
	var got []string
	for q.len() > 0 {
		for _, m := range q.pop() {
			got = append(got, m.Route.Operation+" "+m.Route.Resource)
		}
	}
	return got
}

// TestPriorities: what pods wait for goes first, then reports, then events; messages of one priority keep their order.
func TestPriorities(t *testing.T) {
	q := newSendQueue()
	for _, m := range []*model.Message{
		outgoing(model.OpInsert, "default/event/a"),
		outgoing(model.OpPatch, "default/podpatch/a"),
		outgoing(model.OpDelete, "default/pod/a"),
		outgoing(model.OpInsert, "default/event/b"),
		outgoing(model.OpQuery, "default/serviceaccounttoken/default"),
		outgoing(model.OpUpdate, "default/pod/b").Respond(model.OK),
		outgoing(wire.OpInventory, wire.ResourceInventory),
		outgoing(model.OpPatch, "default/podpatch/b"),
	} {
		q.enqueue(m)
	}
	want := []string{
		"query default/serviceaccounttoken/default", "response default/pod/b", "inventory null/inventory",
		"patch default/podpatch/a", "delete default/pod/a", "patch default/podpatch/b",
		"insert default/event/a", "insert default/event/b",
	}
	if diff := cmp.Diff(want, takeAll(q)); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// TestNothingStarves: however many urgent messages come, each priority gets its turn.
func TestNothingStarves(t *testing.T) {
	q := newSendQueue()
	q.enqueue(outgoing(model.OpInsert, "default/event/a"))
	q.enqueue(outgoing(model.OpPatch, "default/podpatch/a"))
	at := map[priority]int{}
	for i := 1; len(at) < 2; i++ {
		if i > 4*maxPassed {
			t.Fatalf("after %d urgent messages only the priorities %v had a turn", i, at)
		}
		q.enqueue(outgoing(model.OpQuery, fmt.Sprintf("default/secret/%d", i)))
		if p := priorityOf(q.pop()[0]); p != first {
			at[p] = i
		}
	}
	if want := map[priority]int{last: maxPassed + 1, normal: maxPassed + 2}; !cmp.Equal(at, want) {
		t.Errorf("turns %v, want %v", at, want)
	}
}

// TestQueueIsBounded: a queue that is full takes no message before one is taken out of it.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newSendQueue()
		for range maxQueued {
			if !q.room(t.Context()) {
				t.Fatal("no room")
			}
			q.enqueue(outgoing(model.OpQuery, "default/secret/a"))
		}
		var got sync.WaitGroup
		entered := false
		got.Go(func() { entered = q.room(t.Context()) })
		synctest.Wait()
		if entered {
			t.Fatalf("room in a queue of %d messages", q.len())
		}
		q.pop()
		if got.Wait(); !entered {
			t.Error("no room after a message was taken")
		}
	})
}

// TestPaceKeepsOrder: messages that wait for the rate limit are overtaken by more urgent ones that come later.
func TestPaceKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, _, e := simulate(t, time.Hour, func(s *settings) { s.rate, s.burst = 1, 1 })
		e.told(1)
		send := func(m *model.Message) {
			if err := e.bus.Send(t.Context(), model.ModuleEdgeHub, m); err != nil {
				t.Fatal(err)
			}
		}
		send(outgoing(model.OpInsert, "default/event/sent"))
		u.until("the first", func() bool { return u.received(model.OpInsert) == 1 })
		for i := range 5 {
			send(outgoing(model.OpInsert, fmt.Sprintf("default/event/%d", i)))
		}
		synctest.Wait()
		send(outgoing(model.OpQuery, "default/secret/a"))
		u.until("the query", func() bool { return u.received(model.OpQuery) == 1 })
		if n := u.received(model.OpInsert); n != 1 {
			t.Errorf("%d events came before the query, want the one that had been sent", n)
		}
		u.until("all events", func() bool { return u.received(model.OpInsert) == 6 })
	})
}

// TestNoPaceToOurs: messages to our own cloud are not held to messageQPS.
func TestNoPaceToOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, e := simulateOurs(t, func(s *settings) { s.rate, s.burst = 1, 1 })
		e.told(1)
		began := time.Now()
		var asked sync.WaitGroup
		for i := range 100 {
			asked.Go(func() {
				if _, err := e.ask(t.Context(), request(fmt.Sprintf("default/secret/%d", i))); err != nil {
					t.Error(err)
				}
			})
		}
		asked.Wait()
		if took := time.Since(began); took > 0 {
			t.Errorf("100 requests took %v of the simulated clock, want none", took)
		}
	})
}
