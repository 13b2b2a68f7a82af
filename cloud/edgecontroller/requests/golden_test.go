package requests

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// recordedFile has the messages that were recorded between an upstream edge and cloud.
const recordedFile = "testdata/recorded.jsonl"

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
	requests, answers := fakes.Recorded(t, recordedFile)
	answered := 0
	for _, m := range requests {
		name := m.Route.Operation + " " + m.Route.Resource
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			was := answers[m.Header.ID]
			w.api.Answer(script(t, m, was))
			got := w.Handle(t.Context(), "edge-1", m)
			if diff := cmp.Diff(wantCalls[name], w.api.Seen()); diff != "" {
				t.Errorf("calls of the API (-want +got):\n%s", diff)
			}
			for _, c := range w.api.Calls {
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
	if diff := cmp.Diff(fakes.Normal(t, was.Content), fakes.Normal(t, got.Content)); diff != "" {
		t.Errorf("content mismatch (-want +got):\n%s", diff)
	}
}

// script makes the API server say what it must have said for the recorded answer.
func script(t *testing.T, m, was *model.Message) func(fakes.Call) (int, any) {
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
	return func(c fakes.Call) (int, any) {
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
