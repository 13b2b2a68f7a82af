package metamanager

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// synced is a cloud of ours that has nothing to send, and answers everything else with a text.
func synced(text string) func(*model.Message) string {
	return func(m *model.Message) string {
		if m.Route.Operation == "inventory" {
			return `{"synced":true}`
		}
		return text
	}
}

// TestRestoredCluster: after a restore of etcd the versions of objects begin again further down. A cloud of ours sends
// in order, so that a lower one is taken; with KubeEdge's an older message may come late, and is passed over.
func TestRestoredCluster(t *testing.T) {
	for _, c := range []struct {
		name, link, want string
		forwarded        int
	}{
		{"ours", upWithOurs, object("default", "one", "u1", "90"), 2},
		{"KubeEdge's", up, object("default", "one", "u1", "100"), 1},
		{"no link yet", "", object("default", "one", "u1", "100"), 1},
	} {
		for _, typ := range []string{"pod", "configmap", "secret"} {
			t.Run(c.name+" "+typ, func(t *testing.T) {
				e, h := newLinked(t, Options{})
				if err := errors.Join(e.bus.Add(edged{})); err != nil {
					t.Fatal(err)
				}
				h.answer(synced(good))
				if c.link != "" {
					e.link(c.link)
				}
				res := "default/" + typ + "/one"
				e.ok(e.cloud("insert", res, object("default", "one", "u1", "100")))
				e.ok(e.cloud("update", res, object("default", "one", "u1", "90")))
				if diff := cmp.Diff(map[string]string{res: c.want}, e.rows(typ)); diff != "" {
					t.Errorf("stored (-want +got):\n%s", diff)
				}
				got := 0
				for _, text := range e.forwarded() {
					if text != "connect null/link" {
						got++
					}
				}
				if got != c.forwarded {
					t.Errorf("%d objects handed to edged, want %d", got, c.forwarded)
				}
			})
		}
	}
}

// TestLateAnswer: an answer that nobody waits for is acknowledged. It replaces an older version, and nothing else.
func TestLateAnswer(t *testing.T) {
	const res = "default/configmap/c"
	for _, c := range []struct{ name, stored, late, want string }{
		{
			"newer", object("default", "c", "u1", "5"), object("default", "c", "u1", "6"),
			object("default", "c", "u1", "6"),
		},
		{
			"older", object("default", "c", "u1", "5"), object("default", "c", "u1", "4"),
			object("default", "c", "u1", "5"),
		},
		{
			"another object", object("default", "c", "u2", "5"), object("default", "c", "u1", "4"),
			object("default", "c", "u2", "5"),
		},
		{"deleted since", "", object("default", "c", "u1", "4"), ""},
	} {
		for _, link := range []string{up, upWithOurs} {
			t.Run(c.name+" "+link, func(t *testing.T) {
				e, h := newLinked(t, Options{})
				h.answer(synced(good))
				e.link(link)
				want := map[string]string{}
				if c.stored != "" {
					e.ok(e.cloud("insert", res, c.stored))
					want[res] = c.want
				}
				e.ok(e.send(model.New("edgecontroller", model.GroupResource, model.OpResponse, res,
					json.RawMessage(c.late))))
				if diff := cmp.Diff(want, e.rows("configmap")); diff != "" {
					t.Errorf("stored (-want +got):\n%s", diff)
				}
			})
		}
	}
}
