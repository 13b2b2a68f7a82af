package cloud

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestManifests: the API server takes them all, their configuration has no fault but addresses that an operator has to
// set, and cloudcore may do what it has to, and no more. Without them, it says what to do.
func TestManifests(t *testing.T) {
	t.Parallel()
	c := start(t, kube.Options{})
	if _, err := impersonate.Choose(t.Context(), c.config); err == nil ||
		!strings.Contains(err.Error(), "rbac.yaml") {
		t.Errorf("ChooseImpersonation without rights: %v, want an error that names base/rbac.yaml", err)
	}
	deploy := filepath.Join("..", "..", "deploy")
	for _, args := range [][]string{
		{"-k", filepath.Join(deploy, "cloudcore", "setup")}, {"-k", filepath.Join(deploy, "cloudcore", "loadbalancer")},
		{"-f", filepath.Join(deploy, "mappers")},
	} {
		if out, err := c.cluster.Kubectl(t.Context(), append([]string{"apply"}, args...)...); err != nil {
			t.Fatalf("apply the manifests %v: %v, want no error\n%s", args, err, out)
		}
	}
	for name, want := range map[string]string{
		"base/config.yaml":        "modules.cloudHub.advertiseAddress: [] is not allowed",
		"hostnetwork/config.yaml": "",
	} {
		var config v1.ConfigMap
		if err := yaml.UnmarshalStrict([]byte(manifest(t, name)), &config); err != nil {
			t.Fatal(err)
		}
		_, warnings, err := v1alpha1.Parse([]byte(config.Data["cloudcore.yaml"]))
		if err == nil {
			err = errors.New("")
		}
		if got := err.Error(); !strings.Contains(got, want) || (want == "") != (got == "") || len(warnings) > 0 {
			t.Errorf("%s: error %q, warnings %q; want %q in the one and no other", name, got, warnings, want)
		}
	}

	const all = ""
	for _, row := range []struct {
		verb, resource, namespace, name string
		may                             bool
	}{
		{"watch", "pods", all, "", true}, {"watch", "secrets", all, "", true}, {"get", "configmaps", "any", "x", true},
		{"create", "nodes", all, "", true}, {"patch", "nodes", all, "", true}, {"patch", "pods", "any", "", true},
		{"get", "namespaces", all, "kubeedge", true},
		{"create", "secrets", "kubeedge", "", true}, {"update", "secrets", "kubeedge", "casecret", true},
		{"get", "secrets", "kubeedge", "tokenkeysecret", true},
		{"update", "secrets", "kubeedge", "edgecore-revocations", true}, {"watch", "secrets", "kubeedge", "", true},
		{"update", "leases.coordination.k8s.io", "kubeedge", "cloudcore-192-0-2-2", true},
		{"deletecollection", "leases.coordination.k8s.io", "kubeedge", "", false},
		{"create", "objectsyncs.reliablesyncs.kubeedge.io", "any", "", true},
		{"patch", "clusterobjectsyncs.reliablesyncs.kubeedge.io/status", all, "", true},
		{"impersonate:arbitrary-node", "nodes.authentication.k8s.io", all, "e1", true},
		{"impersonate-on:arbitrary-node:create", "serviceaccounts/token", "any", "default", true},

		{"update", "nodes", all, "", false}, {"delete", "nodes", all, "", false}, {"delete", "pods", "any", "", false},
		{"create", "pods", "any", "", false},
		{"create", "pods/exec", "any", "", false}, {"patch", "pods/status", "any", "", false},
		{"update", "secrets", "kubeedge", "other", false},
		{"create", "secrets", "default", "", false}, {"update", "configmaps", "any", "", false},
		{"create", "serviceaccounts/token", "any", "", false},
		{"impersonate", "users", all, "admin", false}, {"impersonate", "groups", all, "system:masters", false},
		{"impersonate-on:arbitrary-node:delete", "nodes", all, "", false}, {"get", "namespaces", all, "default", false},
		{"update", "leases.coordination.k8s.io", "kube-node-lease", "", false},
		{"create", "clusterroles.rbac.authorization.k8s.io", all, "", false},
	} {
		resource, sub, _ := strings.Cut(row.resource, "/")
		resource, group, _ := strings.Cut(resource, ".")
		// The authorizer hears of roles a moment after they are made.
		wait.Until(c.t, fmt.Sprintf("%s %s in %q, name %q: allowed is %v", row.verb, row.resource, row.namespace,
			row.name, row.may), func() error {
			review, err := c.admin.AuthorizationV1().SubjectAccessReviews().Create(t.Context(),
				&authorizationv1.SubjectAccessReview{
					Spec: authorizationv1.SubjectAccessReviewSpec{
						User: "system:serviceaccount:kubeedge:cloudcore",
						Groups: []string{
							"system:serviceaccounts", "system:serviceaccounts:kubeedge", "system:authenticated",
						},
						ResourceAttributes: &authorizationv1.ResourceAttributes{
							Verb:        row.verb,
							Group:       group,
							Resource:    resource,
							Subresource: sub,
							Namespace:   row.namespace,
							Name:        row.name,
						},
					}}, metav1.CreateOptions{})
			if err == nil && review.Status.Allowed != row.may {
				err = errors.New("it is not")
			}
			return err
		})
	}
	if may := allowedVerbs(t, c); may != "create get list patch watch" {
		t.Errorf("cloudcore may %q nodes in its own name, want create get list patch watch", may)
	}
}

// allowedVerbs asks which plain verbs cloudcore may use on nodes.
func allowedVerbs(t *testing.T, c *cloud) string {
	t.Helper()
	out, err := c.cluster.Kubectl(t.Context(), "auth", "can-i", "--list",
		"--as=system:serviceaccount:kubeedge:cloudcore")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) > 0 && fields[0] == "nodes" {
			verbs := strings.Fields(strings.Trim(line[strings.LastIndex(line, "["):], "[]\n "))
			var plain []string
			for _, v := range verbs {
				if !strings.Contains(v, ":") {
					plain = append(plain, v)
				}
			}
			return strings.Join(slices.Sorted(slices.Values(plain)), " ")
		}
	}
	return ""
}
