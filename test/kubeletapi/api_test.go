package kubeletapi

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestKubeletAPI goes through a node's life: what it serves and to whom, its certificate, and the time without a cloud.
func TestKubeletAPI(t *testing.T) {
	f := start(t)
	f.Manifest("web", env.Pod("web", env.Forever))
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		// The node looks for its certificate ever more rarely.
		{"certificate", f.testCertificate}, {"routes", f.testRoutes}, {"rights", f.testRights},
		{"too many connections", f.testConnections}, {"offline", f.testOffline},
	} {
		t.Run(step.name, step.run)
	}
}

// testRoutes asks for all that has no suite of its own.
func (f *fixture) testRoutes(t *testing.T) {
	const admin, web = kube.AdminUser, "web-" + nodeName
	for _, c := range []struct{ method, path, begin, has string }{
		{"GET", "/healthz", "200", "ok"},
		{"GET", "/pods", "200", `"name":"` + web + `"`},
		{"GET", "/runningpods/", "200", `"name":"` + web + `"`},
		{"GET", "/configz", "200", `"serverTLSBootstrap":true`},
		{"GET", "/metrics", "200", "kubelet_running_pods 1"},
		{"GET", "/logs/", "200", "href="},
		{"GET", "/logs/../../etc/shadow", "404", ""},
		{"GET", "/debug/pprof/goroutine?debug=1", "200", "goroutine profile"},
		{"POST", "/checkpoint/default/" + web + "/none", "404", "does not run on this node"},
		// containerd 1.6 makes none
		{"POST", "/checkpoint/default/" + web + "/main", "500", "checkpoint of container main of pod default/" + web},
		{"POST", "/pods", "405", ""},
		{"GET", "/nothing", "404", ""},
	} {
		f.answers(t, admin, c.method, c.path, c.begin, c.has)
		f.answers(t, "", c.method, c.path, "401", "")
	}
}

