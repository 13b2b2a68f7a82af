package metamanager

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// TestInventoryIsABarrier: the cloud is told what is here once all that came over the link before is stored.
func TestInventoryIsABarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &gated{gate: make(chan struct{})}
		e, h := linkedWith(t, func(m *Module) { s.Store, m.store = m.store, s })
		var told []string
		h.answer(func(m *model.Message) string {
			if m.Route.Operation == "inventory" {
				h.mu.Lock()
				defer h.mu.Unlock()
				told = append(told, string(m.Content))
			}
			return `{"synced":true}`
		})
		last := model.New("edgecontroller", model.GroupResource, "insert", "default/pod/one",
			json.RawMessage(object("default", "one", "u1", "1")))
		if err := e.bus.Send(t.Context(), model.ModuleMetaManager, last); err != nil {
			t.Fatal(err)
		}
		e.link(down)
		e.link(upWithOurs)
		synctest.Wait()
		h.mu.Lock()
		if len(told) > 0 {
			t.Errorf("told %v while a pod is being stored, want nothing", told)
		}
		h.mu.Unlock()
		s.gate <- struct{}{}
		synctest.Wait()
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(told) != 1 || !strings.Contains(told[0], `"k":"default/pod/one"`) {
			t.Errorf("told %v, want the pod, once", told)
		}
	})
}

// TestInventoryDoesNotWaitForLater: messages over the new link do not hold up the inventory, and a link that is lost
// while it waits leaves nothing behind.
func TestInventoryDoesNotWaitForLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &gated{gate: make(chan struct{})}
		e, h := linkedWith(t, func(m *Module) { s.Store, m.store = m.store, s })
		h.answer(synced(good))
		send := func(name string) {
			t.Helper()
			m := model.New("edgecontroller", model.GroupResource, "insert", "default/pod/"+name,
				json.RawMessage(object("default", name, "u", "1")))
			if err := e.bus.Send(t.Context(), model.ModuleMetaManager, m); err != nil {
				t.Fatal(err)
			}
		}
		send("old")
		e.link(upWithOurs)
		e.link(down)    // nothing was told over it
		synctest.Wait() // the inventory that waited for the old link has given up
		s.gate <- struct{}{}
		e.link(upWithOurs)
		send("new")
		synctest.Wait()
		if got := s.inside(); !h.has("inventory", 1) || got != 1 {
			t.Errorf("sent %v while %d objects are being stored, want one inventory while one is", h.sent(), got)
		}
		s.gate <- struct{}{}
	})
}

// TestLanes: settled waits for what was put before it, and for nothing that is put later.
func TestLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newKeyedExecutor()
		closed := func(c <-chan struct{}) bool {
			synctest.Wait()
			select {
			case <-c:
				return true
			default:
				return false
			}
		}
		if !closed(l.idle()) {
			t.Error("settled waits for nothing")
		}
		first, second, later := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var order []string
		l.enqueue("a", func() { <-first; order = append(order, "first") })
		l.enqueue("a", func() { <-second; order = append(order, "second"); panic("boom") })
		settled := l.idle()
		l.enqueue("b", func() { <-later })
		close(first)
		if closed(settled) {
			t.Error("settled does not wait for the second work of a key")
		}
		close(second)
		if !closed(settled) {
			t.Error("settled waits for later work")
		}
		third := func() error { order = append(order, "third"); return nil }
		if err := l.runInTurn(t.Context(), "a", third); err != nil {
			t.Errorf("do after a panic: %v, want nil", err)
		}
		if got := strings.Join(order, " "); got != "first second third" {
			t.Errorf("order %q, want first second third", got)
		}
		if err := l.runInTurn(t.Context(), "a", func() error { panic("boom") }); err == nil {
			t.Error("do of work that panics = nil, want an error")
		}
		close(later)
		l.wait()
	})
}
