package metamanager

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/outbox"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// byUID is a cloud that has one pod of a name, and refuses what is reported on another. It keeps what it took.
type byUID struct {
	uid string
	mu  sync.Mutex
	// took are the contents of what it took, refused those of the rest.
	took, refused []string
}

func (c *byUID) answer(m *model.Message) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Route.Operation == wire.OpInventory {
		return `{"synced":true}`
	}
	text := string(m.ContentData())
	key, err := resource.Parse(m.Route.Resource)
	if err != nil || outbox.Read(key, m).UID != c.uid {
		c.refused = append(c.refused, text)
		return failure(409, "Conflict")
	}
	c.took = append(c.took, text)
	return good
}

func (c *byUID) check(t *testing.T, took, refused []string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.refused) // reports on different pods go side by side
	if diff := cmp.Diff(took, c.took); diff != "" {
		t.Errorf("taken by the cloud (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(refused, c.refused); diff != "" {
		t.Errorf("refused by the cloud (-want +got):\n%s", diff)
	}
}

func end(uid string) string {
	return fmt.Sprintf(`{"gracePeriodSeconds":0,"preconditions":{"uid":%q}}`, uid)
}

// TestLateReportOnPredecessor: the status of a pod survives what is reported late on an earlier pod of its name, and
// the same status of both pods is reported of both.
func TestLateReportOnPredecessor(t *testing.T) {
	e, h := newLinked(t, Options{})
	const res = "default/podpatch/db-0"
	e.ok(e.cloud("insert", "default/pod/db-0", object("default", "db-0", "u1", "1")))
	e.ok(e.edged("patch", res, quote(t, patch("u1", "Running"))))
	e.ok(e.cloud("insert", "default/pod/db-0", object("default", "db-0", "u2", "5"))) // u1 was force deleted
	e.ok(e.edged("patch", res, quote(t, patch("u2", "Running"))))
	e.ok(e.edged("patch", res, quote(t, patch("u1", "Failed"))))
	e.ok(e.edged("delete", "default/pod/db-0", end("u1")))
	if diff := cmp.Diff(map[string]string{res: patch("u2", "Running")}, e.rows("podpatch")); diff != "" {
		t.Errorf("stored status (-want +got):\n%s", diff)
	}
	cloud := &byUID{uid: "u2"}
	h.answer(cloud.answer)
	e.link(up)
	wait.True(t, "the outbox is empty", func() bool { return len(e.waiting()) == 0 })
	cloud.check(t, []string{patch("u2", "Running")}, []string{end("u1"), patch("u1", "Failed")})
}

// TestForbiddenPredecessor: what is forbidden about a pod whose successor is stored here is dropped.
func TestForbiddenPredecessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, h := newLinked(t, Options{})
		e.ok(e.cloud("insert", "default/pod/db-0", object("default", "db-0", "u2", "5")))
		h.answer(always(failure(403, "Forbidden")))
		e.ok(e.edged("patch", "default/podpatch/db-0", quote(t, patch("u1", "Failed"))))
		e.link(up)
		wait.True(t, "the outbox is empty", func() bool { return len(e.waiting()) == 0 })
	})
}

// TestOutboxOfOlderVersion: reports on pods that an older version stored by name are sent, but for those of which this
// version has a newer one on the same pod.
func TestOutboxOfOlderVersion(t *testing.T) {
	e, h := newLinked(t, Options{})
	put := func(operation, res, content string) {
		t.Helper()
		value := fmt.Sprintf(
			`{"header":{"msg_id":%q,"timestamp":1},"route":{"source":"edged","group":"meta","operation":%q,"resource":%q},"content":%s}`,
			operation, operation, res, content)
		if err := e.store.Apply(t.Context(), store.OutboxPut(operation+" "+res, []byte(value))); err != nil {
			t.Fatal(err)
		}
	}
	put("patch", "default/podpatch/db-0", quote(t, patch("u1", "Pending")))
	put("patch", "default/podpatch/quiet", quote(t, patch("u3", "Running")))
	put("delete", "default/pod/old", end("u0"))
	put("insert", "default/event/e1", `{"reason":"Started"}`)
	e.ok(e.edged("patch", "default/podpatch/db-0", quote(t, patch("u1", "Running"))))
	cloud := &byUID{uid: "u1"}
	h.answer(cloud.answer)
	e.link(`{"connected":true,"features":{"inventory":true}}`)
	wait.True(t, "the outbox is empty", func() bool { return len(e.waiting()) == 0 })
	cloud.check(t, []string{
		patch("u1", "Running"),
	}, []string{end("u0"), patch("u3", "Running"), `{"reason":"Started"}`})
}
