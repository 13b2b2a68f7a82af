package requests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// maxAllocated is what one request may allocate, whatever is in it.
const maxAllocated = 64 << 20

// repeated is text that consists of about size bytes of a part, between a head and a tail.
func repeated(head, part, tail string, size int) string {
	return head + part[:len(part)-1] + strings.Repeat(","+part[:len(part)-1], max(size/len(part)-1, 0)) + tail
}

// TestContentAllocatesLittle: no content within the size of a message makes a request allocate much. What is too large
// is refused before the API server hears of it.
func TestContentAllocatesLittle(t *testing.T) {
	quoted := func(text string) string {
		data, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	const size = 8 << 20
	const node = `"metadata":{"name":"e1"},`
	const pod = `"metadata":{"name":"a","namespace":"ns","annotations":{"kubernetes.io/config.mirror":"m"}},`
	event := `"metadata":{"name":"e","namespace":"ns"},"involvedObject":{"kind":"Node","name":"e1"}`
	for name, tc := range map[string]struct{ op, res, content string }{
		"containers": {"insert", "ns/pod/a",
			repeated(`{`+pod+`"spec":{"nodeName":"e1","containers":[`, `{},`, `]}}`, size)},
		"containers, at the limit": {"insert", "ns/pod/a",
			repeated(`{`+pod+`"spec":{"nodeName":"e1","containers":[`, `{},`, `]}}`, 3*(largeItems-10))},
		"capacity": {"insert", "null/node/e1", repeated(`{`+node+`"status":{"capacity":{`, `"a":"1",`, `}}}`, size)},
		"images":   {"update", "null/node/e1", repeated(`{`+node+`"status":{"images":[`, `{},`, `]}}`, size)},
		"labels":   {"update", "null/node/e1", repeated(`{`+node+`"metadata":{"labels":{`, `"a":"1",`, `}}}`, size)},
		"one string": {"patch", "ns/podpatch/a",
			quoted(repeated(`{"metadata":{"uid":"u"},"status":{"message":"`, `xxxxxxx,`, `"}}`, 7<<20))},
		"patch": {"patch", "ns/podpatch/a",
			quoted(repeated(`{"metadata":{"uid":"u"},"status":{"conditions":[`, `{},`, `]}}`, 7<<20))},
		"patch of a node": {
			"patch", "null/nodepatch/e1", quoted(repeated(`{"status":{"images":[`, `{},`, `]}}`, 7<<20)),
		},
		"depth": {"patch", "null/nodepatch/e1",
			quoted(strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000))},
		"old pod statuses": {"update", "ns/podstatus",
			repeated(`[`, `{},`, `]`, size)},
		"old node status": {"update", "null/nodestatus/e1",
			repeated(`{"ExtendResources":{"a":[`, `{"capacity":{}},`, `]}}`, size)},
		"delete": {"delete", "ns/pod/a", repeated(`{"dryRun":[`, `"",`, `]}`, size)},
		"token":  {"query", "ns/serviceaccounttoken/sa", repeated(`{"spec":{"audiences":[`, `"",`, `]}}`, size)},
		"lease": {"update", "kube-node-lease/lease/e1",
			repeated(`{"metadata":{"name":"e1","finalizers":[`, `"",`, `]}}`, size)},
		"event": {"insert", "ns/event/e",
			repeated(`{`+event+`,"metadata":{"ownerReferences":[`, `{},`, `]}}`, size)},
		"patchData": {"patch", "ns/event/e",
			`{"event":{` + event + `},"patchData":` + quoted(repeated(`{"a":[`, `{},`, `]}`, 7<<20)) + `}`},
		"review": {"insert", "null/subjectaccessreview/e1", repeated(`{"spec":{"groups":[`, `"",`, `]}}`, size)},
		"drivers": {"insert", "null/csinode/e1",
			repeated(`{"metadata":{"name":"e1"},"spec":{"drivers":[`, `{},`, `]}}`, size)},
		"a query's":         {"query", "ns/configmap/x", repeated(`[`, `{},`, `]`, size)},
		"exponent":          {"insert", "null/node/e1", `{` + node + `"status":{"capacity":{"cpu":"1e-999999999"}}}`},
		"unknown operation": {repeated("", "dance,", "", size), "null/node/e1", `null`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, noAddress)
			w.Connected(t.Context(), "e1", "edgecore/websocket")
			var reason metav1.StatusReason
			n := membound.Allocated(func() {
				if status, _ := failure(t, w.ask("e1", tc.op, tc.res, tc.content)); status != nil {
					reason = status.Reason
				}
			})
			if n > maxAllocated {
				t.Errorf("%d bytes allocated, want at most %d", n, maxAllocated)
			}
			if strings.Contains(name, "at the limit") {
				if calls := w.api.Seen(); len(calls) == 0 {
					t.Error("the API server was not asked, want the largest content that is allowed to reach it")
				}
				return
			}
			want := metav1.StatusReasonRequestEntityTooLarge
			if name == "unknown operation" {
				want = metav1.StatusReasonBadRequest
			}
			if reason != want {
				t.Errorf("answered with reason %q, want %q", reason, want)
			}
			if calls := w.api.Seen(); calls != nil {
				t.Errorf("the API server saw %v, want nothing", calls)
			}
		})
	}
}

