package runtime

import (
	"reflect"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

func TestSandboxKnown(t *testing.T) {
	whole := observed.Sandbox{ID: "s", Ready: true, IPs: []string{"10.0.0.2"}, PID: 7}
	change := func(f func(*observed.Sandbox)) *observed.Pod {
		s := whole
		f(&s)
		return &observed.Pod{Sandboxes: []*observed.Sandbox{{ID: "other"}, &s}, Detailed: true}
	}
	for name, tc := range map[string]struct {
		known *observed.Pod
		ready bool
		want  bool
	}{
		"no snapshot":            {nil, true, false},
		"only lists":             {&observed.Pod{Sandboxes: []*observed.Sandbox{&whole}}, true, false},
		"another sandbox":        {change(func(s *observed.Sandbox) { s.ID = "new" }), true, false},
		"ready as before":        {change(func(*observed.Sandbox) {}), true, true},
		"ended since":            {change(func(*observed.Sandbox) {}), false, false},
		"without an address yet": {change(func(s *observed.Sandbox) { s.IPs = nil }), true, false},
		"on the node's network":  {change(func(s *observed.Sandbox) { s.IPs, s.HostNetwork = nil, true }), true, true},
		"of an unknown process":  {change(func(s *observed.Sandbox) { s.PID = 0 }), true, false},
		"ended as before":        {change(func(s *observed.Sandbox) { s.Ready, s.PID = false, 0 }), false, true},
	} {
		s := &observed.Sandbox{ID: "s", Ready: tc.ready}
		if got := sandboxKnown(s, tc.known); got != tc.want {
			t.Errorf("%s: known is %t, want %t", name, got, tc.want)
		} else if got && !reflect.DeepEqual(s, tc.known.Sandboxes[1]) {
			t.Errorf("%s: %+v, want %+v", name, s, tc.known.Sandboxes[1])
		}
	}
}

func TestProcessKnown(t *testing.T) {
	const running, exited = runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED
	for name, tc := range map[string]struct {
		now, before runtimeapi.ContainerState
		want        int
	}{
		"runs on":       {running, running, 7},
		"has exited":    {exited, running, 0},
		"was not there": {running, runtimeapi.ContainerState_CONTAINER_CREATED, 0},
	} {
		c := &observed.Container{ID: "c", State: tc.now}
		processKnown(c, &observed.Pod{
			Containers: []*observed.Container{{ID: "other"}, {ID: "c", State: tc.before, PID: 7}}, Detailed: true,
		})
		if c.PID != tc.want {
			t.Errorf("%s: pid %d, want %d", name, c.PID, tc.want)
		}
	}
}
