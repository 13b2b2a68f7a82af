package edgecontroller

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// recordedFile has the messages that were recorded between an upstream edge and cloud.
const recordedFile = "testdata/recorded.jsonl"

// recorded reads the messages that were recorded between an upstream edge and cloud: requests in order, answers by id.
func recorded(t testing.TB, file string) (requests []*model.Message, answers map[string]*model.Message) {
	t.Helper()
	answers = map[string]*model.Message{}
	eachRecorded(t, file, func(dir string, m *model.Message) {
		switch {
		case dir == "edge->cloud" && m.Route.Source == "edged":
			requests = append(requests, m)
		case dir == "cloud->edge" && m.IsResponse():
			answers[m.Header.ParentID] = m
		}
	})
	return requests, answers
}

func eachRecorded(t testing.TB, file string, do func(dir string, m *model.Message)) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Dir     string         `json:"dir"`
			Message *model.Message `json:"message"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		do(line.Dir, line.Message)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

// wantCalls is what each kind of recorded request means to the API server.
var wantCalls = map[string][]string{
	"query kube-node-lease/lease/edge-1": {
		"GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge-1 as system:node:edge-1",
	},
	"insert kube-node-lease/lease/edge-1": {
		"POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases as system:node:edge-1",
	},
	"update kube-node-lease/lease/edge-1": {
		"PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge-1 as system:node:edge-1",
	},
	"insert null/node/edge-1": {
		"POST /api/v1/nodes as system:node:edge-1", "POST /api/v1/nodes as cloudcore",
	},
	"patch null/nodepatch/edge-1":      {"PATCH /api/v1/nodes/edge-1/status as system:node:edge-1"},
	"patch default/podpatch/web":       {"PATCH /api/v1/namespaces/default/pods/web/status as system:node:edge-1"},
	"delete default/pod/web":           {"DELETE /api/v1/namespaces/default/pods/web as system:node:edge-1"},
	"query default/configmap/web-conf": {"GET /api/v1/namespaces/default/configmaps/web-conf as system:node:edge-1"},
	"query default/secret/web-sec":     {"GET /api/v1/namespaces/default/secrets/web-sec as system:node:edge-1"},
	"query default/configmap/kube-root-ca.crt": {
		"GET /api/v1/namespaces/default/configmaps/kube-root-ca.crt as system:node:edge-1"},
	"query default/serviceaccounttoken/default": {
		"GET /api/v1/namespaces/default/pods/web as cloudcore",
		"POST /api/v1/namespaces/default/serviceaccounts/default/token as system:node:edge-1"},
}

// TestRecordedRequests: each request of an upstream edge that was recorded is answered as it was by the upstream cloud,
// header and content, but for managedFields.
func TestRecordedRequests(t *testing.T) {
	requests, answers := recorded(t, recordedFile)
	answered := 0
	for _, m := range requests {
		name := m.Route.Operation + " " + m.Route.Resource
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			was := answers[m.Header.ID]
			w.api.answer(script(t, m, was))
			got := w.Handle(t.Context(), "edge-1", m)
			if diff := cmp.Diff(wantCalls[name], w.api.seen()); diff != "" {
				t.Errorf("calls of the API (-want +got):\n%s", diff)
			}
			for _, c := range w.api.calls {
				if c.User != "" && c.Group != "system:nodes" {
					t.Errorf("%s in group %q, want system:nodes", c, c.Group)
				}
			}
			if got == nil {
				t.Fatal("answer = nil, want one")
			}
			if was == nil {
				return // it was not recorded
			}
			answered++
			sameAnswer(t, was, got)
		})
	}
	if len(requests) < 12 || answered < 10 {
		t.Errorf("%d recorded requests, %d answers, want 12 and 10 or more", len(requests), answered)
	}
}

// TestRecordedPushes: each object that was recorded on its way to the edge is sent as it was, but for managedFields.
func TestRecordedPushes(t *testing.T) {
	n := 0
	eachRecorded(t, "testdata/recorded.jsonl", func(dir string, m *model.Message) {
		if dir != "cloud->edge" || m.IsResponse() || m.Route.Operation == model.OpDelete {
			return
		}
		n++
		w := newFixture(t)
		w.add(&v1.Pod{
			ObjectMeta: objectMeta("default", "user", "1"), Spec: v1.PodSpec{
				NodeName: "edge-1", Volumes: []v1.Volume{
					{
						VolumeSource: v1.VolumeSource{
							ConfigMap: &v1.ConfigMapVolumeSource{
								LocalObjectReference: v1.LocalObjectReference{Name: "web-conf"},
							},
						}},
				},
			},
		})
		k := key(m.Route.Resource)
		var obj object = map[string]object{"pod": &v1.Pod{}, "node": &v1.Node{}, "configmap": &v1.ConfigMap{}}[k.Type]
		if err := json.Unmarshal(m.Content, obj); err != nil {
			t.Fatal(err)
		}
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // as informers have it
		w.add(obj)
		o, err := w.Object("edge-1", k)
		if err != nil || o == nil {
			t.Fatalf("Object(%s) = %v, %v; want an object", k, o, err)
		}
		if diff := cmp.Diff(normal(t, m.Content), normal(t, o.JSON)); diff != "" {
			t.Errorf("%s mismatch (-want +got):\n%s", k, diff)
		}
		if o.ResourceVersion != m.Header.ResourceVersion {
			t.Errorf("%s: version %s, want %s", k, o.ResourceVersion, m.Header.ResourceVersion)
		}
	})
	if n < 5 {
		t.Errorf("%d recorded pushes, want 5 or more", n)
	}
}

func sameAnswer(t *testing.T, was, got *model.Message) {
	t.Helper()
	if diff := cmp.Diff(was.Route, got.Route); diff != "" {
		t.Errorf("route mismatch (-want +got):\n%s", diff)
	}
	header := got.Header
	header.ID, header.Timestamp = was.Header.ID, was.Header.Timestamp
	if diff := cmp.Diff(was.Header, header); diff != "" {
		t.Errorf("header mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(normal(t, was.Content), normal(t, got.Content)); diff != "" {
		t.Errorf("content mismatch (-want +got):\n%s", diff)
	}
}

// normal is content without what is not compared: managedFields, which no edge reads, and null and empty fields, which
// versions of the API types write or leave out.
func normal(t *testing.T, content json.RawMessage) any {
	t.Helper()
	var out any
	if err := json.Unmarshal(content, &out); err != nil {
		t.Fatal(err)
	}
	top, _ := out.(map[string]any)
	_, err := top["Err"]
	_, object := top["Object"]
	out = prune(out)
	if top, is := out.(map[string]any); is {
		top["has Object and Err"] = err && object
	}
	return out
}

func prune(value any) any {
	switch v := value.(type) {
	case map[string]any:
		delete(v, "managedFields")
		for name, part := range v {
			if v[name] = prune(part); v[name] == nil {
				delete(v, name)
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		if len(v) == 0 {
			return nil
		}
		for i := range v {
			v[i] = prune(v[i])
		}
	}
	return value
}

// script makes the API server say what it must have said for the recorded answer.
func script(t *testing.T, m, was *model.Message) func(call) (int, any) {
	object := map[string]any{}
	code := http.StatusOK
	switch {
	case was == nil || string(was.Content) == `"OK"`:
		if err := json.Unmarshal(m.ContentData(), &object); err != nil {
			t.Fatal(err)
		}
	default:
		if err := json.Unmarshal(was.Content, &object); err != nil {
			t.Fatal(err)
		}
		if e, is := object["Err"].(map[string]any); is {
			object = e["ErrStatus"].(map[string]any)
			object["kind"], object["apiVersion"] = "Status", "v1"
			code = int(object["code"].(float64))
		} else if o, is := object["Object"].(map[string]any); is {
			object = o
			object["apiVersion"] = "v1"
			object["kind"] = map[bool]string{true: "Node", false: "Pod"}[strings.Contains(m.Route.Resource, "/node")]
		}
	}
	return func(c call) (int, any) {
		if c.Method == http.MethodGet && strings.Contains(c.Path, "/pods/") {
			return http.StatusOK, map[string]any{
				"kind": "Pod", "apiVersion": "v1",
				"metadata": metav1.ObjectMeta{
					Name: "web", Namespace: "default", UID: "52a53aab-3e6d-4d2f-a10d-145c4f8f48be",
				},
				"spec": map[string]any{"nodeName": "edge-1", "containers": []any{}},
			}
		}
		return code, object
	}
}
