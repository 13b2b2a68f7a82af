package requests

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Reviews finds out who callers of nodes are: for cloudcore's own port, and for nodes.
type Reviews struct{ AsNode, Own kubernetes.Interface }

// reviewHandlers carry out the reviews that nodes ask for.
type reviewHandlers struct {
	asNode  kubernetes.Interface
	reviews *Reviews
}

// Requests with which a node's own port authenticates its callers: whose a token is, whether a user is authorized, and
// which CA signs client certificates. Reviews are made in the node's name, as a kubelet makes them.

// reviewToken asks the API server whose a token is. Neither is stored here, and the answer does not repeat the token.
func (h *reviewHandlers) reviewToken(ctx context.Context, r *request) result {
	review, err := decode[authenticationv1.TokenReview](r, "TokenReview")
	if err == nil && r.key.Name != r.node {
		err = forbidden(r.key, "a node may ask only in its own name (node %s)", r.node)
	}
	if err == nil && review.Spec.Token == "" {
		err = badRequest(r.key, "the review has no token")
	}
	if err != nil {
		return written(nil, err, false)
	}
	got, err := h.asNode.AuthenticationV1().TokenReviews().
		Create(ctx, &authenticationv1.TokenReview{Spec: review.Spec}, metav1.CreateOptions{})
	if err != nil {
		return written(nil, err, false)
	}
	return written(&authenticationv1.TokenReview{Status: got.Status}, nil, false)
}

// reviewAccess asks the API server whether a user may do something to the requesting node. The API server would answer
// a node about any user and any object; this limits it to what it needs.
func (h *reviewHandlers) reviewAccess(ctx context.Context, r *request) result {
	review, err := decode[authorizationv1.SubjectAccessReview](r, "SubjectAccessReview")
	if err == nil {
		err = aboutItself(r, &review.Spec)
	}
	if err != nil {
		return written(nil, err, false)
	}
	got, err := h.asNode.AuthorizationV1().SubjectAccessReviews().
		Create(ctx, &authorizationv1.SubjectAccessReview{Spec: review.Spec}, metav1.CreateOptions{})
	if err != nil {
		return written(nil, err, false)
	}
	return written(&authorizationv1.SubjectAccessReview{Status: got.Status}, nil, false)
}

// aboutItself checks that a node asks only about subresources of its own Node.
func aboutItself(r *request, spec *authorizationv1.SubjectAccessReviewSpec) error {
	of := spec.ResourceAttributes
	if r.key.Name != r.node || spec.NonResourceAttributes != nil || of == nil || of.Group != "" ||
		of.Resource != "nodes" || of.Name != r.node || of.Namespace != "" {
		return forbidden(r.key, "node %s may ask only about access to its own Node", r.node)
	}
	return nil
}

// Where the API server publishes the CA of client certificates, including that of its own client certificate.
const (
	clientCANamespace = "kube-system"
	clientCAConfigMap = "extension-apiserver-authentication"
	clientCAKey       = "client-ca-file"
)

// queryClientCA returns the CA that signs client certificates, including the API server's: with it a node can
// authenticate all cluster clients. It is public; a kubelet has it as a file. Nothing else of the ConfigMap is
// returned.
func (h *reviewHandlers) queryClientCA(ctx context.Context, r *request) result {
	if r.key != (resource.Key{Namespace: clientCANamespace, Type: resource.TypeClientCA, Name: clientCAConfigMap}) {
		return failed(badRequest(r.key, "want %s/%s/%s", clientCANamespace, resource.TypeClientCA,
			clientCAConfigMap))
	}
	have, err := h.reviews.clientCA(ctx)
	if err != nil {
		return failed(err)
	}
	return found(&v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       clientCANamespace,
			Name:            clientCAConfigMap,
			UID:             have.UID,
			ResourceVersion: have.ResourceVersion,
		},
		Data: map[string]string{clientCAKey: have.Data[clientCAKey]},
	}, nil)
}

func (v *Reviews) clientCA(ctx context.Context) (*v1.ConfigMap, error) {
	return v.Own.CoreV1().ConfigMaps(clientCANamespace).Get(ctx, clientCAConfigMap, metav1.GetOptions{})
}

// ClientCA returns the CA that signs client certificates, in PEM.
func (v *Reviews) ClientCA(ctx context.Context) ([]byte, error) {
	have, err := v.clientCA(ctx)
	if err != nil {
		return nil, err
	}
	return []byte(have.Data[clientCAKey]), nil
}

// Reviewer asks the API server in a node's name who its callers are and what they may do, for a node that cannot. It
// implements auth.Cloud.
func (v *Reviews) Reviewer(node string) *Reviewer { return &Reviewer{v.AsNode, node} }

// Reviewer is what reviews.Reviewer returns.
type Reviewer struct {
	asNode kubernetes.Interface
	node   string
}

// ReviewToken implements auth.Cloud.
func (r *Reviewer) ReviewToken(
	ctx context.Context, review *authenticationv1.TokenReview,
) (*authenticationv1.TokenReview, error) {
	return r.asNode.AuthenticationV1().TokenReviews().
		Create(impersonate.WithNode(ctx, r.node), review, metav1.CreateOptions{})
}

// ReviewAccess implements auth.Cloud.
func (r *Reviewer) ReviewAccess(
	ctx context.Context, review *authorizationv1.SubjectAccessReview,
) (*authorizationv1.SubjectAccessReview, error) {
	return r.asNode.AuthorizationV1().SubjectAccessReviews().
		Create(impersonate.WithNode(ctx, r.node), review, metav1.CreateOptions{})
}