// testRights: subresources of nodes, one by one, for certificates and for tokens.
func (f *fixture) testRights(t *testing.T) {
	for _, user := range []string{"metrics", "logs", "any", "none"} {
		_, err := f.cluster.Kube.AddUser(user)
		env.Must(t, err)
	}
	grant := func(user, resource, verb string) {
		env.Must(t, f.cluster.Kube.Apply(t.Context(), fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-%[1]s}
rules: [{apiGroups: [""], resources: [nodes/%[2]s], verbs: [%[3]s]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-%[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-%[1]s}
subjects: [{kind: User, name: %[1]s}, {kind: ServiceAccount, name: %[1]s, namespace: default}]
`, user, resource, verb)))
	}
	grant("metrics", "metrics", "get")
	grant("logs", "log", "get")
	grant("any", "proxy", "get")
	env.Must(t,
		f.cluster.Kube.Apply(t.Context(),
			"{apiVersion: v1, kind: ServiceAccount, metadata: {name: metrics, namespace: default}}"))
	_, err := f.cluster.Kube.AddServiceAccount(t.Context(), "default", "metrics")
	env.Must(t, err)
	for _, c := range []struct{ who, method, path, begin string }{
		{"metrics", "GET", "/metrics", "200"}, {"default:metrics", "GET", "/metrics", "200"},
		{"metrics", "GET", "/pods", "403"}, {"default:metrics", "GET", "/logs/", "403"},
		{"logs", "GET", "/logs/", "200"}, {"logs", "GET", "/metrics", "403"},
		{"any", "GET", "/pods", "200"}, {"any", "GET", "/configz", "200"}, {"any", "GET", "/metrics", "403"},
		{"any", "GET", "/logs/", "403"},
		{"any", "PUT", "/debug/flags/v", "403"}, {"any", "POST", "/checkpoint/default/x/y", "403"},
		{"none", "GET", "/healthz", "403"}, {"none", "GET", "/nothing", "403"},
	} {
		f.answers(t, c.who, c.method, c.path, c.begin, "")
	}
}

// testCertificate: the cluster signs the port's certificate once someone approves it, for all that the node is called.
func (f *fixture) testCertificate(t *testing.T) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(f.cluster.Kube.CA()) {
		t.Fatalf("AppendCertsFromPEM(%q) = false, want true: the cluster's CA", f.cluster.Kube.CA())
	}
	if err := f.handshake(roots, nodeName); err == nil {
		t.Fatal("the cluster has signed the certificate, want that only once someone has approved it")
	}
	var csr *certificatesv1.CertificateSigningRequest
	wait.Until(t, "the node asks for a certificate", func() error {
		list, err := f.cluster.API.CertificatesV1().CertificateSigningRequests().List(t.Context(),
			metav1.ListOptions{FieldSelector: "spec.signerName=kubernetes.io/kubelet-serving"})
		if err != nil {
			return err
		}
		if len(list.Items) == 0 {
			return errors.New("there is no request")
		}
		csr = &list.Items[0]
		return nil
	})
	if csr.Spec.Username != "system:node:"+nodeName {
		t.Errorf("the request is by %s, want system:node:%s", csr.Spec.Username, nodeName)
	}
	if out, err := f.cluster.Kube.Kubectl(t.Context(), "certificate", "approve", csr.Name); err != nil {
		t.Fatalf("approve the certificate: %v, want no error\n%s", err, out)
	}
	wait.Until(t, "the certificate is served", func() error { return f.handshake(roots, nodeName) })
	node, err := f.cluster.API.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	env.Must(t, err)
	for _, a := range node.Status.Addresses {
		if a.Type == v1.NodeInternalIP {
			env.Must(t, f.handshake(roots, a.Address))
		}
	}
}

// handshake checks the node's certificate for a name.
func (f *fixture) handshake(roots *x509.CertPool, name string) error {
	c, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.KubeletPort), &tls.Config{RootCAs: roots, ServerName: name})
	if err != nil {
		return err
	}
	return c.Close()
}

// testConnections: strangers that hold connections hold up nobody for long.
func (f *fixture) testConnections(t *testing.T) {
	for range 400 {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.KubeletPort))
		env.Must(t, err)
		defer c.Close()
	}
	if out, err := f.Run(t.Context(), "get", "pods"); err != nil || !strings.Contains(out, "web-"+nodeName) {
		t.Errorf("edgecore get pods = %s, %v, want pod web-%s", out, err, nodeName)
	}
	f.answers(t, kube.AdminUser, "GET", "/healthz", "200", "ok")
}

// testOffline: who was let in is, who was not is not; and a node that starts without a cloud still knows the cluster's
// certificates, and serves the one that the cluster signed.
func (f *fixture) testOffline(t *testing.T) {
	_, err := f.cluster.Kube.AddUser("late", "system:masters")
	env.Must(t, err)
	f.cluster.StopCloud()
	f.Condition(health.CloudUnreachable, true)
	f.answers(t, kube.AdminUser, "GET", "/pods", "200", "")
	f.answers(t, "default:metrics", "GET", "/metrics", "200", "")
	f.answers(t, "metrics", "GET", "/pods", "503", "the cluster cannot be asked")
	f.answers(t, "late", "GET", "/pods", "503", "the cluster cannot be asked")
	f.answers(t, "", "GET", "/pods", "401", "")

	env.Must(t, f.Kill9(t.Context()))
	env.Must(t, f.Start(t.Context()))
	f.answers(t, kube.AdminUser, "GET", "/pods", "503", `whether user "admin" may get nodes/pods of `+nodeName)
	f.answers(t, "", "GET", "/pods", "401", "")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.cluster.Kube.CA())
	env.Must(t, f.handshake(roots, nodeName))
	env.Must(t, f.cluster.Cloud.Start(t.Context()))
	f.answers(t, kube.AdminUser, "GET", "/pods", "200", "")
}
