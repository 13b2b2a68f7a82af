package metamanager

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestRefused: Options.Refused is told of a pod whose status is too large for the cloud, and that this is over once the
// pod is gone.
func TestRefused(t *testing.T) {
	var mu sync.Mutex
	var told []string
	e, h := newLinked(t, Options{Refused: func(object string, err error) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, fmt.Sprint(object, ": ", err))
	}})
	h.answer(always(failure(413, "RequestEntityTooLarge")))
	e.ok(e.cloud("insert", "default/pod/one", object("default", "one", "u1", "1")))
	e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
	e.link(up)
	wait.True(t, "the refusal is told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(told) > 0
	})
	e.ok(e.cloud("delete", "default/pod/one", object("default", "one", "u1", "1")))
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff([]string{"default/pod/one: no", "default/pod/one: <nil>"}, told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}
