package cloud

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/edgecore-io/edgecore/cloud/apihealth"
	"github.com/edgecore-io/edgecore/cloud/monitor"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// access is a cloudcore with three nodes that renew their Leases, report their statuses and ask for tokens each second.
type access struct {
	*cloud
	tracker *apihealth.Tracker
	ready   http.Handler
	// forbidden makes the proxy in front of kube-apiserver answer 403 to everything.
	forbidden atomic.Bool
	// refused counts the statuses of the first node that were refused.
	refused atomic.Int64
}

const (
	accessNodes = 3
	// accessTime is how long refusals last until cloudcore is unready, which it is after 30 s elsewhere.
	accessTime = 3 * time.Second
	// refusedOften is a number of refusals, one each second, that lasts much longer.
	refusedOften = 12
)

// TestAccess: what makes cloudcore unready, and when it is ready again, on a real API server.
func TestAccess(t *testing.T) {
	t.Parallel()
	c := start(t, kube.Options{ControllerManager: true}, "base/rbac.yaml")
	a := &access{cloud: c, tracker: apihealth.NewFor(accessTime)}
	a.proxied()
	parts := monitor.NewParts("api-access")
	parts.SetReadyCheck("api-access", a.tracker.Err)
	a.ready = monitor.Handler(parts, monitor.NewRegistry(), false)
	c.config.Wrap(a.tracker.Wrap)
	c.control()
	c.defaultAccount()
	a.work()
	for _, step := range []struct {
		name string
		run  func(*access)
	}{
		{"one node is refused for ever", oneNodeRefused},
		{"all nodes are refused", allNodesRefused},
		{"a webhook refuses", webhookRefuses},
		{"new nodes are refused", registrationRefused},
		{"tokens", tokensRefused},
		{"the binding is removed", bindingRemoved},
		{"a proxy answers 403", proxyRefuses},
		{"a service account that is gone", accountGone},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			sub := *c
			sub.t = t
			old := a.cloud
			a.cloud = &sub
			defer func() { a.cloud = old }()
			step.run(a)
		}) {
			return
		}
	}
}

// proxied puts a proxy in front of kube-apiserver.
func (a *access) proxied() {
	a.t.Helper()
	target, err := url.Parse(a.config.Host)
	if err != nil {
		a.t.Fatal(err)
	}
	through, err := rest.TransportFor(rest.AnonymousClientConfig(a.config))
	if err != nil {
		a.t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     through,
		FlushInterval: -1,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.forbidden.Load() {
			http.Error(w, "<html>Forbidden by the proxy</html>", http.StatusForbidden)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	a.t.Cleanup(server.Close)
	a.t.Cleanup(server.CloseClientConnections)
	a.config.Host, a.config.TLSClientConfig = server.URL, rest.TLSClientConfig{}
}

// work registers the nodes, and lets each do each second what nodes do, until the test ends.
func (a *access) work() {
	stop := make(chan struct{})
	var nodes sync.WaitGroup
	a.t.Cleanup(nodes.Wait)
	a.t.Cleanup(func() { close(stop) })
	for i := range accessNodes {
		name := fmt.Sprintf("a%d", i)
		a.register(name)
		pod := a.pod(name, "runs-"+name, "")
		ask := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: new(int64(3607)),
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID,
			},
		}}
		c := a.cloud
		nodes.Go(func() {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				_ = c.ctl.Heartbeat(c.t.Context(), name)
				c.ask(name, "query", "default/serviceaccounttoken/default", ask)
				status := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"message":"%d"}}`, pod.UID, n)
				m := c.ask(name, "patch", "default/podpatch/"+pod.Name, status)
				if m != nil && i == 0 && strings.Contains(string(m.Content), "refused by a test") {
					a.refused.Add(1)
				}
			}
		})
	}
}

// readyz returns why cloudcore is not ready; "" if it is.
func (a *access) readyz() string {
	w := httptest.NewRecorder()
	a.ready.ServeHTTP(w, httptest.NewRequestWithContext(a.t.Context(), http.MethodGet, "/readyz", nil))
	if w.Code == http.StatusOK {
		return ""
	}
	return w.Body.String()
}

// unready waits until cloudcore is not ready for all of these reasons.
func (a *access) unready(reasons ...string) {
	a.t.Helper()
	wait.Until(a.t, "cloudcore not to be ready", func() error {
		got := a.readyz()
		for _, want := range reasons {
			if !strings.Contains(got, want) {
				return fmt.Errorf("readyz is %q, want %q in it", got, want)
			}
		}
		return nil
	})
}

func (a *access) readyAgain() {
	a.t.Helper()
	wait.Until(a.t, "cloudcore to be ready again", func() error {
		if why := a.readyz(); why != "" {
			return errors.New(why)
		}
		return nil
	})
}

// refusal is a policy that refuses the statuses of nodes.
func refusal(users string) string {
	return strings.ReplaceAll(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: refusal}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods/status]}]
  matchConditions: [{name: nodes, expression: "request.userInfo.username.matches('^system:node:USERS$')"}]
  validations: [{expression: "false", message: refused by a test}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: refusal}
spec: {policyName: refusal, validationActions: [Deny]}
`, "USERS", users)
}

