package storagelimit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/node/stats"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// TestAdded: a pod with a limit wakes Run once; critical pods and those without limits do not.
func TestAdded(t *testing.T) {
	limited := &v1.Pod{
		Spec: v1.PodSpec{
			Volumes: []v1.Volume{
				{
					Name: "v", VolumeSource: v1.VolumeSource{
						EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("1Mi"))},
					},
				},
			},
		},
	}
	storage := &v1.Pod{
		Spec: v1.PodSpec{
			Containers: []v1.Container{
				{
					Resources: v1.ResourceRequirements{
						Limits: v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("1Mi")},
					},
				},
			},
		},
	}
	critical := limited.DeepCopy()
	critical.Spec.Priority = ptr.To[int32](2000000000)
	static := limited.DeepCopy()
	static.ObjectMeta = metav1.ObjectMeta{Annotations: map[string]string{"kubernetes.io/config.source": "file"}}
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		want bool
	}{"volume": {limited, true}, "storage": {storage, true}, "none": {&v1.Pod{}, false}, "critical": {critical, false},
		"static": {static, false}} {
		l := New(Options{})
		for range 3 {
			l.Added(tc.pod)
		}
		if got := len(l.added) == 1; got != tc.want {
			t.Errorf("%s: woken %v, want %v", name, got, tc.want)
		}
		l = New(Options{})
		l.watching.Store(true)
		if l.Added(tc.pod); len(l.added) != 0 {
			t.Errorf("%s: woken %d times while pods are watched already, want 0", name, len(l.added))
		}
	}
}

// TestCheck: a pod over its limit is evicted. Without pods that have limits, Run sleeps until one is added.
func TestCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := desired.New()
		var bytes atomic.Int64
		var measured, stopped atomic.Int32
		m := New(Options{
			Desired: pods,
			Phase:   func(types.UID) v1.PodPhase { return v1.PodRunning },
			Node:    func(context.Context) (stats.NodeUsage, error) { return stats.NodeUsage{}, errors.New("no") },
			Volumes: func(context.Context, *v1.Pod) (map[string]int64, error) {
				measured.Add(1)
				return map[string]int64{"v": bytes.Load()}, nil
			},
			Evicted: func(string) {},
			Stop: func(pod *v1.Pod, why status.Stopped) {
				stopped.Add(1)
				pods.Stop(pod.UID, &why)
				if why.Reason != "Evicted" || why.Message == "" {
					t.Errorf("stopped for %+v, want Evicted and a message", why)
				}
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = m.Run(ctx) }() // it returns nil
		time.Sleep(time.Hour)
		if n := measured.Load(); n != 0 {
			t.Errorf("measured %d times without pods, want 0", n)
		}
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "1"}, Spec: v1.PodSpec{
				Volumes: []v1.Volume{
					{
						Name: "v",
						VolumeSource: v1.VolumeSource{
							EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("1Mi"))},
						},
					},
				},
			},
		}
		pods.Put(pod, false)
		pods.SetAdmission("1", nil)
		m.Added(pod)
		time.Sleep(time.Minute)
		if n := measured.Load(); n < 5 || stopped.Load() != 0 {
			t.Errorf("a pod below its limit was measured %d times in a minute and stopped %d times, want 5 and 0", n,
				stopped.Load())
		}
		bytes.Store(2 << 20)
		time.Sleep(time.Minute)
		if n := stopped.Load(); n != 1 {
			t.Errorf("a pod over its limit was stopped %d times, want 1", n)
		}
		cancel()
		<-done
	})
}

// silentRuntime has no figures of containers.
type silentRuntime struct {
	runtimeapi.RuntimeServiceClient
}

func (silentRuntime) ListContainerStats(
	context.Context, *runtimeapi.ListContainerStatsRequest, ...grpc.CallOption,
) (*runtimeapi.ListContainerStatsResponse, error) {
	return &runtimeapi.ListContainerStatsResponse{}, nil
}

// TestFilesCount: what a container has written to the files that are bound into it counts for the pod's limit.
func TestFilesCount(t *testing.T) {
	dir := t.TempDir()
	hosts, messages := filepath.Join(dir, "etc-hosts"), filepath.Join(dir, "containers")
	err := errors.Join(os.MkdirAll(filepath.Join(messages, "main"), 0o755),
		os.WriteFile(hosts, make([]byte, 1<<20), 0o600),
		os.WriteFile(filepath.Join(messages, "main", "0"), make([]byte, 2<<20), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	m := New(Options{
		Volumes: func(context.Context, *v1.Pod) (map[string]int64, error) { return nil, nil },
		Runtime: silentRuntime{},
		LogDir:  func(*v1.Pod) string { return filepath.Join(dir, "logs", "pod") },
		Files:   func(*v1.Pod) []string { return []string{hosts, messages, filepath.Join(dir, "none")} },
	})
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{
		Name: "main",
		Resources: v1.ResourceRequirements{
			Limits: v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("1Mi")},
		},
	}}}}
	use, err := m.measure(t.Context(), pod)
	if err != nil || use.Other < 3<<20 {
		t.Errorf("measure = %+v, %v; want 3 MiB or more", use, err)
	}
	if limit, _ := volume.Exceeds(pod, use); limit == "" {
		t.Error("a pod of 1 MiB with 3 MiB in these files is not over its limit, want it to be")
	}
}
