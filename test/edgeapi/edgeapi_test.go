// Package edgeapi compares what programs in pods get of the Kubernetes API with what kube-apiserver itself answers; see
// package twin.
package edgeapi

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"net/http"
	"os"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/test/edgeapi/twin"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

var (
	seed = flag.Uint64("seed", 1, "the seed of the requests")
	long = flag.Bool("long", false, "send 20,000 requests instead of 500")
)

// account is the service account whose token both sides use.
const account = "twin"

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// fixture is a cluster with what requests are about.
type fixture struct {
	*env.Cluster
	token string
}

func start(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{Cluster: env.StartCluster(t, built, env.ClusterOptions{
		Address: v1alpha1.HostIP(),
		Kube: kube.Options{
			ControllerManager: true,
			APIServerFlags:    []string{"--kubelet-preferred-address-types=InternalIP"}, // no name of a node is known
		},
		Modules: map[string]any{
			"dynamicController": map[string]any{"enable": true},
			"cloudStream":       map[string]any{"tunnel": v1alpha1.TunnelAuto},
		},
	})}
	ctx, core := t.Context(), f.API.CoreV1()
	for _, name := range []string{twin.Shared, "twin-a", "twin-b"} {
		_, err := core.Namespaces().Create(ctx, &v1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name},
		}, metav1.CreateOptions{})
		env.Must(t, err)
	}
	for name, labels := range twin.Fixed {
		_, err := core.ConfigMaps(twin.Shared).Create(ctx, &v1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Data:       map[string]string{"key": "value of " + name},
		}, metav1.CreateOptions{})
		env.Must(t, err)
	}
	_, err := core.ServiceAccounts(twin.Shared).Create(ctx, &v1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: account},
	}, metav1.CreateOptions{})
	env.Must(t, err)
	f.allow(t)
	answer, err := core.ServiceAccounts(twin.Shared).CreateToken(ctx, account, &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	env.Must(t, err)
	f.token = answer.Status.Token
	return f
}

// allow gives the account its rights: what the requests write, and some of what they read.
func (f *fixture) allow(t *testing.T) {
	t.Helper()
	ctx, rbac := t.Context(), f.API.RbacV1()
	all := []string{"*"}
	for namespace, rules := range map[string][]rbacv1.PolicyRule{
		"": {
			{
				APIGroups: []string{""},
				Resources: []string{"namespaces", "configmaps"},
				Verbs:     []string{"get", "list", "watch"},
			},
			{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list"}},
		},
		twin.Shared: {{APIGroups: []string{""}, Resources: all, Verbs: all}},
		"twin-a":    {{APIGroups: []string{"", "apps"}, Resources: all, Verbs: all}},
		"twin-b":    {{APIGroups: []string{"", "apps"}, Resources: all, Verbs: all}},
	} {
		meta := metav1.ObjectMeta{Name: "twin", Namespace: namespace}
		subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: twin.Shared, Name: account}}
		if namespace == "" {
			_, err := rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
				ObjectMeta: meta,
				Rules:      rules,
			}, metav1.CreateOptions{})
			env.Must(t, err)
			_, err = rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
				ObjectMeta: meta,
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "twin"},
				Subjects:   subjects,
			}, metav1.CreateOptions{})
			env.Must(t, err)
			continue
		}
		role := &rbacv1.Role{ObjectMeta: meta, Rules: rules}
		_, err := rbac.Roles(namespace).Create(ctx, role, metav1.CreateOptions{})
		env.Must(t, err)
		_, err = rbac.RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "twin"},
			Subjects:   subjects,
		}, metav1.CreateOptions{})
		env.Must(t, err)
	}
}

// side is a server of the API, for what is written in a namespace.
func side(t *testing.T, name, url string, ca []byte, namespace, token string) twin.Side {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatalf("the CA of %s cannot be read", name)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return twin.Side{
		Name:      name,
		URL:       url,
		Namespace: namespace,
		Token:     token,
		Client:    &http.Client{Transport: transport},
	}
}

// cluster is kube-apiserver itself.
func (f *fixture) cluster(t *testing.T, namespace string) twin.Side {
	t.Helper()
	return side(t, "kube-apiserver", f.Kube.URL(), f.Kube.CA(), namespace, f.token)
}

// isDeclared reports whether the endpoint may answer differently: it takes no anonymous requests, where kube-apiserver
// answers 403 in the name of system:anonymous.
func isDeclared(r twin.Request, cluster, endpoint *twin.Answer) bool {
	return (r.Kind == "a password" || r.Kind == "no credentials") &&
		cluster.Code == http.StatusForbidden && endpoint.Code == http.StatusUnauthorized
}

func report(t *testing.T, differences []twin.Difference) {
	t.Helper()
	for i, d := range differences {
		if i == 10 {
			t.Errorf("seed %d: %d more differences", *seed, len(differences)-i)
			break
		}
		t.Errorf("seed %d: %v", *seed, d)
	}
}

// TestTwin: with the token of a pod, the endpoint of its device answers as kube-apiserver does. The comparison finds no
// difference where there is none, and each fault that is planted.
func TestTwin(t *testing.T) {
	f := start(t)
	n := 500
	if *long {
		n = 20000
	}
	requests := twin.Requests(*seed, n)
	cluster := f.cluster(t, "twin-a")
	t.Run("endpoint", func(t *testing.T) {
		d := f.startDevice(t)
		report(t, twin.Compare(t.Context(), d.cluster, d.endpoint, requests, isDeclared))
		t.Run("kubectl", d.kubectl)
		t.Run("offline", func(t *testing.T) { d.offline(t, f) })
	})
	t.Run("kube-apiserver", func(t *testing.T) {
		requests := twin.Requests(*seed+1, 100)
		report(t, twin.Compare(t.Context(), cluster, f.cluster(t, "twin-b"), requests, nil))
	})
	t.Run("planted", func(t *testing.T) {
		for i, fault := range faults {
			t.Run(fault.name, func(t *testing.T) {
				// Their own seed gives them names that nobody has used.
				requests := ofKind(*seed+uint64(i)+2, fault.kind)
				if len(requests) == 0 {
					t.Fatalf("no request is of kind %q", fault.kind)
				}
				planted := plant(t, cluster, fault)
				if d := twin.Compare(t.Context(), cluster, planted, requests, nil); len(d) == 0 {
					t.Errorf("%d requests show no difference, want one", len(requests))
				}
			})
		}
	})
}

// ofKind makes requests of one kind.
func ofKind(seed uint64, kind string) []twin.Request {
	requests := twin.Requests(seed, 5*len(twin.Kinds()))
	return slices.DeleteFunc(requests, func(r twin.Request) bool { return r.Kind != kind })
}
