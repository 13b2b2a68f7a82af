package edged

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/events"
	"github.com/edgecore-io/edgecore/edged/observed"
)

// TestEndedMeanwhile: what ends between the look before a sync and the one after it is not told of by anybody, and has the pod synced again.
func TestEndedMeanwhile(t *testing.T) {
	container := func(id, name string, state runtimeapi.ContainerState) *observed.Container {
		return &observed.Container{ID: id, Name: name, State: state}
	}
	const running, exited = runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED
	pod := func(sandbox string, ready bool, containers ...*observed.Container) *observed.Pod {
		p := &observed.Pod{Containers: containers}
		if sandbox != "" {
			p.Sandboxes = []*observed.Sandbox{{ID: sandbox, Ready: ready}}
		}
		return p
	}
	old := container("1", "c", exited)
	for name, tc := range map[string]struct {
		before, after *observed.Pod
		want          bool
	}{
		"a container that runs":             {pod("s", true), pod("s", true, container("1", "c", running)), false},
		"a container that ended at once":    {pod("s", true), pod("s", true, container("1", "c", exited)), true},
		"its restart that ended at once":    {pod("s", true, old), pod("s", true, container("2", "c", exited), old), true},
		"its restart that runs":             {pod("s", true, old), pod("s", true, container("2", "c", running), old), false},
		"one that had ended before":         {pod("s", true, old), pod("s", true, old), false},
		"one that crashed beside it":        {pod("s", true, container("1", "c", running)), pod("s", true, old), true},
		"a sandbox that died at once":       {pod("", false), pod("s", false), true},
		"a sandbox that died meanwhile":     {pod("s", true), pod("s", false), true},
		"a sandbox that was dead":           {pod("s", false), pod("s", false), false},
		"another sandbox that died at once": {pod("s", false), pod("t", false), true},
		"a pod of which nothing is left":    {pod("s", true, old), pod("", false), false},
		"a pod of which nothing was before": {pod("", false), pod("s", true), false},
	} {
		if got := endedMeanwhile(tc.before, tc.after); got != tc.want {
			t.Errorf("%s: endedMeanwhile = %v, want %v", name, got, tc.want)
		}
	}
}

// TestSayFailed: what is not the pod's own failure is not told of it.
func TestSayFailed(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	pod, failure := testPod("p", "1"), errors.New("no")
	for name, c := range map[string]struct {
		ctx  context.Context
		pod  *v1.Pod
		err  error
		want int
	}{
		"failed":       {t.Context(), pod, failure, 1},
		"well":         {t.Context(), pod, nil, 0},
		"orphan":       {t.Context(), nil, failure, 0},
		"cut short":    {ended, pod, failure, 0},
		"runtime down": {t.Context(), pod, status.Error(codes.Unavailable, "down"), 0},
	} {
		e := &Edged{recorder: events.New("n", nil)}
		e.sayFailed(c.ctx, c.pod, events.FailedKillPod, "error killing pod", c.err)
		got := e.recorder.List()
		if len(got) != c.want || len(got) > 0 && (got[0].Reason != "FailedKillPod" || got[0].Message != "error killing pod: no") {
			t.Errorf("%s: events %+v, want %d of FailedKillPod", name, got, c.want)
		}
	}
}
