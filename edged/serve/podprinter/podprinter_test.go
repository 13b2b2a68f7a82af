package podprinter

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOf(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	ready := []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	running := v1.ContainerStatus{
		Name: "main", Ready: true, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
	}
	type result struct {
		Line    Line
		Healthy bool
		Why     string
	}
	for name, tc := range map[string]struct {
		pod  v1.Pod
		want result
	}{
		"running": {
			v1.Pod{
				ObjectMeta: metav1.ObjectMeta{CreationTimestamp: ago(time.Hour)},
				Spec:       v1.PodSpec{Containers: make([]v1.Container, 1)},
				Status: v1.PodStatus{
					Phase: v1.PodRunning, Conditions: ready, ContainerStatuses: []v1.ContainerStatus{running},
				},
			},
			result{Line{1, 1, "Running", "0", "60m"}, true, ""},
		},
		"crashing": {
			v1.Pod{
				Spec: v1.PodSpec{Containers: make([]v1.Container, 2)}, Status: v1.PodStatus{
					Phase:     v1.PodRunning,
					StartTime: new(ago(time.Minute)),
					Conditions: []v1.PodCondition{
						{Type: v1.PodReady, Status: v1.ConditionFalse, Message: "containers with unready status: [b]"},
					},
					ContainerStatuses: []v1.ContainerStatus{
						running, {
							Name:         "b",
							RestartCount: 3,
							State: v1.ContainerState{
								Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 20s"},
							},
							LastTerminationState: v1.ContainerState{
								Terminated: &v1.ContainerStateTerminated{FinishedAt: ago(10 * time.Second), ExitCode: 3,
									Message: "no port"},
							},
						},
					},
				},
			},
			result{Line{1, 2, "CrashLoopBackOff", "3 (10s ago)", "60s"}, false, "b: ended with exit code 3: no port"},
		},
		"no image": {
			v1.Pod{
				Status: v1.PodStatus{
					Phase: v1.PodPending, ContainerStatuses: []v1.ContainerStatus{
						{
							Name: "c", State: v1.ContainerState{
								Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such host"},
							},
						}},
				},
			},
			result{Line{0, 0, "ErrImagePull", "0", "<unknown>"}, false, "c: no such host"},
		},
		"an init container failed": {
			v1.Pod{
				Spec: v1.PodSpec{InitContainers: make([]v1.Container, 2), Containers: make([]v1.Container, 1)},
				Status: v1.PodStatus{
					Phase: v1.PodPending,
					InitContainerStatuses: []v1.ContainerStatus{
						{Name: "i", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 2}}},
					},
					ContainerStatuses: []v1.ContainerStatus{
						{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "PodInitializing"}}},
					},
				},
			},
			result{Line{0, 1, "Init:ExitCode:2", "0", "<unknown>"}, false, "i: ended with exit code 2"},
		},
		"initializing": {
			v1.Pod{
				Spec: v1.PodSpec{InitContainers: make([]v1.Container, 2)},
				Status: v1.PodStatus{Phase: v1.PodPending, InitContainerStatuses: []v1.ContainerStatus{
					{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}},
					{State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}},
			},
			result{Line{0, 0, "Init:1/2", "0", "<unknown>"}, false, ""},
		},
		"evicted": {
			v1.Pod{
				Status: v1.PodStatus{
					Phase: v1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory.",
				},
			},
			result{Line{0, 0, "Evicted", "0", "<unknown>"}, false, "The node was low on resource: memory."},
		},
		"done": {
			v1.Pod{
				Spec: v1.PodSpec{Containers: make([]v1.Container, 1)}, Status: v1.PodStatus{
					Phase: v1.PodSucceeded,
					ContainerStatuses: []v1.ContainerStatus{
						{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: "Completed"}}},
					},
				},
			},
			result{Line{0, 1, "Completed", "0", "<unknown>"}, true, ""},
		},
		"one of two is done": {
			v1.Pod{
				Spec: v1.PodSpec{Containers: make([]v1.Container, 2)},
				Status: v1.PodStatus{
					Phase: v1.PodRunning, Conditions: ready,
					ContainerStatuses: []v1.ContainerStatus{
						{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: "Completed"}}},
						running,
					},
				},
			},
			result{Line{1, 2, "Running", "0", "<unknown>"}, true, ""},
		},
		"leaving": {
			v1.Pod{
				ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: new(ago(time.Second))},
				Status:     v1.PodStatus{Phase: v1.PodRunning},
			},
			result{Line{0, 0, "Terminating", "0", "<unknown>"}, false, ""},
		},
		"killed by a signal": {
			v1.Pod{
				Status: v1.PodStatus{
					Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{
						{
							Name: "c", State: v1.ContainerState{
								Terminated: &v1.ContainerStateTerminated{Signal: 9, ExitCode: 137, Message: "why"},
							},
						}},
				},
			},
			result{Line{0, 0, "Signal:9", "0", "<unknown>"}, false, "c: ended with exit code 137: why"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := result{Summarize(&tc.pod, now), Healthy(&tc.pod), Why(&tc.pod)}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
