package nodestatus

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/node/node"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// TestAgentConditions: what is wrong with the agent is a condition of the Node; one that is over says so, once it was
// told.
func TestAgentConditions(t *testing.T) {
	memory := health.Condition{
		Code:   health.CgroupsIncomplete,
		Title:  "The kernel lacks cgroup controllers",
		Detail: "no memory cgroup",
		Remedy: "Switch them on.",
	}
	link := health.Condition{Code: health.CloudUnreachable}
	holds := v1.NodeCondition{
		Type: "CgroupControllersMissing", Status: v1.ConditionTrue, Reason: "CgroupControllersMissing",
		Message: "The kernel lacks cgroup controllers: no memory cgroup. Switch them on.",
	}
	over := v1.NodeCondition{Type: "ClockNotSet", Status: v1.ConditionFalse, Reason: "Over", Message: "this is over"}
	for name, c := range map[string]struct {
		now  []health.Condition
		told map[health.Code]v1.ConditionStatus
		want []v1.NodeCondition
	}{
		"healthy": {nil, nil, nil}, "of the link": {[]health.Condition{link}, nil, nil},
		"degraded": {[]health.Condition{link, memory}, nil, []v1.NodeCondition{holds}},
		"over": {
			nil, map[health.Code]v1.ConditionStatus{health.ClockNotSet: v1.ConditionTrue}, []v1.NodeCondition{over},
		},
		"rolled back": {
			[]health.Condition{{Code: health.StoreRolledBack, Title: "Back", Detail: "schema 9", Remedy: "None."}}, nil,
			[]v1.NodeCondition{{
				Type:    "StoreRolledBack",
				Status:  v1.ConditionTrue,
				Reason:  "StoreRolledBack",
				Message: "Back: schema 9. None.",
			}},
		},
		"long over": {
			[]health.Condition{memory}, map[health.Code]v1.ConditionStatus{health.ClockNotSet: v1.ConditionFalse},
			[]v1.NodeCondition{holds, over},
		},
	} {
		if diff := cmp.Diff(c.want, agentConditions(c.now, nil, c.told)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Kubelets leave out what a distribution adds to the version of its runtime.
func TestPlainVersion(t *testing.T) {
	for text, want := range map[string]string{
		"1.6.20~ds1":    "1.6.20",
		"v2.1.0":        "2.1.0",
		"2.1.0-rc.1":    "2.1.0-rc.1",
		"1.7.24+dfsg-1": "1.7.24+dfsg-1",
		"unknown":       "unknown",
		"":              "",
	} {
		if got := plainVersion(text); got != want {
			t.Errorf("plainVersion(%q) = %q, want %q", text, got, want)
		}
	}
}

// TestBriefConditions: what was over before the first status was made is in it, with an event, and stays False.
func TestBriefConditions(t *testing.T) {
	conditions := &health.Registry{}
	recorder := events.New("edge-1", nil)
	m := New(Options{
		NodeName:  "edge-1",
		Addresses: node.NewAddresses("192.0.2.1", ""),
		Pressures: func() []v1.NodeCondition { return nil },
		Health:    conditions,
		Recorder:  recorder,
	})
	conditions.Set(health.StoreRolledBack, "", "schema 9")
	conditions.Clear(health.StoreRolledBack, "")
	for range 2 {
		list := m.Conditions()
		if len(list) != 1 || list[0].Type != "StoreRolledBack" || list[0].Status != v1.ConditionFalse {
			t.Fatalf("conditions = %+v, want StoreRolledBack False", list)
		}
	}
	recorded := recorder.List()
	if len(recorded) != 1 || recorded[0].Reason != "StoreRolledBack" ||
		!strings.Contains(recorded[0].Message, "schema 9") {
		t.Errorf("events = %+v, want one of StoreRolledBack with schema 9", recorded)
	}
	conditions.Set(health.StaticPodBad, "web.yaml", "no name")
	conditions.Clear(health.StaticPodBad, "web.yaml")
	if list := m.Conditions(); len(list) != 1 {
		t.Errorf("conditions after a brief one between two statuses = %+v, want StoreRolledBack alone", list)
	}
}

// TestConditionEvents: one event each time that a condition begins, also if it was reported before this start.
func TestConditionEvents(t *testing.T) {
	m := New(Options{
		NodeName:  "edge-1",
		System:    v1.NodeSystemInfo{BootID: "now"},
		Addresses: node.NewAddresses("192.0.2.1", ""),
		Pressures: func() []v1.NodeCondition { return nil },
		Health:    &health.Registry{},
		Recorder:  events.New("edge-1", nil),
	})
	m.Found(&v1.Node{Status: v1.NodeStatus{
		NodeInfo: v1.NodeSystemInfo{BootID: "before"},
		Conditions: []v1.NodeCondition{
			{Type: "ClockNotSet", Status: v1.ConditionTrue}, {Type: v1.NodeReady, Status: v1.ConditionTrue},
		},
	}})
	if list := m.Conditions(); len(list) != 1 || list[0].Type != "ClockNotSet" || list[0].Status != v1.ConditionFalse {
		t.Errorf("a condition that was reported before and is over: %+v, want ClockNotSet False", list)
	}
	for range 2 {
		m.opts.Health.Set(health.ClockNotSet, "", "it says 1970")
		m.Conditions()
		m.Conditions()
		m.opts.Health.Clear(health.ClockNotSet, "")
		m.Conditions()
	}
	var got []string
	for _, ev := range m.opts.Recorder.List() {
		got = append(got, ev.Type+" "+ev.Reason+" "+ev.InvolvedObject.Kind)
		if ev.Reason == "ClockNotSet" && ev.Count != 2 {
			t.Errorf("count of the event = %d, want 2", ev.Count)
		}
	}
	if diff := cmp.Diff([]string{"Warning Rebooted Node", "Warning ClockNotSet Node"}, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestAddressMissing: an address of the configuration that no interface has is a condition of the Node, unless it comes
// soon.
func TestAddressMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Options{
			Addresses: node.NewAddresses("192.0.2.254", ""),
			Pressures: func() []v1.NodeCondition { return nil },
			Health:    &health.Registry{},
			Recorder:  events.New("edge-1", nil),
		})
		m.checkAddresses()
		if list := m.Conditions(); len(list) > 0 {
			t.Errorf("conditions at once %+v, want none", list)
		}
		time.Sleep(time.Minute)
		m.checkAddresses()
		list := m.Conditions()
		if len(list) != 1 || list[0].Type != "NodeAddressMissing" || list[0].Status != v1.ConditionTrue ||
			!strings.Contains(list[0].Message, "192.0.2.254") {
			t.Errorf("conditions %+v, want NodeAddressMissing of 192.0.2.254", list)
		}
		m.opts.Addresses = node.NewAddresses("127.0.0.1", "")
		m.checkAddresses()
		if list := m.opts.Health.Snapshot(); len(list) > 0 {
			t.Errorf("conditions %+v, want none: the device has its loopback", list)
		}
	})
}

// TestReasons: changes have the kubelet's reasons; the first conditions are none.
func TestReasons(t *testing.T) {
	is := func(kind v1.NodeConditionType, status v1.ConditionStatus) v1.NodeCondition {
		return v1.NodeCondition{Type: kind, Status: status}
	}
	well := []v1.NodeCondition{
		is(v1.NodeMemoryPressure, "False"), is(v1.NodeDiskPressure, "False"), is(v1.NodePIDPressure, "False"),
		is(v1.NodeReady, "True"), is("Other", "False"),
	}
	ill := []v1.NodeCondition{
		is(v1.NodeMemoryPressure, "True"), is(v1.NodeDiskPressure, "True"), is(v1.NodePIDPressure, "True"),
		is(v1.NodeReady, "False"), is("Other", "True"),
	}
	for name, c := range map[string]struct {
		before, now []v1.NodeCondition
		want        []string
	}{
		"first": {nil, ill, nil}, "same": {well, well, nil},
		"ill": {
			well, ill, []string{
				"NodeHasInsufficientMemory", "NodeHasDiskPressure", "NodeHasInsufficientPID", "NodeNotReady",
			},
		},
		"well": {
			ill, well, []string{
				"NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady",
			},
		},
	} {
		if diff := cmp.Diff(c.want, reasons(c.before, c.now)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestRuntimeHandlers(t *testing.T) {
	if handlers, features := runtimeHandlers(runtime.Features{}); handlers != nil || features != nil {
		t.Errorf("runtimeHandlers(no features) = %v, %v, want nil, nil", handlers, features)
	}
	handlers, features := runtimeHandlers(runtime.Features{Name: "containerd", SupplementalGroupsPolicy: true,
		Handlers: map[string]runtime.Handler{"runc": {UserNamespaces: true}, "": {RecursiveReadOnlyMounts: true}}})
	of := func(name string, readOnly, users bool) v1.NodeRuntimeHandler {
		return v1.NodeRuntimeHandler{
			Name: name, Features: &v1.NodeRuntimeHandlerFeatures{
				RecursiveReadOnlyMounts: &readOnly, UserNamespaces: &users,
			},
		}
	}
	if diff := cmp.Diff([]v1.NodeRuntimeHandler{of("", true, false), of("runc", false, true)}, handlers); diff != "" {
		t.Errorf("handlers mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&v1.NodeFeatures{SupplementalGroupsPolicy: ptr.To(true)}, features); diff != "" {
		t.Errorf("features mismatch (-want +got):\n%s", diff)
	}
}