func oneNodeRefused(a *access) {
	a.apply(refusal("a0"))
	for a.refused.Load() < refusedOften && !a.t.Failed() {
		before := a.refused.Load()
		wait.True(a.t, "another status to be refused", func() bool {
			if why := a.readyz(); why != "" {
				a.t.Fatalf("readyz with one broken node: %s, want ok", why)
			}
			return a.refused.Load() > before
		})
	}
}

func allNodesRefused(a *access) {
	a.apply(refusal("a.*"))
	a.unready("podstatus refused", "for 3 nodes", "refused by a test", "admission policies")
	if why := a.readyz(); strings.Contains(why, "lease") || strings.Contains(why, "token") {
		a.t.Errorf("readyz: %s, want nothing of leases and tokens, which are accepted", why)
	}
	a.apply(refusal("none"))
	a.readyAgain()
}

// webhookRefuses: an admission webhook denies the statuses of all nodes, and then does not answer any more.
func webhookRefuses(a *access) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{
			UID:    review.Request.UID,
			Result: &metav1.Status{Message: "refused by a webhook"},
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer server.Close()
	ca := base64.StdEncoding.EncodeToString(certs.EncodeCertPEM(server.Certificate().Raw))
	a.apply(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: refusal}
webhooks:
- name: refusal.example.com
  clientConfig: {url: "` + server.URL + `", caBundle: ` + ca + `}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods/status]}]
  matchConditions: [{name: nodes, expression: "request.userInfo.username.startsWith('system:node:')"}]
  sideEffects: None
  admissionReviewVersions: [v1]
  timeoutSeconds: 1
  failurePolicy: Fail
`)
	a.unready("podstatus refused", "for 3 nodes", "refused by a webhook", "admission policies and webhooks")
	server.Close()
	a.unready("podstatus refused", "for 3 nodes", "failed calling webhook", "admission policies and webhooks")
	if why := a.readyz(); strings.Contains(why, "lease") || strings.Contains(why, "token") {
		a.t.Errorf("readyz: %s, want nothing of leases and tokens, which are accepted", why)
	}
	if out, err := a.cluster.Kubectl(a.t.Context(), "delete", "validatingwebhookconfiguration", "refusal"); err != nil {
		a.t.Fatalf("delete the webhook: %v\n%s", err, out)
	}
	a.readyAgain()
}

// registrationPolicy refuses the Nodes that cloudcore creates in its own name.
const registrationPolicy = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: registration}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [nodes]}]
  matchConditions:
  - {name: own, expression: "request.userInfo.username == 'system:serviceaccount:kubeedge:cloudcore'"}
  validations: [{expression: "false", message: no more devices}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: registration}
spec: {policyName: registration, validationActions: [Deny]}
`

