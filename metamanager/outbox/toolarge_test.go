package outbox

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestReportTooLarge: a report that the cloud refuses as too large is reported, with the object and the cloud's words,
// until another report on the object is accepted or the object is gone; other refusals and events are not told.
func TestReportTooLarge(t *testing.T) {
	var mu sync.Mutex
	var told []string
	e, h := newLinked(t, Options{Refused: func(object string, err error) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, fmt.Sprint(object, ": ", err))
	}})
	refusal := func(code int) func(*model.Message) string {
		return always(
			fmt.Sprintf(
				`{"Err":{"ErrStatus":{"status":"Failure","code":%d,"reason":"R","message":"has 9 bytes, limit 8"}}}`,
				code))
	}
	report := func(answer func(*model.Message) string, operation, resource, content string) {
		t.Helper()
		h.answer(answer)
		e.ok(e.edged(operation, resource, content))
		wait.True(t, "the report is done with", func() bool { return len(e.waiting()) == 0 })
	}
	refused := func(resource, content string) { // of a pod that is stored: it stays
		t.Helper()
		h.answer(refusal(413))
		mu.Lock()
		before := len(told)
		mu.Unlock()
		e.ok(e.edged("patch", resource, content))
		wait.True(t, "the refusal is told", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(told) > before
		})
	}
	e.link(up)
	e.ok(e.cloud("insert", "default/pod/one", object("default", "one", "u1", "1")))
	e.ok(e.cloud("insert", "default/pod/gone", object("default", "gone", "u3", "1")))
	refused("default/podpatch/one", quote(t, patch("u1", "Running")))
	report(always(good), "patch", "default/podpatch/one", quote(t, patch("u1", "Failed")))
	report(refusal(413), "insert", "default/event/e1", `{"reason":"Started"}`)
	report(refusal(409), "patch", "default/podpatch/two", quote(t, patch("u2", "Running")))
	report(always(good), "patch", "default/podpatch/two", quote(t, patch("u2", "Failed")))
	refused("default/podpatch/gone", quote(t, patch("u3", "Running")))
	e.ok(e.cloud("delete", "default/pod/gone", object("default", "gone", "u3", "1")))
	report(refusal(413), "patch", "default/podpatch/gone", quote(t, patch("u3", "Failed")))
	mu.Lock()
	defer mu.Unlock()
	want := []string{
		"default/pod/one: has 9 bytes, limit 8", "default/pod/one: <nil>",
		"default/pod/gone: has 9 bytes, limit 8", "default/pod/gone: <nil>",
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}
