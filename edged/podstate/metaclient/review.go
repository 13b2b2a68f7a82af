package metaclient

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// What the node's authenticated port needs of the cloud. Reviews fail at once without a link to a cloud of ours.

// Reviews asks the cluster about users in a node's name.
type Reviews struct {
	*Client
	Node string
}

// ReviewToken asks whose a token is.
func (r Reviews) ReviewToken(
	ctx context.Context, review *authenticationv1.TokenReview,
) (*authenticationv1.TokenReview, error) {
	return act[authenticationv1.TokenReview](ctx, r.Client, model.OpInsert, r.key(resource.TypeTokenReview), review)
}

// ReviewAccess asks whether a user may do something to the node.
func (r Reviews) ReviewAccess(
	ctx context.Context, review *authorizationv1.SubjectAccessReview,
) (*authorizationv1.SubjectAccessReview, error) {
	return act[authorizationv1.SubjectAccessReview](ctx, r.Client, model.OpInsert, r.key(resource.TypeAccessReview),
		review)
}

func (r Reviews) key(typ string) resource.Key {
	return resource.Key{Namespace: resource.NullNamespace, Type: typ, Name: r.Node}
}

// ClientCA returns the CA of the cluster's clients, in PEM: as the cloud has it, or as it was when there was a link.
func (c *Client) ClientCA(ctx context.Context) ([]byte, error) {
	have, err := Get[v1.ConfigMap](ctx, c, resource.Key{Namespace: "kube-system", Type: resource.TypeClientCA,
		Name: "extension-apiserver-authentication"})
	if err != nil {
		return nil, err
	}
	return []byte(have.Data["client-ca-file"]), nil
}

func csrKey(name string) resource.Key {
	return resource.Key{Namespace: resource.NullNamespace, Type: resource.TypeCSR, Name: name}
}

// CreateCSR asks the cluster to sign a certificate; apierrors.IsAlreadyExists tells a request that is there.
func (c *Client) CreateCSR(
	ctx context.Context, csr *certificatesv1.CertificateSigningRequest,
) (*certificatesv1.CertificateSigningRequest, error) {
	return act[certificatesv1.CertificateSigningRequest](ctx, c, model.OpInsert, csrKey(csr.Name), csr)
}

// CSR returns one of the node's requests as it is now.
func (c *Client) CSR(ctx context.Context, name string) (*certificatesv1.CertificateSigningRequest, error) {
	return Get[certificatesv1.CertificateSigningRequest](ctx, c, csrKey(name))
}
