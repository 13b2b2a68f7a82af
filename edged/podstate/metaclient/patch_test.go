package metaclient

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// TestPatch: the API server's status becomes the edge's, whatever it was; the conditions of others stay.
func TestPatch(t *testing.T) {
	before := v1.Pod{
		Status: v1.PodStatus{
			Phase:   v1.PodPending,
			Reason:  "Evicted",
			Message: "old",
			PodIP:   "10.0.0.1",
			PodIPs:  []v1.PodIP{{IP: "10.0.0.1"}},
			HostIPs: []v1.HostIP{{IP: "192.0.2.1"}},
			Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}, {
				Type:    v1.PodReady,
				Status:  v1.ConditionFalse,
				Reason:  "old",
				Message: "older",
			}, {Type: v1.PodResizePending, Status: v1.ConditionTrue}},
			InitContainerStatuses: []v1.ContainerStatus{{Name: "i"}},
			ContainerStatuses:     []v1.ContainerStatus{{Name: "c", RestartCount: 1}},
			NominatedNodeName:     "of the scheduler",
			AllocatedResources:    amounts("cpu", "1", "memory", "2Gi"),
			Resources: &v1.ResourceRequirements{
				Limits: amounts("cpu", "1", "memory", "2Gi"), Requests: amounts("cpu", "1"),
			},
		},
	}
	want := v1.PodStatus{
		Phase:             v1.PodRunning,
		PodIP:             "10.0.0.2",
		PodIPs:            []v1.PodIP{{IP: "10.0.0.2"}},
		HostIP:            "192.0.2.2",
		HostIPs:           []v1.HostIP{{IP: "192.0.2.2"}},
		Conditions:        []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}},
		ContainerStatuses: []v1.ContainerStatus{{Name: "c", RestartCount: 2}},

		AllocatedResources: amounts("memory", "3Gi"),
		Resources:          &v1.ResourceRequirements{Limits: amounts("memory", "3Gi")},
	}
	text, err := writePatch("u", want)
	if err != nil {
		t.Fatal(err)
	}
	uid, kept, err := readPatch(text)
	if err != nil || uid != "u" {
		t.Fatalf("readPatch: UID %q, %v; want u", uid, err)
	}
	if diff := cmp.Diff(want, kept); diff != "" {
		t.Errorf("what the store keeps (-want +got):\n%s", diff)
	}
	first := v1.Pod{Status: v1.PodStatus{Phase: v1.PodPending}}
	if got := patched(t, first, text).Status; !equality.Semantic.DeepEqual(got.Resources, want.Resources) ||
		!equality.Semantic.DeepEqual(got.AllocatedResources, want.AllocatedResources) {
		t.Errorf("resources of a pod that had none = %v, allocated %v; want %v, %v",
			got.Resources, got.AllocatedResources, want.Resources, want.AllocatedResources)
	}
	data, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	if data, err = strategicpatch.StrategicMergePatch(data, text, v1.Pod{}); err != nil {
		t.Fatal(err)
	}
	var after v1.Pod
	if err := json.Unmarshal(data, &after); err != nil {
		t.Fatal(err)
	}
	ready := after.Status.Conditions[0]
	if ready.Type != v1.PodReady {
		ready = after.Status.Conditions[1]
	}
	if len(after.Status.Conditions) != 2 || ready.Status != v1.ConditionTrue || ready.Reason != "" ||
		ready.Message != "" {
		t.Errorf("conditions %+v, want two, and Ready true without reason and message", after.Status.Conditions)
	}
	want.Conditions, want.NominatedNodeName = after.Status.Conditions, "of the scheduler"
	if diff := cmp.Diff(want, after.Status); diff != "" {
		t.Errorf("what the API server has (-want +got):\n%s", diff)
	}
}

// TestPatchOfEmpty: lists and objects that are there and have nothing in them are written as well.
func TestPatchOfEmpty(t *testing.T) {
	text, err := writePatch("u", v1.PodStatus{
		AllocatedResources: v1.ResourceList{},
		Resources:          &v1.ResourceRequirements{},
		PodIPs:             []v1.PodIP{},
		Conditions:         []v1.PodCondition{},
	})
	if err != nil {
		t.Fatalf("writePatch: %v, want no error", err)
	}
	_, got, err := readPatch(text)
	if diff := cmp.Diff(v1.PodStatus{Resources: &v1.ResourceRequirements{}, Conditions: []v1.PodCondition{}},
		got); err != nil || diff != "" {
		t.Errorf("readPatch: %v, want no error; status (-want +got):\n%s", err, diff)
	}
}

// amounts are names and quantities in turn.
func amounts(list ...string) v1.ResourceList {
	out := v1.ResourceList{}
	for pair := range slices.Chunk(list, 2) {
		out[v1.ResourceName(pair[0])] = resource.MustParse(pair[1])
	}
	return out
}

// TestPatchOfPodWithoutRequests: a pod that asks for nothing is told as well, and what was told of its requests before
// goes.
func TestPatchOfPodWithoutRequests(t *testing.T) {
	for name, allocated := range map[string]v1.ResourceList{"none": nil, "empty": {}} {
		text, err := writePatch("u", v1.PodStatus{
			Phase: v1.PodRunning, AllocatedResources: allocated, Resources: &v1.ResourceRequirements{},
		})
		if err != nil || !strings.Contains(string(text), `"allocatedResources":null`) {
			t.Errorf("%s: %s, %v; want allocatedResources null", name, text, err)
		}
		if _, status, err := readPatch(text); err != nil || status.Phase != v1.PodRunning ||
			len(status.AllocatedResources) > 0 {
			t.Errorf("%s: read back %+v, %v; want a pod that runs, without requests", name, status, err)
		}
	}
}

// patched is what the API server makes of a pod and a patch of its status.
func patched(t *testing.T, pod v1.Pod, patch []byte) (out v1.Pod) {
	t.Helper()
	data, err := json.Marshal(pod)
	if err == nil {
		data, err = strategicpatch.StrategicMergePatch(data, patch, v1.Pod{})
	}
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}
