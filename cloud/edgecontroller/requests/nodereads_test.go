package requests

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// TestNodeReads: what is read of the API server, and in whose name.
func TestNodeReads(t *testing.T) {
	const bundles = "/apis/certificates.k8s.io/v1/clustertrustbundles"
	const oldBundles = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles"
	as := func(calls ...string) []string {
		for i := range calls {
			calls[i] += " as system:node:e1"
		}
		return calls
	}
	for _, r := range []struct {
		name, op, res, content string
		// body is what the API server answers to what it knows: paths that begin so.
		knows, body string
		calls       []string
		want        string
	}{
		{
			"runtime class", "query", "null/runtimeclass/x", "null", "/apis/node.k8s.io/v1/",
			`{"kind":"RuntimeClass","apiVersion":"node.k8s.io/v1","metadata":{"name":"x"},"handler":"h"}`,
			as("GET /apis/node.k8s.io/v1/runtimeclasses/x"),
			`{"kind":"RuntimeClass","apiVersion":"node.k8s.io/v1","metadata":{"name":"x"},"handler":"h"}`,
		},
		{
			"driver", "query", "null/csidriver/x", "null", "/",
			`{"kind":"CSIDriver","apiVersion":"storage.k8s.io/v1","metadata":{"name":"x"}}`,
			as("GET /apis/storage.k8s.io/v1/csidrivers/x"), `"kind":"CSIDriver"`,
		},
		{
			"own CSINode", "query", "null/csinode/e1", "null", "/",
			`{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":"e1"}}`,
			as("GET /apis/storage.k8s.io/v1/csinodes/e1"), `"kind":"CSINode"`,
		},
		{"another's CSINode", "query", "null/csinode/e2", "null", "/", `{}`, nil, `"reason":"Forbidden"`},
		{
			"make CSINode", "insert", "null/csinode/e1", `{"metadata":{"name":"e1"}}`, "/",
			`{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":"e1","resourceVersion":"4"}}`,
			as("POST /apis/storage.k8s.io/v1/csinodes"), `"resourceVersion":"4"`,
		},
		{
			"change CSINode", "update", "null/csinode/e1", `{"metadata":{"name":"e1"}}`, "/",
			`{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":"e1"}}`,
			as("PUT /apis/storage.k8s.io/v1/csinodes/e1"), `"Object":{`,
		},
		{
			"make another's CSINode", "insert", "null/csinode/e2", `{"metadata":{"name":"e2"}}`, "/", `{}`, nil,
			`"Err":{"ErrStatus"`,
		},
		{"make another's under one's own name", "insert", "null/csinode/e1", `{"metadata":{"name":"e2"}}`, "/", `{}`,
			nil, `"reason":"BadRequest"`},
		{"delete CSINode", "delete", "null/csinode/e1", `{}`, "/", `{}`, nil, `unknown to this cloudcore`},
		{"change a class", "update", "null/runtimeclass/x", `{}`, "/", `{}`, nil, `unknown to this cloudcore`},
		{"all classes", "query", "null/runtimeclass", "null", "/", `{}`, nil, `it has no name`},
		{
			"bundle", "query", "null/clustertrustbundle/x", "null", "/",
			`{"kind":"ClusterTrustBundle","apiVersion":"certificates.k8s.io/v1","metadata":{"name":"x"},"spec":{"trustBundle":"b"}}`,
			as("GET " + bundles + "/x"), `"trustBundle":"b"`,
		},
		{
			"bundle, old", "query", "null/clustertrustbundle/x", "null", oldBundles,
			`{"kind":"ClusterTrustBundle","apiVersion":"certificates.k8s.io/v1beta1","metadata":{"name":"x"},"spec":{"signerName":"s","trustBundle":"b"}}`,
			as("GET "+bundles+"/x", "GET "+oldBundles+"/x"),
			`{"kind":"ClusterTrustBundle","apiVersion":"certificates.k8s.io/v1","metadata":{"name":"x"},"spec":{"signerName":"s","trustBundle":"b"}}`,
		},
		{"no bundle", "query", "null/clustertrustbundle/x", "null", "-", ``,
			as("GET "+bundles+"/x", "GET "+oldBundles+"/x"), `"reason":"NotFound"`},
		{
			"bundles", "query", "null/clustertrustbundle", "null", "/",
			`{"kind":"ClusterTrustBundleList","apiVersion":"certificates.k8s.io/v1","items":[{"metadata":{"name":"x"},"spec":{"trustBundle":"b"}}]}`,
			as("GET " + bundles),
			`[{"kind":"ClusterTrustBundle","apiVersion":"certificates.k8s.io/v1","metadata":{"name":"x"},"spec":{"trustBundle":"b"}}]`,
		},
		{
			"bundles, old", "query", "null/clustertrustbundle", "null", oldBundles,
			`{"kind":"ClusterTrustBundleList","apiVersion":"certificates.k8s.io/v1beta1","items":[{"metadata":{"name":"x"},"spec":{"trustBundle":"b"}}]}`,
			as("GET "+bundles, "GET "+oldBundles),
			`[{"kind":"ClusterTrustBundle","apiVersion":"certificates.k8s.io/v1","metadata":{"name":"x"},"spec":{"trustBundle":"b"}}]`,
		},
		{
			"bundles, none", "query", "null/clustertrustbundle", "null", "/",
			`{"kind":"ClusterTrustBundleList","apiVersion":"certificates.k8s.io/v1","items":[]}`,
			as("GET " + bundles), `[]`,
		},
		{"bundles, unknown", "query", "null/clustertrustbundle", "null", "-", ``,
			as("GET "+bundles, "GET "+oldBundles), `"reason":"NotFound"`},
	} {
		t.Run(r.name, func(t *testing.T) {
			w := newFixture(t)
			w.api.Answer(func(c fakes.Call) (int, any) {
				if !strings.HasPrefix(c.Path, r.knows) {
					return fakes.NotFound(c.Path)
				}
				return 200, json.RawMessage(r.body)
			})
			answer := w.ask("e1", r.op, r.res, r.content)
			if !strings.Contains(string(answer.Content), r.want) {
				t.Errorf("%s; want %s", answer.Content, r.want)
			}
			if diff := cmp.Diff(r.calls, w.api.Seen()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}