// registrationRefused: a policy refuses the Nodes that cloudcore creates in its own name. One device that is refused
// for ever does not make it unready; five do.
func registrationRefused(a *access) {
	a.apply(registrationPolicy)
	object := filepath.Join(a.t.TempDir(), "node.yaml")
	if err := os.WriteFile(object, []byte("{apiVersion: v1, kind: Node, metadata: {name: none, labels: "+
		"{node-role.kubernetes.io/edge: ''}}}"), 0o600); err != nil {
		a.t.Fatal(err)
	}
	wait.Until(a.t, "the policy to be in force", func() error {
		_, err := a.cluster.Kubectl(a.t.Context(), "create", "--dry-run=server", "-f", object,
			"--as=system:serviceaccount:kubeedge:cloudcore")
		if err != nil && strings.Contains(err.Error(), "no more devices") {
			return nil
		}
		return fmt.Errorf("cloudcore creates a Node: %v, want it refused", err)
	})
	const many = 5
	for i := range many {
		name := fmt.Sprintf("new%d", i)
		a.ctl.Connected(a.t.Context(), name, "edgecore/websocket")
		defer a.ctl.Disconnected(name, "the test ended")
	}
	refused := func(nodes int) (refused bool) {
		for i := range nodes {
			name := fmt.Sprintf("new%d", i)
			m := a.ask(name, "insert", "null/node/"+name, edgeNode(name))
			refused = refused || m != nil && strings.Contains(string(m.Content), "no more devices")
		}
		return refused
	}
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for range refusedOften {
		<-second.C
		if !refused(1) {
			a.t.Fatal("a node is registered, want it refused")
		}
		if why := a.readyz(); why != "" {
			a.t.Fatalf("readyz with one node that cannot register: %s, want ok", why)
		}
	}
	wait.Until(a.t, "cloudcore not to be ready", func() error {
		refused(many)
		if why := a.readyz(); !strings.Contains(why, "registration refused") ||
			!strings.Contains(why, "no more devices") || !strings.Contains(why, "admission policies") {
			return fmt.Errorf("readyz is %q, want the registration in it", why)
		}
		return nil
	})
	a.apply(strings.Replace(registrationPolicy, `"false"`, `"true"`, 1))
	wait.Until(a.t, "cloudcore to be ready again", func() error {
		refused(many)
		if why := a.readyz(); why != "" {
			return errors.New(why)
		}
		return nil
	})
}

// bindingRemoved: somebody deletes the binding of cloudcore's rights.
func bindingRemoved(a *access) {
	out, err := a.cluster.Kubectl(a.t.Context(), "delete", "clusterrolebinding", "cloudcore")
	if err != nil {
		a.t.Fatalf("delete the binding: %v\n%s", err, out)
	}
	a.unready("lease", "podstatus", "token", "deploy/cloudcore/base/rbac.yaml")
	a.apply(manifest(a.t, "base/rbac.yaml"))
	a.readyAgain()
}

// tokensRefused removes one right from the ClusterRole, as an outdated manifest lacks it.
func tokensRefused(a *access) {
	const rule = "- apiGroups: [\"\"]\n  resources: [serviceaccounts/token]\n" +
		"  verbs: [\"impersonate-on:arbitrary-node:create\"]\n"
	rights := manifest(a.t, "base/rbac.yaml")
	if !strings.Contains(rights, rule) {
		a.t.Fatalf("rbac.yaml has no rule %q, want it", rule)
	}
	a.apply(strings.Replace(rights, rule, "", 1))
	a.unready("token refused", "serviceaccount:kubeedge:cloudcore", "deploy/cloudcore/base/rbac.yaml")
	if why := a.readyz(); strings.Contains(why, "lease") || strings.Contains(why, "podstatus") {
		a.t.Errorf("readyz: %s, want nothing of leases and statuses, which are accepted", why)
	}
	a.apply(rights)
	a.readyAgain()
}

func proxyRefuses(a *access) {
	a.forbidden.Store(true)
	a.unready("403 Forbidden", "lease", "podstatus", "token", "the proxy or load balancer")
	a.forbidden.Store(false)
	a.readyAgain()
}

// accountGone deletes the service account: its tokens are not valid any more.
func accountGone(a *access) {
	out, err := a.cluster.Kubectl(a.t.Context(), "delete", "serviceaccount", "cloudcore", "-n", "kubeedge")
	if err != nil {
		a.t.Fatalf("delete the service account: %v\n%s", err, out)
	}
	a.unready("401", "Unauthorized", "lease", "podstatus", "token", "check the service account kubeedge/cloudcore")
}
