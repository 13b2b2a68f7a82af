package metamanager

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// reconciler is a cloud that keeps what it is sent, and asks for the statuses of some pods again.
type reconciler struct {
	report []string
	// answerReports: it answers reports; without, they stay in the outbox.
	answerReports bool
	told          []wire.Inventory
	reports       []string
}

func (c *reconciler) answer(t *testing.T, h *hub) func(*model.Message) string {
	return func(m *model.Message) string {
		h.mu.Lock()
		defer h.mu.Unlock()
		if m.Route.Operation == wire.OpInventory {
			var inventory wire.Inventory
			if err := json.Unmarshal(m.ContentData(), &inventory); err != nil {
				t.Error(err)
			}
			c.told = append(c.told, inventory)
			out, err := json.Marshal(wire.Synced{Synced: true, Report: c.report})
			if err != nil {
				t.Error(err)
			}
			return string(out)
		}
		c.reports = append(c.reports, m.Route.Resource+" "+string(m.ContentData()))
		if c.answerReports {
			return good
		}
		return ""
	}
}

// TestInventoryHasStatuses: of each pod the hash of the status that was reported last, or that a newer one waits.
func TestInventoryHasStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, h := newLinked(t, Options{})
		c := &reconciler{answerReports: true}
		h.answer(c.answer(t, h))
		for _, name := range []string{"none", "told", "waits", "replaced", "old"} {
			e.ok(e.cloud("insert", "a/pod/"+name, object("a", name, "u-"+name, "1")))
		}
		e.link(upWithOurs)
		e.ok(e.edged("patch", "a/podpatch/told", quote(t, patch("u-told", "Running"))))
		e.ok(e.edged("patch", "a/podpatch/waits", quote(t, patch("u-waits", "Pending"))))
		e.ok(e.edged("update", "a/podstatus/replaced", patch("u-static", "Running"))) // of another pod of the name
		e.ok(e.cloud("insert", "a/pod/mirror", mirrorPod("mirror", "u-mirror", "u-static")))
		e.ok(e.edged("update", "a/podstatus/mirror", patch("u-static", "Running")))
		synctest.Wait()
		e.link(down)
		h.mu.Lock()
		c.answerReports = false
		h.mu.Unlock()
		e.ok(e.edged("patch", "a/podpatch/waits", quote(t, patch("u-waits", "Running"))))
		// Of a version that stored reports by name.
		if err := e.store.Apply(t.Context(), store.OutboxPut("patch a/podpatch/old", []byte(fmt.Sprintf(
			`{"header":{"msg_id":"1"},"route":{"source":"edged","operation":"patch","resource":"a/podpatch/old"},"content":%s}`, patch("u-old", "Running"))))); err != nil {
			t.Fatal(err)
		}
		h.mu.Lock()
		c.told = nil
		h.mu.Unlock()
		e.link(upWithOurs)
		synctest.Wait()
		hash, err := wire.StatusHash([]byte(patch("u-told", "Running")))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, held := range c.told[0].Objects {
			got[held.Key] = held.Status
		}
		want := map[string]string{
			"a/pod/none": "", "a/pod/told": hash, "a/pod/waits": wire.StatusPending, "a/pod/replaced": "",
			"a/pod/old": wire.StatusPending, "a/pod/mirror": hash,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("statuses in the inventory (-want +got):\n%s", diff)
		}
	})
}

// TestStatusIsReportedAgain: the cloud names pods whose status it does not have. Those that are still here report it
// again, once; what is newer, or waits, is not replaced.
func TestStatusIsReportedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, h := newLinked(t, Options{})
		c := &reconciler{answerReports: true}
		h.answer(c.answer(t, h))
		e.link(upWithOurs)
		for _, name := range []string{"lost", "fine", "none"} {
			e.ok(e.cloud("insert", "a/pod/"+name, object("a", name, "u-"+name, "1")))
			if name != "none" {
				e.ok(e.edged("patch", "a/podpatch/"+name, quote(t, patch("u-"+name, "Running"))))
			}
		}
		synctest.Wait()
		e.link(down)
		h.mu.Lock()
		c.reports, c.report = nil, []string{"a/pod/lost", "a/pod/lost", "a/pod/none", "a/pod/unknown", "a/secret/s",
			"nonsense", ""}
		h.mu.Unlock()
		e.link(upWithOurs)
		synctest.Wait()
		h.mu.Lock()
		defer h.mu.Unlock()
		if diff := cmp.Diff([]string{"a/podpatch/lost " + patch("u-lost", "Running")}, c.reports); diff != "" {
			t.Errorf("reported again (-want +got):\n%s", diff)
		}
		time.Sleep(time.Second) // of the simulated clock: answered reports are removed meanwhile
		synctest.Wait()
		if got := e.waiting(); got != nil {
			t.Errorf("the outbox holds %v, want nothing", got)
		}
	})
}

