package outbox

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

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
		t.Errorf("sent without a link = %v, want nothing", got)
	}
	e.link(up)
	wait.True(t, "the outbox is empty", func() bool { return len(e.waiting()) == 0 })
	want := []string{
		"delete default/pod/two", "insert default/event/e1", "patch default/podpatch/one", "patch default/podpatch/two",
	}
	if diff := cmp.Diff(want, h.sent()); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
	wait.True(t, "a new report leaves at once", func() bool { return len(e.waiting()) == 0 })
	h.answer(e.noLink) // that the link has gone may be noticed by edgehub alone
	e.link(down)
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Failed"))))
	h.sent()
	h.answer(always(good))
	e.link(up)
	wait.True(t, "what came meanwhile leaves over the new link", func() bool { return len(e.waiting()) == 0 })
	if diff := cmp.Diff([]string{"patch default/podpatch/one"}, slices.Compact(h.sent())); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
}

// TestOutboxOrder: the last status of a pod is with the cloud before its end is.
func TestOutboxOrder(t *testing.T) {
	e, h := newLinked(t, Options{})
	for i := range 20 {
		e.ok(e.edged("patch", fmt.Sprintf("default/podpatch/p%d", i), quote(t, patch("u", "Failed"))))
		e.ok(e.edged("delete", fmt.Sprintf("default/pod/p%d", i), end("u")))
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
			t.Errorf("%s of %s was sent before its status, want the status first", m.Route.Operation, key.Name)
		}
		return `"OK"`
	})
	e.link(up)
	wait.True(t, "the outbox is empty", func() bool { return len(e.waiting()) == 0 })
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
		bubble(t, c.name, func(t *testing.T) {
			e, h := newLinked(t, Options{})
			h.answer(always(c.answer))
			e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
			e.link(up)
			if !c.again {
				wait.True(t, "it is dropped", func() bool { return len(e.waiting()) == 0 })
				return
			}
			wait.True(t, "it is tried", func() bool { return len(h.sent()) > 0 })
			if waiting := e.waiting(); len(waiting) != 1 {
				t.Fatalf("waiting reports = %v, want one", waiting)
			}
			h.answer(always(good))
			wait.True(t, "it is tried again", func() bool { return len(e.waiting()) == 0 })
		})
	}
}

// TestRefusedForNow: whatever the cloud says against a report on a pod that is stored here, the report stays and is
// sent again. Final is only that the pod is gone, or another.
func TestRefusedForNow(t *testing.T) {
	for _, code := range []int{400, 403, 405, 413, 422} {
		bubble(t, fmt.Sprint(code), func(t *testing.T) { testRefusedForNow(t, code) })
	}
	for _, code := range []int{404, 409, 410} {
		bubble(t, fmt.Sprint(code), func(t *testing.T) {
			e, h := newLinked(t, Options{Refused: func(string, error) {}})
			e.ok(e.cloud("insert", "default/pod/one", object("default", "one", "u1", "1")))
			h.answer(always(failure(code, "R")))
			e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
			e.ok(e.edged("delete", "default/pod/one", end("u1")))
			e.link(up)
			wait.True(t, "the reports are dropped", func() bool { return len(e.waiting()) == 0 })
		})
	}
}

func testRefusedForNow(t *testing.T, code int) {
	e, h := newLinked(t, Options{Refused: func(string, error) {}})
	e.ok(e.cloud("insert", "default/pod/one", object("default", "one", "u1", "1")))
	h.answer(always(failure(code, "R")))
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
	e.ok(e.edged("delete", "default/pod/one", end("u1")))
	e.ok(e.edged("patch", "default/podpatch/gone", quote(t, patch("u2", "Running"))))
	e.ok(e.edged("delete", "default/pod/gone", end("u2")))
	e.link(up)
	stored := []string{"delete default/pod/one", "patch default/podpatch/one"}
	wait.True(t, "those on the pod that is not stored are dropped", func() bool {
		return slices.Equal(slices.Sorted(slices.Values(e.waiting())), stored)
	})
	time.Sleep(time.Hour)
	if got := e.waiting(); len(got) != 2 {
		t.Fatalf("reports that wait after an hour of refusals = %q, want %q", got, stored)
	}
	// The status is never taken, which does not hold up the pod's end.
	h.sent()
	h.answer(func(m *model.Message) string {
		if m.Route.Operation == "patch" {
			return failure(code, "R")
		}
		return good
	})
	time.Sleep(2 * refusedMax)
	if diff := cmp.Diff([]string{"patch default/podpatch/one"}, e.waiting()); diff != "" {
		t.Fatalf("reports that wait when ends are taken (-want +got):\n%s", diff)
	}
	h.answer(always(good))
	time.Sleep(2 * refusedMax)
	if got := e.waiting(); len(got) != 0 {
		t.Errorf("reports that wait when all are taken = %q, want none", got)
	}
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
	wait.True(t, "both are answered", func() bool { return len(e.waiting()) == 0 })
	if diff := cmp.Diff([]string{patch("u1", "Pending"), patch("u1", "Running")}, contents); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
}
