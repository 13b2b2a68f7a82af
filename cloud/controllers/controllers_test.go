package controllers

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// recorder notes its calls.
type recorder struct {
	name  string
	calls *[]string
}

func (r recorder) note(what ...string) {
	*r.calls = append(*r.calls, r.name+" "+strings.Join(what, " "))
}

func (r recorder) Desired(node string) []cloudhub.Ref {
	return []cloudhub.Ref{{Key: resource.Key{Namespace: r.name, Type: "x", Name: node}}}
}

func (r recorder) Object(_ string, key resource.Key) (*cloudhub.Object, error) {
	r.note("object", key.String())
	return nil, nil
}
func (r recorder) Connected(_ context.Context, node, protocol string) {
	r.note("connected", node, protocol)
}
func (r recorder) Disconnected(node, _ string) { r.note("disconnected", node) }
func (r recorder) Inventoried(context.Context, string, []wire.Held) []string {
	r.note("inventoried")
	return nil
}

func (r recorder) Heartbeat(context.Context, string) error {
	r.note("heartbeat")
	return nil
}

func (r recorder) Handle(_ context.Context, _ string, m *model.Message) *model.Message {
	r.note("handle", m.Route.Source)
	return nil
}

// TestJoin: each call reaches the controller that is responsible for it.
func TestJoin(t *testing.T) {
	var calls []string
	j := Join(recorder{"edge", &calls}, recorder{"devices", &calls})
	if refs := j.Desired("n"); len(refs) != 2 {
		t.Errorf("Desired has %d objects, want those of both", len(refs))
	}
	use(t, j, nil)
	want := []string{
		"edge object a/pod/b", "devices object a/device/b", "devices object a/devicemodel/b",
		"edge connected n p", "devices connected n p", "edge inventoried", "edge heartbeat", "edge handle edged",
		"devices handle twin", "edge disconnected n", "devices disconnected n",
	}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}

	calls = nil
	use(t, Join(recorder{"edge", &calls}, nil), func(err error) bool {
		return errors.Is(err, cloudhub.ErrNotServed) && strings.Contains(err.Error(), "switched off")
	})
	want = []string{
		"edge object a/pod/b", "edge connected n p", "edge inventoried", "edge heartbeat", "edge handle edged",
		"edge disconnected n",
	}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("calls without devicecontroller (-want +got):\n%s", diff)
	}
}

func use(t *testing.T, j Controller, refused func(error) bool) {
	for _, typ := range []string{"pod", "device", "devicemodel"} {
		_, err := j.Object("n", resource.Key{Namespace: "a", Type: typ, Name: "b"})
		if want := refused != nil && typ != "pod"; want != (err != nil) || want && !refused(err) {
			t.Errorf("Object of a %s = %v", typ, err)
		}
	}
	j.Connected(t.Context(), "n", "p")
	j.Inventoried(t.Context(), "n", nil)
	if err := j.Heartbeat(t.Context(), "n"); err != nil {
		t.Error(err)
	}
	for _, source := range []string{"edged", "twin"} {
		j.Handle(t.Context(), "n", &model.Message{Route: model.Route{Source: source}})
	}
	j.Disconnected("n", "over")
}
