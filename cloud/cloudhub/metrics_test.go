package cloudhub

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func gather(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimPrefix(f.GetName(), "cloudcore_cloudhub_")
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			switch f.GetType().String() {
			case "COUNTER":
				all[name] = m.Counter.GetValue()
			case "GAUGE":
				all[name] = m.Gauge.GetValue()
			case "HISTOGRAM":
				all[name] = float64(m.Histogram.GetSampleCount())
			}
		}
	}
	return all
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		c := startInMemory(t, func(o *Options) { o.Registry = registry })
		c.cluster.set("n1", "default/pod/web", "u", "a")
		e := newEdge(t, "n1").dialOurs(c)
		settled(t, c, e)
		e.setMute(true)
		c.cluster.set("n1", "default/pod/web", "u", "b")
		c.cluster.set("n1", "default/pod/web", "u", "c")
		wait.True(t, "the push", func() bool { return len(e.lines()) == 2 })
		if err := e.send(model.New("metaserver", "dynamiccontroller", "get", "null", nil)); err != nil {
			t.Fatal(err)
		}
		wait.True(t, "the message to be dropped", func() bool {
			return gather(t, registry)["dropped_messages_total"] == 1
		})
		wait.True(t, "the newest state to be looked at", func() bool {
			return gather(t, registry)["queued_objects"] == 0
		})
		got := gather(t, registry)
		for name, want := range map[string]float64{
			"connected_nodes": 1, "KubeEdge_CloudHub_connected_nodes": 1, "unacked_messages": 1, "queued_objects": 0,
			"pending_requests": 0,
			"ack_seconds":      1, "sessions_total edgecore/websocket": 1, "messages_total in": 3,
			"messages_total out": 3,
			"resends_total":      0,
		} {
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
			}
		}
		if got["bytes_total in"] < 500 || got["bytes_total out"] < 500 {
			t.Errorf("%v bytes in, %v out, want 500 or more each", got["bytes_total in"], got["bytes_total out"])
		}
		e.bye()
		wait.True(t, "the session to end", func() bool { return gather(t, registry)["connected_nodes"] == 0 })
		if after := gather(t, registry); after["bytes_total in"] < got["bytes_total in"] ||
			after["messages_total out"] != 3 {
			t.Errorf("after the session: %v bytes in, %v messages out; want at least %v and 3", after["bytes_total in"],
				after["messages_total out"], got["bytes_total in"])
		}
		if _, err := New(Options{Downstream: c.cluster, Upstream: c.api, Registry: registry}); err == nil {
			t.Error("New with the registry of another hub = nil, want an error")
		}
	})
}

// TestCountersOfReplaced: what a session counted stays counted while it ends and a newer one has its place.
func TestCountersOfReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		c := startInMemory(t, func(o *Options) { o.Registry = registry })
		asked, done := make(chan struct{}), make(chan struct{})
		c.api.handle = func(context.Context, string, *model.Message) *model.Message {
			close(asked)
			<-done
			return nil
		}
		e := newEdge(t, "n1").dialOurs(c)
		if err := e.send(model.New(model.ModuleEdged, model.GroupMeta, model.OpQuery, "default/pod/x",
			nil)); err != nil {
			t.Fatal(err)
		}
		<-asked
		first, before := c.hub.session("n1"), gather(t, registry)
		newEdge(t, "n1").dialOurs(c)
		wait.True(t, "the newer session", func() bool { return c.hub.session("n1") != first })
		if after := gather(t, registry); after["bytes_total in"] < before["bytes_total in"] ||
			after["messages_total in"] < before["messages_total in"] {
			t.Errorf("with a newer session: %v bytes and %v messages in, want at least %v and %v",
				after["bytes_total in"],
				after["messages_total in"], before["bytes_total in"], before["messages_total in"])
		}
		close(done)
	})
}

func TestHealth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, nil)
		wait.True(t, "the server", func() bool { return c.hub.Health() == nil })
		c.stop()
		if err := c.hub.Health(); err == nil {
			t.Error("Health of a stopped server = nil, want an error")
		}
		idle, err := New(Options{Downstream: c.cluster, Upstream: c.api})
		if err != nil {
			t.Fatal(err)
		}
		if err := idle.Health(); err == nil || !strings.Contains(err.Error(), "no listener is enabled") {
			t.Errorf("the health of an idle hub is %v, want it to say that no listener is enabled", err)
		}
		if _, err := New(Options{}); err == nil {
			t.Error("New without options = nil, want an error")
		}
	})
}