// largePodStatus is the status of a pod whose containers have ten volume mounts and resources each.
func largePodStatus(containers int) v1.PodStatus {
	now := metav1.NewTime(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	resources := v1.ResourceList{
		v1.ResourceCPU: apiresource.MustParse("100m"), v1.ResourceMemory: apiresource.MustParse("128Mi")}
	ended := &v1.ContainerStateTerminated{ExitCode: 1, Message: strings.Repeat("1", 800)}
	status := v1.PodStatus{Phase: v1.PodRunning, StartTime: &now, QOSClass: v1.PodQOSBurstable}
	for i := range containers {
		c := v1.ContainerStatus{
			Name:                 fmt.Sprintf("container-%d", i),
			State:                v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: now}},
			LastTerminationState: v1.ContainerState{Terminated: ended},
			Image:                "registry.example.com/group/application:1.2.3",
			ImageID:              "registry.example.com/group/application@sha256:" + strings.Repeat("a", 64),
			ContainerID:          "containerd://" + strings.Repeat("b", 64),
			Started:              ptr.To(true),
			AllocatedResources:   resources,
			Resources:            &v1.ResourceRequirements{Limits: resources, Requests: resources},
			User: &v1.ContainerUser{
				Linux: &v1.LinuxContainerUser{SupplementalGroups: []int64{1, 2, 3}},
			},
		}
		for m := range 10 {
			c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMountStatus{Name: fmt.Sprintf("volume-%d", m),
				MountPath: fmt.Sprintf("/var/lib/application/%d", m), ReadOnly: true,
				RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyDisabled)})
		}
		status.ContainerStatuses = append(status.ContainerStatuses, c)
	}
	return status
}

// TestLargeObjectsPass: what real nodes send is far below the limits.
func TestLargeObjectsPass(t *testing.T) {
	w := newFixture(t)
	pod := fakes.Pod("e1", "ns", "a")
	w.add(pod) // on a slow machine the request waits for so long that cloudcore looks at the pod first
	w.api.Answer(func(fakes.Call) (int, any) {
		return 200, &v1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}}
	})
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]string{"uid": string(pod.UID)}, "status": largePodStatus(500),
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(string(patch))
	if err != nil {
		t.Fatal(err)
	}
	if status, _ := failure(t, w.ask("e1", "patch", "ns/podpatch/a", string(text))); status != nil {
		t.Errorf("a status of 500 containers (%d bytes) is answered with %s: %s, want it accepted",
			len(patch), status.Reason, status.Message)
	}
	node := v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "e1"}}
	for i := range 500 {
		node.Status.Images = append(node.Status.Images, v1.ContainerImage{SizeBytes: 1 << 30, Names: []string{
			fmt.Sprintf("registry.example.com/group/image-%d:1.2.3", i),
			fmt.Sprintf("registry.example.com/group/image-%d@sha256:%s", i, strings.Repeat("c", 64))}})
	}
	data, err := json.Marshal(node)
	if err != nil {
		t.Fatal(err)
	}
	w.api.Answer(func(fakes.Call) (int, any) {
		return http.StatusOK, &v1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}}
	})
	if status, _ := failure(t, w.ask("e1", "insert", "null/node/e1", string(data))); status != nil {
		t.Errorf("a Node with 500 images (%d bytes) is answered with %s: %s, want it accepted",
			len(data), status.Reason, status.Message)
	}
}

func TestContentLimit(t *testing.T) {
	limit := contentLimit{bytes: 10_000, items: 3, values: 6}
	for content, want := range map[string]string{
		``: "", `null`: "", `[1,2,3]`: "", `[1,2,3,4]`: "elements of arrays",
		`[[],[],[]]`: "elements of arrays", `{"a":1,"b":2,"c":3,"d":4}`: "",
		`{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6}`:       "",
		`{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7}`: "values",
		`{"a":"[,,,,,,,,,","b":"\",,,,,,,,"}`:         "",
		strings.Repeat("{", 3):                        "", `"` + strings.Repeat("x", 10_000): "bytes", `]]]}}}"`: "",
		`"\`:                "",
		`{"cpu":"1e-1000"}`: "exponent", `{"cpu":1e-1000}`: "exponent", `{"cpu":"  -1.5E-1000 "}`: "exponent",
		`{"cpu":"1e-999"}`: "", `{"cpu":"1000m"}`: "",
		`{"cpu":"1e3294967296"}`:                               "exponent", // which overflows to -1000000000
		`{"cpu":"1234567890123456789e1000"}`:                   "exponent",
		`{"hash":"12e34567"}`:                                  "",
		`{"cpu":"` + strings.Repeat("7", maxDigits+1) + `Ki"}`: "digits",
		`{"terminated":{"message":"1e-1000"}}`:                 "",
		`{"capacity":{"message":"1e-1000"}}`:                   "exponent",
		`{"note":"` + strings.Repeat("7", maxDigits+1) + `!"}`: "",
	} {
		err := limit.check([]byte(content))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("check(%.60s) = %v, want an error about %q", content, err, want)
		}
	}
	deep := contentLimit{bytes: 10_000, items: 1000, values: 1000}
	for depth, fine := range map[int]bool{maxDepth: true, maxDepth + 1: false} {
		if err := deep.check([]byte(strings.Repeat("[", depth))); (err == nil) != fine {
			t.Errorf("check of %d levels = %v, want them accepted: %v", depth, err, fine)
		}
	}
}
