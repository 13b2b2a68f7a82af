package wire

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func runningPod() v1.Pod {
	started := true
	at := metav1.NewTime(time.Date(2026, 3, 4, 5, 6, 7, 89, time.UTC))
	return v1.Pod{Status: v1.PodStatus{
		Phase:  v1.PodRunning,
		HostIP: "10.0.0.1",
		PodIP:  "10.1.0.2",
		PodIPs: []v1.PodIP{{IP: "10.1.0.2"}},
		Conditions: []v1.PodCondition{
			{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: at},
			{Type: v1.ContainersReady, Status: v1.ConditionTrue, LastTransitionTime: at},
		},
		ContainerStatuses: []v1.ContainerStatus{{
			Name:        "web",
			Ready:       true,
			Started:     &started,
			ContainerID: "containerd://1",
			State:       v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: at}},
		}},
	}}
}

func hashOf(t *testing.T, pod v1.Pod) string {
	t.Helper()
	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := StatusHash(text)
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

// The hash of what the API server has is that of what the node reported, whatever others have added meanwhile.
func TestStatusHashKeeps(t *testing.T) {
	want := hashOf(t, runningPod())
	for name, change := range map[string]func(*v1.Pod){
		"conditions in another order": func(p *v1.Pod) {
			c := p.Status.Conditions
			c[0], c[1] = c[1], c[0]
		},
		"a condition of the scheduler": func(p *v1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{
				Type: v1.PodScheduled, Status: v1.ConditionTrue,
			})
		},
		"a readiness gate": func(p *v1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{
				Type: "example.com/up", Status: v1.ConditionFalse,
			})
		},
		"the time of a condition": func(p *v1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.Time{} },
		"the address of the node": func(p *v1.Pod) { p.Status.HostIP = "10.0.0.9" },
		"metadata":                func(p *v1.Pod) { p.ResourceVersion, p.Name = "9", "web" },
	} {
		pod := runningPod()
		change(&pod)
		if got := hashOf(t, pod); got != want {
			t.Errorf("StatusHash with %s = %q, want %q as without", name, got, want)
		}
	}
}

// The hash of a patch with directives is that of the status which it makes.
func TestStatusHashOfPatch(t *testing.T) {
	const patch = `{"metadata":{"uid":"u"},"status":{"phase":"Running","reason":null,"hostIP":"10.0.0.1",
		"podIP":"10.1.0.2","podIPs":[{"ip":"10.1.0.2"},{"$patch":"replace"}],"initContainerStatuses":null,
		"conditions":[{"type":"Ready","status":"True","message":null},{"type":"ContainersReady","status":"True"},
			{"$patch":"delete","type":"Initialized"},{"$patch":"delete","type":"PodResizePending"}],
		"containerStatuses":[{"name":"web","ready":true,"started":true,"containerID":"containerd://1","image":"web:1",
			"state":{"running":{"startedAt":"2026-03-04T05:06:07Z"}},"lastState":{},"resources":{}}]}}`
	want := hashOf(t, runningPod())
	if got, err := StatusHash([]byte(patch)); err != nil || got != want {
		t.Errorf("StatusHash of a patch = %q, %v, want %q as of the pod", got, err, want)
	}
}

// What someone who looks at the pod would miss changes the hash.
func TestStatusHashChanges(t *testing.T) {
	before := hashOf(t, runningPod())
	for name, change := range map[string]func(*v1.Pod){
		"phase":         func(p *v1.Pod) { p.Status.Phase = v1.PodFailed },
		"reason":        func(p *v1.Pod) { p.Status.Reason = "Evicted" },
		"ready":         func(p *v1.Pod) { p.Status.Conditions[0].Status = v1.ConditionFalse },
		"no condition":  func(p *v1.Pod) { p.Status.Conditions = nil },
		"restart count": func(p *v1.Pod) { p.Status.ContainerStatuses[0].RestartCount++ },
		"container id":  func(p *v1.Pod) { p.Status.ContainerStatuses[0].ContainerID = "containerd://2" },
		"waiting": func(p *v1.Pod) {
			p.Status.ContainerStatuses[0].State = v1.ContainerState{
				Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"},
			}
		},
		"exit code": func(p *v1.Pod) {
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &v1.ContainerStateTerminated{ExitCode: 3}
		},
		"address":      func(p *v1.Pod) { p.Status.PodIPs[0].IP = "10.1.0.3" },
		"no container": func(p *v1.Pod) { p.Status.ContainerStatuses = nil },
	} {
		pod := runningPod()
		change(&pod)
		if got := hashOf(t, pod); got == before {
			t.Errorf("StatusHash with another %s = %q, want another than before", name, got)
		}
	}
}

func TestStatusHashRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "unexpected end",
		"{}":                         "no status",
		`{"status":null}`:            "no status",
		`{"status":{"phase":[]}}`:    "cannot unmarshal",
		`{"status":{"podIPs":"1"}}`:  "cannot unmarshal",
		`{"status":{"conditions":1}`: "unexpected end",
	} {
		if got, err := StatusHash([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("StatusHash(%q) = %q, %v, want an error with %q", text, got, err, want)
		}
	}
}
