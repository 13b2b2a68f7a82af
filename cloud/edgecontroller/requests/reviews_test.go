package requests

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// TestReviews: what a node may ask about anyone who asks it, in whose name, and what it is told.
func TestReviews(t *testing.T) {
	const (
		tokens = "/apis/authentication.k8s.io/v1/tokenreviews"
		access = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
		config = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
		own    = `{"spec":{"user":"u","resourceAttributes":{"verb":"get","resource":"nodes","subresource":"log","name":"e1"}}}`
	)
	as := func(calls ...string) []string { return calls }
	for _, r := range []struct {
		name, op, res, content, body string
		calls                        []string
		want, not                    string
	}{
		{
			"token", "insert", "null/tokenreview/e1", `{"spec":{"token":"hunter2"}}`,
			`{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"hunter2"},"status":{"authenticated":true,"user":{"username":"u"}}}`,
			as("POST " + tokens + " as system:node:e1"), `"username":"u"`, "hunter2",
		},
		{"no token", "insert", "null/tokenreview/e1", `{}`, `{}`, nil, "the review has no token", ""},
		{
			"in another's name", "insert", "null/tokenreview/e2", `{"spec":{"token":"x"}}`, `{}`, nil,
			`"reason":"Forbidden"`, "",
		},
		{"no review", "insert", "null/tokenreview/e1", `[]`, `{}`, nil, "not a TokenReview", ""},
		{
			"access", "insert", "null/subjectaccessreview/e1", own,
			`{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"user":"u"},"status":{"allowed":true,"reason":"RBAC"}}`,
			as("POST " + access + " as system:node:e1"), `"allowed":true`, "",
		},
		{"access to another node", "insert", "null/subjectaccessreview/e1", strings.ReplaceAll(own, `"e1"`, `"e2"`),
			`{}`, nil, "only about access to its own Node", ""},
		{"access to all nodes", "insert", "null/subjectaccessreview/e1", strings.ReplaceAll(own, `,"name":"e1"`, ""),
			`{}`, nil, "only about access to its own Node", ""},
		{"access to secrets", "insert", "null/subjectaccessreview/e1", strings.ReplaceAll(own, `"nodes"`, `"secrets"`),
			`{}`, nil, "only about access to its own Node", ""},
		{
			"access to nodes of another group", "insert", "null/subjectaccessreview/e1",
			strings.ReplaceAll(own, `"verb"`, `"group":"metrics.k8s.io","verb"`), `{}`, nil,
			"only about access to its own Node", "",
		},
		{
			"access to a path", "insert", "null/subjectaccessreview/e1",
			`{"spec":{"nonResourceAttributes":{"path":"/","verb":"get"}}}`, `{}`, nil, "only about access to its own Node",
			"",
		},
		{
			"CA", "query", "kube-system/clientca/extension-apiserver-authentication", "null",
			`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"namespace":"kube-system","name":"extension-apiserver-authentication","uid":"1","resourceVersion":"7"},"data":{"client-ca-file":"PEM","requestheader-client-ca-file":"OTHER"}}`,
			as("GET " + config + " as cloudcore"), `"client-ca-file":"PEM"`, "OTHER",
		},
		{"another configmap as CA", "query", "kube-system/clientca/kubeadm-config", "null", `{}`, nil, "want kube-system/clientca/extension-apiserver-authentication",
			""},
		{"of another namespace", "query", "default/clientca/extension-apiserver-authentication", "null", `{}`, nil,
			"want kube-system/clientca/extension-apiserver-authentication", ""},
		{"change the CA", "update", "kube-system/clientca/extension-apiserver-authentication", `{}`, `{}`, nil,
			"unknown to this cloudcore", ""},
	} {
		t.Run(r.name, func(t *testing.T) {
			w := newFixture(t)
			w.api.Answer(func(fakes.Call) (int, any) { return 200, json.RawMessage(r.body) })
			answer := w.ask("e1", r.op, r.res, r.content)
			if text := string(answer.Content); !strings.Contains(text, r.want) ||
				r.not != "" && strings.Contains(text, r.not) {
				t.Errorf("%s; want %s and not %q", text, r.want, r.not)
			}
			if diff := cmp.Diff(r.calls, w.api.Seen()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}
