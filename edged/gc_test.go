package edged

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/gc"
	"github.com/edgecore-io/edgecore/edged/status"
)

// silentReporter is told of statuses, and does nothing.
type silentReporter struct{}

func (silentReporter) PodStatus(*v1.Pod, v1.PodStatus) {}

// TestWantedImages: the images of all pods that are to run are wanted, and none is known while a pod may be missing.
func TestWantedImages(t *testing.T) {
	e := New(Options{StoreDamaged: true}).next()
	e.statuses = status.NewManager(silentReporter{})
	pod := func(name string, phase v1.PodPhase) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{Containers: []v1.Container{{Image: name + ":1"}, {Image: "same:1"}}}}
		if phase != "" {
			e.statuses.Set(p, v1.PodStatus{Phase: phase})
		}
		e.desired.Put(p, false)
		return p
	}
	pod("waits", "")
	pod("runs", v1.PodRunning)
	pod("done", v1.PodSucceeded)
	pod("goes", v1.PodRunning)
	stopped := pod("evicted", v1.PodRunning)
	e.desired.Remove("goes")
	e.desired.Stop(stopped.UID, &status.Stopped{Reason: "Evicted"})

	e.ready.Start()
	e.ready.StoreRead()
	if _, ok := e.wantedImages(); ok {
		t.Errorf("wantedImages() before the manifests were read = %t, want false", ok)
	}
	e.ready.StaticRead()
	if names, ok := e.wantedImages(); ok {
		t.Errorf("wantedImages() with a damaged store = %v, %t, want false: pods may be missing", names, ok)
	}
	e.ready.StoreRepaired()
	names, ok := e.wantedImages()
	if diff := cmp.Diff([]string{"evicted:1", "goes:1", "runs:1", "same:1", "waits:1"}, names); diff != "" || !ok {
		t.Errorf("wantedImages: known %v, want true; names mismatch (-want +got):\n%s", ok, diff)
	}
	e.desired.Forget("goes")
	e.statuses.Set(stopped, v1.PodStatus{Phase: v1.PodFailed})
	names, _ = e.wantedImages()
	if diff := cmp.Diff([]string{"runs:1", "same:1", "waits:1"}, names); diff != "" {
		t.Errorf("wantedImages after pods ended mismatch (-want +got):\n%s", diff)
	}
}

func TestDeadAttempts(t *testing.T) {
	for perContainer, want := range map[int]int{0: 0, 3: 3, -1: int(^uint(0) >> 1)} {
		if got := deadAttempts(gc.Policy{PerContainer: perContainer}); got != want {
			t.Errorf("deadAttempts(%d) = %d, want %d", perContainer, got, want)
		}
	}
}
