package cloudhub

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// TestArrival: anyone who carries out a request knows when it came from its node, whatever kind it is.
func TestArrival(t *testing.T) {
	if at, ok := Arrival(t.Context()); ok {
		t.Errorf("arrival of no request = %v, want none", at)
	}
	at := time.Now()
	for _, res := range []string{"ns/podpatch/a", "ns/event/e", "not a resource", "null/node/n"} {
		m := model.New(model.ModuleEdged, model.GroupMeta, model.OpPatch, res, json.RawMessage(`{}`))
		ctx, cancel, ok := pendingRequest{m, at, nil}.inTime(t.Context(), wire.Features{})
		defer cancel()
		if got, has := Arrival(ctx); !ok || !has || !got.Equal(at) {
			t.Errorf("%s: arrival = %v, %v, in time: %v; want %v, true, true", res, got, has, ok, at)
		}
	}
}
