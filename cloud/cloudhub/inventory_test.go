package cloudhub

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// tellAll sends an inventory, acknowledges what comes, and returns the answer to the inventory.
func (e *edge) tellAll(held []wire.Held) wire.Synced {
	e.t.Helper()
	m, err := wire.NewInventory(held)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := e.send(m); err != nil {
		e.t.Fatal(err)
	}
	var reply *model.Message
	wait.True(e.t, "the answer to the inventory", func() bool { reply = e.answer(m.Header.ID); return reply != nil })
	var synced wire.Synced
	if err := json.Unmarshal(reply.Content, &synced); err != nil {
		e.t.Fatalf("the answer to the inventory is %s: %v", reply.Content, err)
	}
	return synced
}

// TestReportAgain: the statuses that a node says it reported are compared, and the answer to the inventory names the
// pods that it is to report again.
func TestReportAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		c.cluster.set("n1", "default/pod/web", "u-web", "a")
		told := make(chan []wire.Held, 10)
		c.api.inventoried = func(node string, pods []wire.Held) []string {
			told <- pods
			if node != "n1" || len(pods) == 0 {
				return nil
			}
			return []string{"default/pod/web"}
		}
		e := newEdge(t, "n1").dialOurs(c)
		if first := wait.Receive(t, "the first inventory", told); len(first) != 0 {
			t.Errorf("the pods of an empty inventory are %v, want none", first)
		}
		wait.True(t, "the answer to the first inventory", e.isSynced)
		pods := []wire.Held{
			{Key: "default/pod/web", UID: "u-web", Version: "a", Status: "old"},
			{Key: "default/pod/api", UID: "u-api", Version: "a", Status: wire.StatusPending},
		}
		objects := append([]wire.Held{{Key: "default/secret/s", UID: "u-s", Version: "a"}}, pods...)
		want := wire.Synced{Synced: true, Report: []string{"default/pod/web"}}
		if diff := cmp.Diff(want, e.tellAll(objects)); diff != "" {
			t.Errorf("the answer mismatch (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(pods, wait.Receive(t, "the second inventory", told)); diff != "" {
			t.Errorf("pods of the inventory mismatch (-want +got):\n%s", diff)
		}
		want = wire.Synced{Synced: true}
		if diff := cmp.Diff(want, e.tellAll(nil)); diff != "" {
			t.Errorf("the answer to an inventory without pods mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestNotServed: an inventory that names objects of a type that no controller serves is answered, and the node keeps
// them. They are looked up again when they change.
func TestNotServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		c.cluster.fail("default/secret/hall", fmt.Errorf("secrets: %w", ErrNotServed))
		e := newEdge(t, "n1").dialOurs(c)
		wait.True(t, "the answer to the first inventory", e.isSynced)
		held := []wire.Held{{Key: "default/secret/hall", UID: "u-hall", Version: "a"}}
		if diff := cmp.Diff(wire.Synced{Synced: true}, e.tellAll(held)); diff != "" {
			t.Errorf("the answer mismatch (-want +got):\n%s", diff)
		}
		c.cluster.fail("default/secret/hall", nil)
		c.cluster.set("n1", "default/secret/hall", "u-hall", "b")
		wait.True(t, "the new version", func() bool { return e.holds()["default/secret/hall"] != "" })
	})
}

// TestWithheld: a node keeps what it has of an object that is withheld, and is sent it when that is over. Another
// object of the name is gone, and is deleted there.
func TestWithheld(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		uid   types.UID
		keeps bool
	}{"the same": {"u-web", true}, "another one": {"u-new", false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := startInMemory(t, nil)
				c.cluster.set("n1", "default/pod/web", "u-web", "a")
				e := newEdge(t, "n1").dialOurs(c)
				settled(t, c, e)
				c.cluster.fail("default/pod/web", fmt.Errorf("pod: %w", &WithheldError{UID: test.uid, Why: "test"}))
				c.cluster.set("n1", "default/pod/web", string(test.uid), "b")
				c.cluster.set("n1", "default/pod/later", "u-later", "a")
				wait.True(t, "what comes after it", func() bool { return e.holds()["default/pod/later"] != "" })
				wait.True(t, "it to be kept, or deleted", func() bool {
					return (e.holds()["default/pod/web"] == "u-web/a") == test.keeps
				})
				c.cluster.fail("default/pod/web", nil)
				c.cluster.set("n1", "default/pod/web", string(test.uid), "c")
				settled(t, c, e)
			})
		})
	}
}
