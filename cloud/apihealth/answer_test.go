package apihealth

import (
	"encoding/json"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/transport"
)

// TestTarget: of what kind the requests of cloudcore are.
func TestTarget(t *testing.T) {
	for _, tc := range []struct {
		method, path, user, want string
	}{
		{"PATCH", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/e1", "system:node:e1", "lease of e1"},
		{"POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", "system:node:e1", "lease of e1"},
		{"PUT", "/apis/coordination.k8s.io/v1/namespaces/kubeedge/leases/cloudcore-1", "", "replica"},
		{"GET", "/apis/coordination.k8s.io/v1/namespaces/kubeedge/leases/cloudcore-1", "", "get leases (read)"},
		{"GET", "/apis/coordination.k8s.io/v1/namespaces/kubeedge/leases?labelSelector=a", "", "list leases (read)"},
		{"GET", "/api/v1/pods?watch=true", "", "watch pods (read)"},
		{"GET", "/api/v1/namespaces/a/secrets/s", "system:node:e1", "get secrets for nodes (read) of e1"},
		{"GET", "/api/v1/namespaces/kubeedge", "", "get namespaces (read)"},
		{"PATCH", "/api/v1/namespaces/a/pods/p/status", "system:node:e1", "podstatus of e1"},
		{"PATCH", "/api/v1/namespaces/api/pods/p", "", "toleration"},
		{"PATCH", "/apis/x/v1/namespaces/api/objectsyncs/api/status", "", "record"},
		{"DELETE", "/api/v1/namespaces/a/pods/p", "system:node:e1", "pod of e1"},
		{"POST", "/api/v1/namespaces/a/serviceaccounts/s/token", "system:node:e1", "token of e1"},
		{"POST", "/api/v1/namespaces/a/events", "system:node:e1", "event of e1"},
		{"POST", "/api/v1/namespaces/a/events", "", "deviceevent"},
		{"POST", "/api/v1/nodes", "", "registration"},
		{"PATCH", "/api/v1/nodes/e1", "", "nodelabels"},
		{"POST", "/api/v1/nodes?dryRun=All", "system:node:e1", "node of e1"},
		{"PATCH", "/api/v1/nodes/e1/status", "system:node:e1", "nodestatus of e1"},
		{"PUT", "/api/v1/namespaces/kubeedge/secrets/tokensecret", "", "secret"},
		{"PATCH", "/k8s/clusters/one/apis/devices.kubeedge.io/v1beta1/namespaces/a/devices/d", "", "device"},
		{"POST", "/apis/made.up/v1/things", "", "other"},
		{"POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", "system:node:e1", ""},
		{"GET", "/version", "", ""},
		{"GET", "/apis/apps", "", ""},
		{"GET", "/api", "", ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), tc.method, "https://192.0.2.1"+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tc.user != "" {
			r.Header.Set(transport.ImpersonateUserHeader, tc.user)
		}
		target, ok := targetOf(r)
		got := target.kind
		if !target.write && ok {
			got += " (read)"
		}
		if target.node != "" && ok {
			got += " of " + target.node
		}
		if got != tc.want {
			t.Errorf("%s %s as %q is %q, want %q", tc.method, tc.path, tc.user, got, tc.want)
		}
	}
}

// TestForNode: what cloudcore writes in its own name may be about a node. What it writes in a node's name is that
// node's.
func TestForNode(t *testing.T) {
	for user, want := range map[string]target{
		"":               {kind: "deviceevent", about: "e1", write: true},
		"system:node:e2": {kind: "event", node: "e2", write: true},
	} {
		r, err := http.NewRequestWithContext(ForNode(t.Context(), "e1"), http.MethodPost,
			"https://192.0.2.1/api/v1/namespaces/a/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		if user != "" {
			r.Header.Set(transport.ImpersonateUserHeader, user)
		}
		if got, ok := targetOf(r); !ok || got != want {
			t.Errorf("as %q: %+v, %t; want %+v", user, got, ok, want)
		}
	}
}

// TestJudge: what answers say. The messages are kube-apiserver's.
func TestJudge(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	failure := func(code int32, message string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure, Code: code, Message: message,
		}}
	}
	terminating := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: 403, Message: `events "x" is forbidden: unable to create new content in ` +
			`namespace a because it is being terminated`,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "NamespaceTerminating"}}},
	}}
	const account = `User "system:serviceaccount:kubeedge:cloudcore" cannot `
	write, own := target{kind: "podstatus", node: "e1", write: true}, target{kind: "device", write: true}
	about, secret := target{kind: "device", about: "e1", write: true}, target{kind: kindSecret, write: true}
	read, ownRead := target{kind: "get secrets for nodes", node: "e1"}, target{kind: "get secrets"}
	for name, tc := range map[string]struct {
		target  target
		code    int
		err     error  // a Status
		text    string // another answer
		verdict verdict
		remedy  string
	}{
		"success": {target: write, code: 200, verdict: accepted},
		"cloudcore may not": {target: own, code: 403, err: failure(403, "devices is forbidden: "+account+"patch"),
			verdict: refusedSelf, remedy: remedyRights},
		"cloudcore may not act as the node": {target: write, code: 403, err: failure(403, `users "system:node:e1" is `+
			`forbidden: `+account+`impersonate resource "users"`), verdict: refusedSelf, remedy: remedyRights},
		"cloudcore may not act as the node, to read": {target: read, code: 403, err: failure(403, `secrets is `+
			`forbidden: `+account+`impersonate-on:arbitrary-node:get resource`), verdict: refusedSelf,
			remedy: remedyRights},
		"cloudcore may not read": {target: ownRead, code: 403, err: failure(403, "secrets is forbidden: "+account),
			verdict: refusedSelf, remedy: remedyRights},
		"the node may not": {target: write, code: 403, err: failure(403, `pods "p" is forbidden: User "system:node:e1"`+
			` cannot patch resource "pods/status"`), verdict: refusedNode, remedy: remedyNodes},
		"the node may not read": {target: read, code: 403, err: failure(403, `secrets "s" is forbidden: User `+
			`"system:node:e1" cannot get resource "secrets": no relationship found`)},
		"NodeRestriction": {target: write, code: 403, err: failure(403, `pods "p" is forbidden: node "e1" can only `+
			`update pod status for pods with spec.nodeName set to itself`), verdict: refusedNode, remedy: remedyNodes},
		"a namespace that is being deleted": {target: write, code: 403, err: terminating},
		"an admission policy": {target: write, code: 422, err: failure(422, `pods "p" is forbidden: `+
			`ValidatingAdmissionPolicy 'x' denied request`), verdict: refusedNode, remedy: remedyNodes},
		"an admission policy refuses cloudcore one object": {target: own, code: 422, err: failure(422, `denied`)},
		"an admission policy refuses cloudcore what belongs to a node": {target: about, code: 422,
			err: failure(422, `denied`), verdict: refusedNode, remedy: remedyAdmission},
		"an admission policy refuses cloudcore a secret of its own": {target: secret, code: 422,
			err: failure(422, `denied`), verdict: refusedSelf, remedy: remedyAdmission},
		"a webhook refuses cloudcore its Lease": {target: target{kind: kindReplica, write: true}, code: 500,
			err: failure(500, `failed calling webhook "x"`), verdict: refusedSelf, remedy: remedyAdmission},
		"a quota": {target: about, code: 403, err: failure(403, `devicestatuses "d" is forbidden: exceeded quota: q, `+
			`requested: count/devicestatuses.devices.kubeedge.io=1`)},
		"a webhook": {target: write, code: 400, err: failure(400, "admission webhook denied"), verdict: refusedNode,
			remedy: remedyNodes},
		"a webhook that does not answer": {target: write, code: 500, err: failure(500, "Internal error occurred: "+
			`failed calling webhook "x"`), verdict: refusedNode, remedy: remedyNodes},
		"credentials": {target: write, code: 401, err: failure(401, "Unauthorized"), verdict: refusedSelf,
			remedy: remedyUser},
		"credentials, without a Status": {target: ownRead, code: 401, verdict: refusedSelf, remedy: remedyUser},
		"a proxy in front": {target: write, code: 403, text: "<html>Forbidden</html>", verdict: refusedSelf,
			remedy: remedyProxy},
		"an object that does not exist": {target: write, code: 404, err: apierrors.NewNotFound(pods, "p")},
		"a CRD that does not exist": {target: own, code: 404, text: "404 page not found\n", verdict: refusedSelf,
			remedy: remedyCRDs},
		"a CRD that does not exist, with others of its group": {target: own, code: 404, err: failure(404, "the server "+
			"could not find the requested resource"), verdict: refusedSelf, remedy: remedyCRDs},
		"a CRD that is looked for": {target: ownRead, code: 404, text: "404 page not found\n"},
		"conflict":                 {target: write, code: 409, err: apierrors.NewConflict(pods, "p", nil)},
		"overload":                 {target: write, code: 429, err: failure(429, "too many requests")},
		"outage":                   {target: write, code: 503, text: "no healthy upstream"},
		"outage of etcd":           {target: write, code: 500, err: failure(500, "etcdserver: request timed out")},
	} {
		t.Run(name, func(t *testing.T) {
			bodies := map[string][]byte{"text": []byte(tc.text)}
			if status, ok := tc.err.(apierrors.APIStatus); ok {
				bodies = encoded(t, status.Status())
			}
			for format, body := range bodies {
				got := tc.target.classify(tc.code, body)
				if got.verdict != tc.verdict || got.remedy != tc.remedy {
					t.Errorf("%s: verdict %d, remedy %q; want %d, %q", format, got.verdict, got.remedy, tc.verdict,
						tc.remedy)
				}
			}
		})
	}
}

// encoded returns a Status in the formats of kube-apiserver.
func encoded(t *testing.T, status metav1.Status) map[string][]byte {
	t.Helper()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	text, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		t.Fatal("there is no protobuf, want it")
	}
	binary, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, schema.GroupVersion{Version: "v1"}),
		&status)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"json": text, "protobuf": binary}
}
