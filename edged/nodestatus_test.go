package edged

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/events"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// TestOwnConditions: what is wrong with the agent is a condition of the Node; one that is over says so, once it was told.
func TestOwnConditions(t *testing.T) {
	memory := health.Condition{Code: health.CgroupsIncomplete, Title: "The kernel lacks cgroup controllers", Detail: "no memory cgroup", Remedy: "Switch them on."}
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
		"degraded":  {[]health.Condition{link, memory}, nil, []v1.NodeCondition{holds}},
		"over":      {nil, map[health.Code]v1.ConditionStatus{health.ClockNotSet: v1.ConditionTrue}, []v1.NodeCondition{over}},
		"long over": {[]health.Condition{memory}, map[health.Code]v1.ConditionStatus{health.ClockNotSet: v1.ConditionFalse}, []v1.NodeCondition{holds, over}},
	} {
		if diff := cmp.Diff(c.want, ownConditions(c.now, c.told)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestConditionsAreTold: one event for each time that a condition begins, also one that an earlier agent told of.
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

func TestConditionsAreTold(t *testing.T) {
	e := &Edged{health: &health.Registry{}, recorder: events.New("edge-1", nil)}
	e.system.BootID = "now"
	e.nodeFound(&v1.Node{Status: v1.NodeStatus{
		NodeInfo:   v1.NodeSystemInfo{BootID: "before"},
		Conditions: []v1.NodeCondition{{Type: "ClockNotSet", Status: v1.ConditionTrue}, {Type: v1.NodeReady, Status: v1.ConditionTrue}},
	}})
	if list := e.agentConditions(); len(list) != 1 || list[0].Type != "ClockNotSet" || list[0].Status != v1.ConditionFalse {
		t.Errorf("what was told before and is over: %+v, want ClockNotSet False", list)
	}
	for range 2 {
		e.health.Set(health.ClockNotSet, "", "it says 1970")
		e.agentConditions()
		e.agentConditions()
		e.health.Clear(health.ClockNotSet, "")
		e.agentConditions()
	}
	var got []string
	for _, ev := range e.recorder.List() {
		got = append(got, ev.Type+" "+ev.Reason+" "+ev.InvolvedObject.Kind)
		if ev.Reason == "ClockNotSet" && ev.Count != 2 {
			t.Errorf("told %d times, want 2", ev.Count)
		}
	}
	if diff := cmp.Diff([]string{"Warning Rebooted Node", "Warning ClockNotSet Node"}, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestNodeReasons: changes have the kubelet's reasons; the first conditions are none.
func TestNodeReasons(t *testing.T) {
	is := func(kind v1.NodeConditionType, status v1.ConditionStatus) v1.NodeCondition {
		return v1.NodeCondition{Type: kind, Status: status}
	}
	well := []v1.NodeCondition{is(v1.NodeMemoryPressure, "False"), is(v1.NodeDiskPressure, "False"), is(v1.NodePIDPressure, "False"), is(v1.NodeReady, "True"), is("Other", "False")}
	ill := []v1.NodeCondition{is(v1.NodeMemoryPressure, "True"), is(v1.NodeDiskPressure, "True"), is(v1.NodePIDPressure, "True"), is(v1.NodeReady, "False"), is("Other", "True")}
	for name, c := range map[string]struct {
		before, now []v1.NodeCondition
		want        []string
	}{
		"first": {nil, ill, nil}, "same": {well, well, nil},
		"ill":  {well, ill, []string{"NodeHasInsufficientMemory", "NodeHasDiskPressure", "NodeHasInsufficientPID", "NodeNotReady"}},
		"well": {ill, well, []string{"NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"}},
	} {
		if diff := cmp.Diff(c.want, nodeReasons(c.before, c.now)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestWhoNeedsANetwork: pods that would get an address, and only while they have no sandbox.
func TestWhoNeedsANetwork(t *testing.T) {
	e := &Edged{}
	pod, host := &v1.Pod{}, &v1.Pod{Spec: v1.PodSpec{HostNetwork: true}}
	box := func(ready bool) *observed.Pod { return &observed.Pod{Sandboxes: []*observed.Sandbox{{Ready: ready}}} }
	if err := e.lacksNetwork(pod, &observed.Pod{}); err != nil {
		t.Errorf("lacksNetwork with a network: %v, want nil", err)
	}
	e.nodeFacts.network = "reason:NetworkPluginNotReady message:cni plugin not initialized"
	for name, c := range map[string]struct {
		pod  *v1.Pod
		obs  *observed.Pod
		want bool
	}{
		"new": {pod, &observed.Pod{}, true}, "unknown": {pod, nil, true}, "its sandbox died": {pod, box(false), true}, "it runs": {pod, box(true), false},
		"on the node's network": {host, &observed.Pod{}, false},
	} {
		err := e.lacksNetwork(c.pod, c.obs)
		if (err != nil) != c.want {
			t.Errorf("%s: lacksNetwork = %v, want an error: %v", name, err, c.want)
		}
		const text = "network is not ready: container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized"
		if err != nil && err.Error() != text {
			t.Errorf("%s: lacksNetwork = %q, want %q", name, err, text)
		}
	}
}

// TestAddresses: one of each family where the configuration says so.
func TestAddresses(t *testing.T) {
	for in, want := range map[string][]string{"192.0.2.1": {"192.0.2.1"}, "192.0.2.1, fd00::1": {"192.0.2.1", "fd00::1"}} {
		if diff := cmp.Diff(want, (&Edged{opts: Options{NodeIP: in}}).hostIPs()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if got := (&Edged{opts: Options{Interface: "none-such"}}).hostIPs(); got != nil {
		t.Errorf("addresses %v of an interface that is not there, want none", got)
	}
}

// TestAddressKept: a node keeps its address while its default route is gone.
func TestAddressKept(t *testing.T) {
	before := &v1.NodeStatus{Addresses: []v1.NodeAddress{
		{Type: v1.NodeHostName, Address: "edge-1"}, {Type: v1.NodeInternalIP, Address: "192.0.2.7"},
	}}
	for name, c := range map[string]struct {
		before          *v1.NodeStatus
		found           []string
		hardware, other string
		want            []string
	}{
		"a default route":                {nil, []string{"192.0.2.1"}, "", "10.0.0.1", []string{"192.0.2.1"}},
		"another default route":          {nil, []string{"192.0.2.1", "192.0.2.2"}, "", "", []string{"192.0.2.2"}},
		"it is lost":                     {nil, []string{"192.0.2.1", ""}, "192.0.2.3", "10.0.0.1", []string{"192.0.2.1"}},
		"a network that has none":        {before, []string{""}, "192.0.2.3", "10.0.0.1", []string{"192.0.2.3"}},
		"lost since before":              {before, []string{""}, "", "10.0.0.1", []string{"192.0.2.7"}},
		"in a container without a route": {nil, []string{""}, "", "10.0.0.1", []string{"10.0.0.1"}},
		"no network yet":                 {nil, []string{""}, "", "", nil},
		"only IPv6's route is left":      {nil, []string{"192.0.2.1", "2001:db8::7"}, "", "", []string{"192.0.2.1"}},
		"and IPv4's comes back":          {nil, []string{"192.0.2.1", "2001:db8::7", "192.0.2.2"}, "", "", []string{"192.0.2.2"}},
		"so since before":                {before, []string{"2001:db8::7"}, "", "", []string{"192.0.2.7"}},
		"so since before, hardware":      {before, []string{"2001:db8::7"}, "192.0.2.3", "", []string{"192.0.2.3"}},
		"only IPv6's hardware is left":   {before, []string{""}, "2001:db8::7", "", []string{"192.0.2.7"}},
		"a node of IPv6":                 {nil, []string{"2001:db8::7", "2001:db8::8"}, "", "", []string{"2001:db8::8"}},
		"IPv4 is new":                    {nil, []string{"2001:db8::7", "192.0.2.1"}, "", "", []string{"192.0.2.1"}},
	} {
		var a addresses
		if c.before != nil {
			a.remember(c.before)
		}
		var got []string
		for _, ip := range c.found {
			got = a.choose(ip, func() (string, string) { return c.hardware, c.other })
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestUnready: the message of Ready names every cause, in the kubelet's form.
func TestUnready(t *testing.T) {
	const notAsked = "container runtime status check may not have completed yet"
	for name, c := range map[string]struct {
		pleg             error
		asked            bool
		runtime, network string
		shut             bool
		want             string
	}{
		"ready":         {nil, true, "", "", false, ""},
		"not asked yet": {nil, false, "", "", false, notAsked},
		"no network":    {nil, true, "", "x", false, "container runtime network not ready: NetworkReady=false x"},
		"neither": {nil, true, "y", "x", false,
			"[container runtime not ready: RuntimeReady=false y, container runtime network not ready: NetworkReady=false x]"},
		"no runtime":                      {errors.New("no answer"), true, "", "x", false, "[container runtime is down, PLEG is not healthy: no answer]"},
		"shutting down":                   {nil, true, "", "", true, "node is shutting down"},
		"shutting down without a runtime": {nil, false, "", "", true, "[" + notAsked + ", node is shutting down]"},
	} {
		got := ""
		if err := unreadyFor(c.pleg, c.asked, c.runtime, c.network, c.shut); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
