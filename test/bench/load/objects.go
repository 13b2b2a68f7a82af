package load

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EdgeLabel marks the nodes of edges.
const EdgeLabel = "node-role.kubernetes.io/edge"

// nodeObject is what a device of four cores registers.
func nodeObject(name string) json.RawMessage {
	capacity := v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("3884296Ki"),
		v1.ResourceEphemeralStorage: resource.MustParse("30428648Ki"), v1.ResourcePods: resource.MustParse("110"),
	}
	return encoded(v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"kubernetes.io/arch": "arm64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name,
			"beta.kubernetes.io/arch": "arm64", "beta.kubernetes.io/os": "linux", EdgeLabel: "",
			"node-role.kubernetes.io/agent": "",
		}},
		Status: v1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity,
			Conditions:  conditions(time.Now()),
			Addresses: []v1.NodeAddress{
				{Type: v1.NodeInternalIP, Address: "10.1.2.3"}, {Type: v1.NodeHostName, Address: name},
			},
			NodeInfo: v1.NodeSystemInfo{
				MachineID:               "2d5f9c1e7b3a4860a1b2c3d4e5f60718",
				SystemUUID:              "2d5f9c1e-7b3a-4860-a1b2-c3d4e5f60718",
				BootID:                  "9c1e2d5f-3a7b-6048-b2a1-d4c318071f6e",
				KernelVersion:           "6.12.47+rpt-rpi-v8",
				OSImage:                 "Debian GNU/Linux 13 (trixie)",
				ContainerRuntimeVersion: "containerd://2.2.0",
				KubeletVersion:          "v1.36.3",
				OperatingSystem:         "linux",
				Architecture:            "arm64",
			},
		},
	})
}

func conditions(now time.Time) []v1.NodeCondition {
	at := metav1.NewTime(now.Truncate(time.Second))
	var list []v1.NodeCondition
	for _, c := range []struct {
		name    v1.NodeConditionType
		status  v1.ConditionStatus
		reason  string
		message string
	}{
		{v1.NodeMemoryPressure, v1.ConditionFalse, "KubeletHasSufficientMemory", "enough memory is available"},
		{v1.NodeDiskPressure, v1.ConditionFalse, "KubeletHasNoDiskPressure", "enough disk is available"},
		{v1.NodePIDPressure, v1.ConditionFalse, "KubeletHasSufficientPID", "enough process ids are available"},
		{v1.NodeReady, v1.ConditionTrue, "KubeletReady", "edgecore runs pods"},
	} {
		list = append(list, v1.NodeCondition{
			Type:               c.name,
			Status:             c.status,
			Reason:             c.reason,
			Message:            c.message,
			LastHeartbeatTime:  at,
			LastTransitionTime: at,
		})
	}
	return list
}

// nodePatch is the status that an edge at rest reports: the conditions' heartbeats.
func nodePatch(now time.Time) json.RawMessage {
	type heartbeat struct {
		Type v1.NodeConditionType `json:"type"`
		At   metav1.Time          `json:"lastHeartbeatTime"`
	}
	var list []heartbeat
	for _, c := range conditions(now) {
		list = append(list, heartbeat{c.Type, c.LastHeartbeatTime})
	}
	return text(map[string]any{"status": map[string]any{"conditions": list}})
}

// podPatch is the status of a pod that has just been started.
func podPatch(object []byte, now time.Time) (json.RawMessage, error) {
	var pod v1.Pod
	if err := json.Unmarshal(object, &pod); err != nil {
		return nil, fmt.Errorf("decode a pod: %w", err)
	}
	at := metav1.NewTime(now.Truncate(time.Second))
	status := v1.PodStatus{Phase: v1.PodRunning, HostIP: "10.1.2.3", PodIP: "10.88.0.7", StartTime: &at}
	for _, name := range []v1.PodConditionType{
		v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady, v1.ContainersReady, v1.PodScheduled,
	} {
		status.Conditions = append(status.Conditions, v1.PodCondition{
			Type: name, Status: v1.ConditionTrue, LastTransitionTime: at,
		})
	}
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, v1.ContainerStatus{
			Name:        c.Name,
			Image:       c.Image,
			ImageID:     c.Image,
			Ready:       true,
			Started:     new(true),
			ContainerID: "containerd://" + string(pod.UID),
			State:       v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: at}},
		})
	}
	return text(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status}), nil
}

// encoded is the JSON of what always has one.
func encoded(value any) json.RawMessage {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return data
}

// text is JSON in a string, as patches travel.
func text(value any) json.RawMessage { return json.RawMessage(strconv.Quote(string(encoded(value)))) }
