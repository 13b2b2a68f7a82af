package cloud

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/edgecore-io/edgecore/cloud/apihealth"
	"github.com/edgecore-io/edgecore/cloud/monitor"
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

const accessNodes = 3

// TestAccess: what makes cloudcore unready, and when it is ready again, on a real API server.
func TestAccess(t *testing.T) {
	t.Parallel()
	c := start(t, kube.Options{ControllerManager: true}, "base/rbac.yaml")
	a := &access{cloud: c, tracker: apihealth.New()}
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
		{"tokens", tokensRefused},
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
	for a.refused.Load() < 45 && !a.t.Failed() { // each second one
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
