package cloudhub

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestCertificateEnds: a session ends when the certificate does that it began with, and the node comes back
// with its next one.
func TestCertificateEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		c.cluster.set("n1", "default/pod/web", "u", "a")
		dial := func(end time.Time) *edge {
			conn, err := wire.DialWebSocket(t.Context(), c.options("n1", c.ca.Node(t, "n1", end)))
			if err != nil {
				t.Fatal(err)
			}
			return newEdge(t, "n1").over(conn)
		}
		end := time.Now().Add(time.Minute).Truncate(time.Second)
		e := dial(end)
		settled(t, c, e)
		var closed *wire.Closed
		want := "the certificate of this connection expired at " + end.UTC().Format(time.RFC3339) +
			": connect with a newer one, or join again"
		if err := e.waitEnd(); !errors.As(err, &closed) || closed.Code != wire.ClosePolicy || closed.Reason != want {
			t.Errorf("ended with %v, want code %d and %q", err, wire.ClosePolicy, want)
		}
		if got := time.Now(); got.Before(end) || got.After(end.Add(time.Second)) {
			t.Errorf("ended at %v, want %v", got, end)
		}
		settled(t, c, dial(end.Add(time.Hour)))
	})
}

// TestRequestTwice: a request of an edge of ours that a network repeats is carried out once; KubeEdge's edges ask again
// under the same id when they had no answer.
func TestRequestTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		c.api.handle = func(_ context.Context, node string, m *model.Message) *model.Message {
			c.api.note("%s %s", node, m.Content)
			return nil
		}
		for node, edge := range map[string]*edge{
			"ours": newEdge(t, "ours").dialOurs(c), "theirs": newEdge(t, "theirs").dialUpstream(c),
		} {
			first := model.New(model.ModuleEdged, model.GroupMeta, model.OpPatch, "default/podpatch/web",
				json.RawMessage("1"))
			second := model.New(model.ModuleEdged, model.GroupMeta, model.OpPatch, "default/podpatch/web",
				json.RawMessage("2"))
			last := model.New(model.ModuleEdged, model.GroupMeta, model.OpPatch, "default/podpatch/web",
				json.RawMessage("3"))
			for _, m := range []*model.Message{first, second, first, last} {
				if err := edge.send(m); err != nil {
					t.Fatal(err)
				}
			}
			wait.True(t, "the last request of "+node, func() bool { return slices.Contains(c.api.noted(), node+" 3") })
			again := 0
			for _, line := range c.api.noted() {
				if line == node+" 1" {
					again++
				}
			}
			if want := map[string]int{"ours": 1, "theirs": 2}[node]; again != want {
				t.Errorf("%s: carried out %d times, want %d", node, again, want)
			}
		}
	})
}
