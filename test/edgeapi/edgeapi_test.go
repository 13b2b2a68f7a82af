// Package edgeapi compares what programs in pods get of the Kubernetes API with what kube-apiserver itself answers; see
// package twin.
package edgeapi

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"net/http"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/edgeapi/twin"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

var (
	seed = flag.Uint64("seed", 1, "the seed of the requests")
	long = flag.Bool("long", false, "send 20,000 requests instead of 500")
)

// account is the service account whose token both sides use.
const account = "twin"

// fixture is a cluster with what requests are about.
type fixture struct {
	*kube.Cluster
	token string
}

func start(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{Cluster: kube.Start(t, kube.Options{APIServerFlags: []string{"--feature-gates=WatchList=true"}})}
	ctx, core := t.Context(), f.Client().CoreV1()
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
	ctx, rbac := t.Context(), f.Client().RbacV1()
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

// side is kube-apiserver itself, for what is written in a namespace.
func (f *fixture) side(t *testing.T, name, namespace string) twin.Side {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(f.CA()) {
		t.Fatal("the cluster's CA cannot be read")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return twin.Side{
		Name:      name,
		URL:       f.URL(),
		Namespace: namespace,
		Token:     f.token,
		Client:    &http.Client{Transport: transport},
	}
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

// TestTwin: the comparison finds no difference where there is none, and each fault that is planted.
func TestTwin(t *testing.T) {
	f := start(t)
	n := 500
	if *long {
		n = 20000
	}
	requests := twin.Requests(*seed, n)
	cluster := f.side(t, "kube-apiserver", "twin-a")
	t.Run("kube-apiserver", func(t *testing.T) {
		report(t, twin.Compare(t.Context(), cluster, f.side(t, "kube-apiserver again", "twin-b"), requests, nil))
	})
	t.Run("planted", func(t *testing.T) {
		for i, fault := range faults {
			t.Run(fault.name, func(t *testing.T) {
				// Their own seed gives them names that nobody has used.
				requests := ofKind(*seed+uint64(i)+1, fault.kind)
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
