package devicecontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgotesting "k8s.io/client-go/testing"

	"github.com/edgecore-io/edgecore/beehive/model"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
)

// heap returns the live heap in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what the first one freed from pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestHostileNode: whatever a node sends about its devices, and however slow the API server is, little of it stays in
// memory.
func TestHostileNode(t *testing.T) {
	const count = 100
	var list []any
	for i := range count {
		list = append(list, device(func(d *devices.Device) {
			d.Name, d.UID = fmt.Sprint("sensor-", i), types.UID(fmt.Sprint("u", i))
		}))
	}
	e := start(t, Options{}, list...)
	block := make(chan struct{})
	defer close(block)
	e.objects.PrependReactor("create", "devicestatuses", func(clientgotesting.Action) (bool, apiruntime.Object, error) {
		<-block
		return false, nil, nil
	})
	e.Connected(t.Context(), "n1", "edgecore/websocket")
	for _, tc := range []struct {
		name                     string
		reports, content, header int
	}{
		{"long headers", 1, 0, 1900 << 10},
		{"large contents", 1, 1900 << 10, 0},
		{"many reports", maxAsks + 8, 10 << 10, 0},
	} {
		before := heap()
		for n := range tc.reports {
			for i := range count {
				m := model.New(devicemsg.Source, model.GroupResource, model.OpUpdate,
					fmt.Sprintf("device/shop/sensor-%d/twin/edge_updated", i), json.RawMessage(fmt.Sprintf(
						`{"twin":{"temp":{"actual":{"value":"%d"}}},"junk":"%s"}`, n, strings.Repeat("A", tc.content))))
				m.Header.ID += strings.Repeat("A", tc.header)
				if r := e.Handle(t.Context(), "n1", m); r != nil {
					e.hub.Send("n1", &model.Message{Route: r.Route}) // the hub of the test keeps contents
				}
			}
		}
		if grown := heap() - before; grown > 16<<20 {
			t.Errorf("%s: the heap has grown by %d MiB, want 16 at most", tc.name, grown>>20)
		}
	}
}

// TestReportsCount: reports count in the rate limit of their node, large ones as several requests, before anything of
// them is decoded.
func TestReportsCount(t *testing.T) {
	counted := map[string]int{}
	refuse := false
	e := start(t, Options{Wait: func(ctx context.Context, node string, n int) error {
		if _, limited := ctx.Deadline(); !limited {
			t.Error("the wait for the rate limit has no limit, want one")
		}
		counted[node] += n
		if refuse {
			return errors.New("too many requests")
		}
		return nil
	}}, device())
	e.Connected(t.Context(), "n1", "edgecore/websocket")
	e.report("n1", twinResource, twinContent("21", 1))
	e.hub.has(t, "n1 response twin")
	e.report("n1", twinResource, `{"junk":"`+strings.Repeat("A", 1<<20)+`"}`)
	e.hub.has(t, "n1 error twin", "limit 90112 for a device with 2 properties")
	e.report("n1", devicemsg.ResourceDetail, `{}`)
	if counted["n1"] != 1+17+1 {
		t.Errorf("%d requests counted, want 1 for the small report, 17 for 1 MiB and 1 for the membership",
			counted["n1"])
	}
	refuse = true
	if n := count(t, e.metrics.refused); n != 1 {
		t.Errorf("%v reports refused, want 1", n)
	}
	e.report("n1", twinResource, `nonsense`)
	if n := count(t, e.metrics.refused); n != 2 {
		t.Errorf("%v reports refused, want the one that exceeds the rate, too", n)
	}
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	if n := len(e.hub.sent); n != 4 { // two answers, the confirmation and the membership
		t.Errorf("sent: %q; want no answer to the report that exceeds the rate", e.hub.sent)
	}
}
