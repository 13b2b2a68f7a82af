package podsync

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
)

// TestEndedDuringSync: if a container or sandbox ends between the two reads of a sync, the pod is synced again.
func TestEndedDuringSync(t *testing.T) {
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
		"a container that runs":          {pod("s", true), pod("s", true, container("1", "c", running)), false},
		"a container that ended at once": {pod("s", true), pod("s", true, container("1", "c", exited)), true},
		"its restart that ended at once": {pod("s", true, old), pod("s", true, container("2", "c", exited), old),
			true},
		"its restart that runs": {pod("s", true, old), pod("s", true, container("2", "c", running), old),
			false},
		"one that had ended before":         {pod("s", true, old), pod("s", true, old), false},
		"one that crashed beside it":        {pod("s", true, container("1", "c", running)), pod("s", true, old), true},
		"a sandbox that died at once":       {pod("", false), pod("s", false), true},
		"a sandbox that died meanwhile":     {pod("s", true), pod("s", false), true},
		"a sandbox that was dead":           {pod("s", false), pod("s", false), false},
		"another sandbox that died at once": {pod("s", false), pod("t", false), true},
		"a pod of which nothing is left":    {pod("s", true, old), pod("", false), false},
		"a pod of which nothing was before": {pod("", false), pod("s", true), false},
	} {
		if got := endedDuringSync(tc.before, tc.after); got != tc.want {
			t.Errorf("%s: endedDuringSync = %v, want %v", name, got, tc.want)
		}
	}
}

// TestSettled: a sync that had nothing to do says so, unless the pod depends on what the node is not told of.
func TestSettled(t *testing.T) {
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	running := map[string]volume.PodVolume{"a": {Path: "/a"}}
	for name, c := range map[string]struct {
		result  runtime.SyncResult
		volumes volume.Volumes
		want    podworker.SyncResult
	}{
		"nothing to do":           {runtime.SyncResult{}, running, podworker.SyncResult{Settled: true}},
		"a container was started": {runtime.SyncResult{Changed: true}, running, podworker.SyncResult{}},
		"a container waits":       {runtime.SyncResult{RetryAt: at}, running, podworker.SyncResult{RetryAt: at}},
		"tokens": {
			runtime.SyncResult{}, volume.Volumes{"a": {RenewAt: at.Add(time.Hour)}, "b": {RenewAt: at}, "c": {}},
			podworker.SyncResult{Settled: true, By: at},
		},
		"a volume of a driver": {
			runtime.SyncResult{}, volume.Volumes{"a": {Polled: true}, "b": {}}, podworker.SyncResult{},
		},
	} {
		f := newFixture(t)
		f.runtime.result, f.volumes.volumes = c.result, c.volumes
		if diff := cmp.Diff(c.want, f.Sync(t.Context(), newPod())); diff != "" {
			t.Errorf("%s: result (-want +got):\n%s", name, diff)
		}
	}
}

// TestRecordFailure: only a pod's own failure is recorded in an event of the pod.
func TestRecordFailure(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	pod, failure := newPod(), errors.New("no")
	for name, c := range map[string]struct {
		ctx  context.Context
		pod  *v1.Pod
		err  error
		want []string
	}{
		"failed":       {t.Context(), pod, failure, []string{"error killing pod: no"}},
		"well":         {t.Context(), pod, nil, nil},
		"orphan":       {t.Context(), nil, failure, nil},
		"cancelled":    {ended, pod, failure, nil},
		"runtime down": {t.Context(), pod, grpcstatus.Error(codes.Unavailable, "down"), nil},
	} {
		f := newFixture(t)
		f.recordFailure(c.ctx, c.pod, events.FailedKillPod, "error killing pod", c.err)
		if diff := cmp.Diff(c.want, f.messages("FailedKillPod")); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
	}
}

// TestSyncDoesNotStart: a pod that has ended, is ended by the node, has no network or no volumes, or exceeds its
// deadline does not reach the runtime. Nor does any while the node shuts down.
func TestSyncDoesNotStart(t *testing.T) {
	no := errors.New("no")
	for name, c := range map[string]struct {
		set  func(*fixture, *v1.Pod)
		want podworker.SyncResult
		// wantEvent is the reason of an event.
		wantEvent string
	}{
		"has ended": {
			set: func(f *fixture, pod *v1.Pod) {
				f.opts.Statuses.Set(pod, v1.PodStatus{Phase: v1.PodSucceeded})
			},
			want: podworker.SyncResult{Finished: true},
		},
		"the node ends it": {
			set:  func(f *fixture, _ *v1.Pod) { f.stopper.why = &status.Stopped{Reason: "Evicted"} },
			want: podworker.SyncResult{Finished: true},
		},
		"its containers have ended": {
			set:  func(f *fixture, _ *v1.Pod) { f.podStatus.finished = true },
			want: podworker.SyncResult{Finished: true},
		},
		"the node shuts down": {set: func(f *fixture, _ *v1.Pod) { f.opts.Gate.Set(true) }},
		"no network": {
			set:       func(f *fixture, _ *v1.Pod) { f.fail["network"] = no },
			want:      podworker.SyncResult{Err: no},
			wantEvent: "NetworkNotReady",
		},
		"no volumes": {
			set:       func(f *fixture, _ *v1.Pod) { f.fail["set up volumes"] = no },
			want:      podworker.SyncResult{Err: no},
			wantEvent: "FailedMount",
		},
		"no cgroup": {
			set:       func(f *fixture, _ *v1.Pod) { f.fail["ensure cgroup"] = no },
			want:      podworker.SyncResult{Err: no},
			wantEvent: "FailedCreatePodContainer",
		},
		"its state is unknown": {
			set: func(f *fixture, _ *v1.Pod) {
				f.pleg.healthy, f.fail["refresh"] = no, no
			},
			want:      podworker.SyncResult{Err: no},
			wantEvent: "FailedSync",
		},
		"exceeds its deadline": {
			set: func(f *fixture, pod *v1.Pod) {
				pod.Spec.ActiveDeadlineSeconds = new(int64(1))
				start := metav1.NewTime(time.Now().Add(-time.Hour))
				f.opts.Statuses.Set(pod, v1.PodStatus{StartTime: &start})
				f.opts.Desired.Put(pod, false)
			},
			want:      podworker.SyncResult{Finished: true},
			wantEvent: "DeadlineExceeded",
		},
	} {
		f, pod := newFixture(t), newPod()
		c.set(f, pod)
		got := f.Sync(t.Context(), pod)
		if got.Finished != c.want.Finished || !errors.Is(got.Err, c.want.Err) || slices.Contains(f.list, "sync") {
			t.Errorf("%s: outcome %+v after %q; want %+v, without a sync", name, got, f.list, c.want)
		}
		if c.wantEvent != "" && len(f.messages(c.wantEvent)) != 1 {
			t.Errorf("%s: events %+v, want one of %s", name, f.opts.Recorder.List(), c.wantEvent)
		}
	}
}

