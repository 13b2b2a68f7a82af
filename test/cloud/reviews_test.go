package cloud

import (
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// reviews: a node asks who asks it and whether they may, with the rights that a kubelet has.
func reviews(c *cloud) {
	c.register("r1")
	c.apply(`
{apiVersion: v1, kind: ServiceAccount, metadata: {name: scraper}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: scraper}
rules: [{apiGroups: [""], resources: [nodes/metrics], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: scraper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: scraper}
subjects: [{kind: ServiceAccount, name: scraper, namespace: default}]`)
	made, err := c.admin.CoreV1().ServiceAccounts("default").CreateToken(c.t.Context(), "scraper",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	review := func(token string) *authenticationv1.TokenReview {
		return object[authenticationv1.TokenReview](c,
			c.must("r1", "insert", "null/tokenreview/r1", &authenticationv1.TokenReview{
				Spec: authenticationv1.TokenReviewSpec{Token: token},
			}))
	}
	known := review(made.Status.Token)
	if !known.Status.Authenticated || known.Status.User.Username != "system:serviceaccount:default:scraper" ||
		known.Spec.Token != "" {
		c.t.Errorf("review of the token = %+v, want system:serviceaccount:default:scraper and no token", known)
	}
	if got := review("guessed"); got.Status.Authenticated {
		c.t.Errorf("review of a guessed token = %+v, want not authenticated", got)
	}
	may := func(verb, sub, node string) *authorizationv1.SubjectAccessReview {
		return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: known.Status.User.Username, Groups: known.Status.User.Groups, UID: known.Status.User.UID,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb:        verb,
				Version:     "v1",
				Resource:    "nodes",
				Subresource: sub,
				Name:        node,
			},
		}}
	}
	const access = "null/subjectaccessreview/r1"
	// The API server's own authorizer learns of a binding a moment later.
	wait.Until(c.t, "the binding counts", func() error {
		if got := object[authorizationv1.SubjectAccessReview](c,
			c.must("r1", "insert", access, may("get", "metrics", "r1"))); !got.Status.Allowed {
			return fmt.Errorf("review is %+v, want allowed", got.Status)
		}
		return nil
	})
	for what, want := range map[string]bool{"get proxy": false, "create metrics": false} {
		verb, sub, _ := strings.Cut(what, " ")
		if got := object[authorizationv1.SubjectAccessReview](c,
			c.must("r1", "insert", access, may(verb, sub, "r1"))); got.Status.Allowed != want {
			c.t.Errorf("review of %s = %+v, want allowed %v", what, got.Status, want)
		}
	}
	c.refused("r1", "insert", access, may("get", "metrics", "r2"), metav1.StatusReasonForbidden)
	c.refused("r1", "insert", "null/tokenreview/r2", &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: "x"},
	}, metav1.StatusReasonForbidden)
	const ca = "kube-system/clientca/extension-apiserver-authentication"
	wait.Until(c.t, "the CA of clients", func() error {
		_, err := c.admin.CoreV1().ConfigMaps("kube-system").Get(c.t.Context(), "extension-apiserver-authentication",
			metav1.GetOptions{})
		return err
	})
	got := object[v1.ConfigMap](c, c.must("r1", "query", ca, nil))
	if strings.TrimSpace(got.Data["client-ca-file"]) != strings.TrimSpace(string(c.cluster.CA())) ||
		len(got.Data) != 1 {
		c.t.Errorf("CA of clients = %+v, want client-ca-file alone, with\n%s", got.Data, c.cluster.CA())
	}
}