// TestReportRequested: the cloud asks for the status of a pod. It is reported again as it was, each time; that of
// another pod, or none, is not, and what is invalid is refused.
func TestReportRequested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, h := newLinked(t, Options{})
		c := &reconciler{answerReports: true}
		h.answer(c.answer(t, h))
		e.link(upWithOurs)
		for _, name := range []string{"lost", "none"} {
			e.ok(e.cloud("insert", "a/pod/"+name, object("a", name, "u-"+name, "1")))
		}
		e.ok(e.edged("patch", "a/podpatch/lost", quote(t, patch("u-lost", "Running"))))
		synctest.Wait()
		h.mu.Lock()
		c.reports = nil
		h.mu.Unlock()
		for range 2 {
			e.ok(e.cloud("report", "a/pod/lost", `{"uid":"u-lost"}`))
			synctest.Wait()
		}
		e.ok(e.cloud("report", "a/pod/lost", `{"uid":"u-other"}`))
		e.ok(e.cloud("report", "a/pod/none", `{"uid":"u-none"}`))
		e.ok(e.cloud("report", "a/pod/unknown", `{"uid":"u-lost"}`))
		e.ok(e.cloud("report", "a/secret/lost", `{"uid":"u-lost"}`))
		for _, content := range []string{`{}`, `null`, `"x"`, `{"uid":"` + strings.Repeat("x", 300) + `"}`} {
			if a := e.cloud("report", "a/pod/lost", content); a.Route.Operation != model.OpError {
				t.Errorf("answer to %.20s = %s %s, want an error", content, a.Route.Operation, a.Content)
			}
		}
		synctest.Wait()
		h.mu.Lock()
		defer h.mu.Unlock()
		once := "a/podpatch/lost " + patch("u-lost", "Running")
		if diff := cmp.Diff([]string{once, once}, c.reports); diff != "" {
			t.Errorf("reported again (-want +got):\n%s", diff)
		}
		time.Sleep(time.Second) // of the simulated clock: answered reports are removed meanwhile
		synctest.Wait()
		if got := e.waiting(); got != nil {
			t.Errorf("the outbox holds %v, want nothing", got)
		}
	})
}

// mirrorPod is a mirror pod in the namespace a.
func mirrorPod(name, uid, static string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"a","uid":%q,"annotations":{%q:%q}}}`, name, uid,
		"kubernetes.io/config.mirror", static)
}

// TestReportStatus: what is queued of a pod whose status the cloud asks for.
func TestReportStatus(t *testing.T) {
	pod := func(uid string) store.Op {
		return store.Upsert(store.Meta{Key: "a/pod/p", Type: "pod", Value: []byte(object("a", "p", uid, "1"))})
	}
	mirror := func(static string) store.Op {
		return store.Upsert(store.Meta{Key: "a/pod/p", Type: "pod", Value: []byte(mirrorPod("p", "u1", static))})
	}
	status := func(uid string) store.Op {
		return store.Upsert(store.Meta{Key: "a/podpatch/p", Type: "podpatch", Value: []byte(patch(uid, "Running"))})
	}
	for _, c := range []struct {
		name string
		ops  []store.Op
		want []string
	}{
		{"as it was told", []store.Op{pod("u1"), status("u1")}, []string{"patch:u1 a/podpatch/p"}},
		{"pod is gone", []store.Op{status("u1")}, nil},
		{"pod is another", []store.Op{pod("u2"), status("u1")}, nil},
		{"status is gone", []store.Op{pod("u1")}, nil},
		{"status is another's", []store.Op{pod("u1"), status("u2")}, nil},
		{
			"a report waits", []store.Op{
				pod("u1"), status("u1"), store.OutboxPut("patch:u1 a/podpatch/p", []byte("newer")),
			}, []string{"patch:u1 a/podpatch/p"},
		},
		{
			"an old report waits", []store.Op{
				pod("u1"), status("u1"), store.OutboxPut("patch a/podpatch/p", []byte("old")),
			}, []string{"patch a/podpatch/p"},
		},
		{"mirror pod", []store.Op{mirror("u-static"), status("u-static")}, []string{"patch:u1 a/podpatch/p"}},
		{"mirror of another", []store.Op{mirror("u-other"), status("u-static")}, nil},
		{"mirror, own status", []store.Op{mirror("u-static"), status("u1")}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openStore(t)
			if err := s.Apply(t.Context(), c.ops...); err != nil {
				t.Fatal(err)
			}
			m := New(dropping{}, s, Options{})
			if err := m.reportStatus(t.Context(), wire.Held{Key: "a/pod/p", UID: "u1", Status: "h"}); err != nil {
				t.Errorf("reportStatus = %v, want nil", err)
			}
			reports, err := s.Outbox(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range reports {
				got = append(got, r.Key)
				var msg model.Message
				if c.name == "mirror pod" && (json.Unmarshal(r.Value, &msg) != nil ||
					string(msg.ContentData()) != patch("u1", "Running")) {
					t.Errorf("report = %s, want the static pod's status with the UID u1", r.Value)
				}
				if c.name == "a report waits" && string(r.Value) != "newer" {
					t.Errorf("the report that waited is %s by now, want it as it was", r.Value)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("outbox (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReportAgain: names without end cost no more than the inventory has pods.
func TestReportAgain(t *testing.T) {
	var told []wire.Held
	for i := range 100 {
		told = append(told, wire.Held{Key: fmt.Sprintf("a/pod/p%d", i), Status: "h"})
	}
	var named []string
	for i := range 100_000 {
		named = append(named, fmt.Sprintf("b/pod/p%d", i))
	}
	if got := reportAgain(told, named); got != nil {
		t.Errorf("%d pods are reported again, want none", len(got))
	}
	named = slices.Insert(named, 0, "a/pod/p7", "a/pod/p7", "a/pod/p3")
	got := reportAgain(told, named)
	if len(got) != 2 || got[0].Key != "a/pod/p3" || got[1].Key != "a/pod/p7" {
		t.Errorf("reported again: %v, want p3 and p7", got)
	}
}
