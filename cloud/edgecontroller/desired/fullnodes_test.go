package desired

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// TestFullNode: a node without room for its pods counts, and gets an event that names the namespace which fills it, at
// most once an hour.
func TestFullNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := limitedFixture(t, 0, 200<<10)
		w.api.Answer(func(r fakes.Call) (int, any) { return http.StatusCreated, json.RawMessage(r.Body) })
		for i := range 4 {
			pod := filledPod("greedy", fmt.Sprint("g", i), 48<<10, int64(i))
			w.put(startedAt(pod, 1))
		}
		events := func(want int) {
			t.Helper()
			if err := w.fullNodes.sync(t.Context(), "e1"); err != nil {
				t.Fatal(err)
			}
			w.api.Mu.Lock()
			defer w.api.Mu.Unlock()
			if got := len(w.api.Calls); got != want {
				t.Errorf("%d events, want %d", got, want)
			}
			for _, c := range w.api.Calls {
				if !strings.HasSuffix(c.Path, "/namespaces/default/events") ||
					!strings.Contains(c.Body, "namespace greedy (4 pods") ||
					!strings.Contains(c.Body, "and 1 that wait") {
					t.Errorf("event %s of %s, want one of the node that names the namespace", c.Body, c.Path)
				}
			}
		}
		w.sessions.Connected("e1", "edgecore/websocket")
		events(0)
		last := filledPod("greedy", "last", 48<<10, 9)
		w.put(last)
		if n := w.room.fullNodes(); n != 1 || w.fullNodes.Keys.Len() != 1 {
			t.Errorf("%d nodes are full, and %d are to get an event; want 1 and 1", n, w.fullNodes.Keys.Len())
		}
		events(1)
		events(1)
		time.Sleep(noticeRepeat + time.Second)
		events(2)
		time.Sleep(noticeRepeat + time.Second)
		w.sessions.Disconnected("e1")
		events(2)
		w.sessions.Connected("e1", "edgecore/websocket")
		if err := w.caches.Pods.Delete(last); err != nil {
			t.Fatal(err)
		}
		events(2)
		if n := w.room.fullNodes(); n != 0 {
			t.Errorf("%d nodes are full, want none", n)
		}
	})
}
