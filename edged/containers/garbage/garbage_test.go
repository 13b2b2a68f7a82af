package garbage

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/containers/gc"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/readiness"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// silentReporter drops statuses.
type silentReporter struct{}

func (silentReporter) PodStatus(*v1.Pod, v1.PodStatus) {}

// TestUsedImages: the images of all pods that run or may start are used. Nothing is known while a pod may be missing.
func TestUsedImages(t *testing.T) {
	pods, statuses, ready := desired.New(), status.NewManager(silentReporter{}), readiness.New(true)
	m := &Manager{opts: Options{Desired: pods, Statuses: statuses, Ready: ready}}
	pod := func(name string, phase v1.PodPhase) *v1.Pod {
		p := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Spec:       v1.PodSpec{Containers: []v1.Container{{Image: name + ":1"}, {Image: "same:1"}}},
		}
		if phase != "" {
			statuses.Set(p, v1.PodStatus{Phase: phase})
		}
		pods.Put(p, false)
		return p
	}
	pod("waits", "")
	pod("runs", v1.PodRunning)
	pod("done", v1.PodSucceeded)
	pod("goes", v1.PodRunning)
	stopped := pod("evicted", v1.PodRunning)
	pods.Remove("goes")
	pods.Stop(stopped.UID, &status.Stopped{Reason: "Evicted"})

	ready.Start()
	ready.StoreRead()
	if _, ok := m.usedImages(); ok {
		t.Errorf("usedImages() before the manifests were read = %t, want false", ok)
	}
	ready.StaticRead()
	if names, ok := m.usedImages(); ok {
		t.Errorf("usedImages() with a damaged store = %v, %t, want false: pods may be missing", names, ok)
	}
	ready.StoreRepaired()
	names, ok := m.usedImages()
	if diff := cmp.Diff([]string{"evicted:1", "goes:1", "runs:1", "same:1", "waits:1"}, names); diff != "" || !ok {
		t.Errorf("usedImages: known %v, want true; names mismatch (-want +got):\n%s", ok, diff)
	}
	pods.Forget("goes")
	statuses.Set(stopped, v1.PodStatus{Phase: v1.PodFailed})
	names, _ = m.usedImages()
	if diff := cmp.Diff([]string{"runs:1", "same:1", "waits:1"}, names); diff != "" {
		t.Errorf("usedImages after pods ended mismatch (-want +got):\n%s", diff)
	}
}

func TestDeadAttempts(t *testing.T) {
	for perContainer, want := range map[int]int{0: 0, 3: 3, -1: math.MaxInt} {
		if got := deadAttempts(gc.Policy{PerContainer: perContainer}); got != want {
			t.Errorf("deadAttempts(%d) = %d, want %d", perContainer, got, want)
		}
	}
}