// TestSync: a pod is prepared before the runtime gets it, with the pull secrets that exist.
func TestSync(t *testing.T) {
	f, pod := newFixture(t), newPod()
	pod.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "has"}, {Name: ""}, {Name: "missing"}}
	f.store.secrets = map[string]*v1.Secret{"has": {ObjectMeta: metav1.ObjectMeta{Name: "has"}}}
	f.store.err = apierrors.NewNotFound(v1.Resource("secrets"), "missing")
	retryAt := time.Now().Add(time.Hour)
	f.runtime.result = runtime.SyncResult{RetryAt: retryAt}
	if got := f.Sync(t.Context(), pod); got.Err != nil || got.Finished || !got.RetryAt.Equal(retryAt) {
		t.Errorf("outcome %+v, want RetryAt %v", got, retryAt)
	}
	want := []string{"ensure cgroup", "set up volumes", "set volumes", "prepared", "sync"}
	if diff := cmp.Diff(want, f.list); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if got := f.runtime.input.PullSecrets; len(got) != 1 || got[0].Name != "has" {
		t.Errorf("pull secrets %+v, want one of name has", got)
	}
	if got := f.messages(events.FailedToRetrieveImagePullSecret); len(got) != 1 {
		t.Errorf("events of the missing secret %q, want one", got)
	}
}

// TestSyncFails: after an error of the runtime the pod is synced again after the backoff, and at once if the error asks
// for that. A runtime that is down is tried again later.
func TestSyncFails(t *testing.T) {
	no, retryAt := errors.New("no"), time.Now().Add(time.Hour)
	down := grpcstatus.Error(codes.Unavailable, "down")
	for name, c := range map[string]struct {
		result                   runtime.SyncResult
		wantErr                  error
		latest                   time.Duration
		wantNoRetry, wantRefresh bool
	}{
		"fails": {result: runtime.SyncResult{Err: no}, wantErr: no, wantNoRetry: true, wantRefresh: true},
		"fails, backoff": {
			result: runtime.SyncResult{Err: no, RetryAt: retryAt}, wantErr: no, latest: time.Hour, wantRefresh: true,
		},
		"runtime down": {result: runtime.SyncResult{Err: down}, wantErr: down, latest: runtimeRetry, wantRefresh: true},
		"more to do":   {result: runtime.SyncResult{More: true, RetryAt: retryAt}},
	} {
		f := newFixture(t)
		f.runtime.result = c.result
		got := f.Sync(t.Context(), newPod())
		if !errors.Is(got.Err, c.wantErr) || got.RetryAt.IsZero() != c.wantNoRetry {
			t.Errorf("%s: outcome %+v, want error %v, no RetryAt: %t", name, got, c.wantErr, c.wantNoRetry)
		}
		if left := time.Until(got.RetryAt); !c.wantNoRetry && left > c.latest {
			t.Errorf("%s: next sync in %v, want within %v", name, left, c.latest)
		}
		if slices.Contains(f.list, "refresh") != c.wantRefresh {
			t.Errorf("%s: calls %q, want a refresh: %t", name, f.list, c.wantRefresh)
		}
	}
}

// TestResizeIsStoredFirst: containers get the amounts of an admitted resize only once these are stored.
func TestResizeIsStoredFirst(t *testing.T) {
	f := newFixture(t)
	f.unstored = true
	f.Sync(t.Context(), newPod())
	at := func(call string) int { return slices.Index(f.list, call) }
	if at("flush report") < 0 || at("flush report") > at("resize stored") || at("resize stored") > at("resize") {
		t.Errorf("calls = %q, want the report flushed, the resize noted as stored, and then done", f.list)
	}
	f = newFixture(t)
	f.unstored, f.fail["flush report"] = true, errors.New("disk full")
	if out := f.Sync(t.Context(), newPod()); !errors.Is(out.Err, f.fail["flush report"]) {
		t.Errorf("error of the sync = %v, want %v", out.Err, f.fail["flush report"])
	}
	if at("resize") >= 0 || at("resize stored") >= 0 || at("sync") < 0 {
		t.Errorf("calls when the status is not stored = %q, want no resize, and the pod synced all the same", f.list)
	}
}
