package requests

import (
	"bytes"
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
)

// certificateHandlers carry out requests for the serving certificates of nodes.
type certificateHandlers struct {
	asNode kubernetes.Interface
	caches Caches
}

// Limits on certificate signing requests: the cost of checking a signature grows with the square of the key size.
const (
	maxCSRBytes = 16 << 10
	maxRSABits  = 8192
)

// createCSR forwards a request for the serving certificate of a node's own port, and no other: client certificates,
// which clusters approve automatically, would outlive the revocation of the node.
func (h *certificateHandlers) createCSR(ctx context.Context, r *request) result {
	csr, err := h.servingRequest(ctx, r)
	if err != nil {
		return written(nil, err, false)
	}
	csr, err = h.asNode.CertificatesV1().CertificateSigningRequests().Create(ctx, csr, metav1.CreateOptions{})
	return written(csr, err, false)
}

// servingRequest checks a node's request and returns the parts that a node may choose.
func (h *certificateHandlers) servingRequest(
	ctx context.Context, r *request,
) (*certificatesv1.CertificateSigningRequest, error) {
	csr, err := decode[certificatesv1.CertificateSigningRequest](r, "CertificateSigningRequest")
	if err != nil {
		return nil, err
	}
	if csr.Name != r.key.Name {
		return nil, badRequest(r.key, "the content is request %q", csr.Name)
	}
	if csr.Spec.SignerName != certificatesv1.KubeletServingSignerName {
		return nil, forbidden(r.key, "its signer is %q; a node may only ask %s", csr.Spec.SignerName,
			certificatesv1.KubeletServingSignerName)
	}
	if err := servingUsages(csr.Spec.Usages); err != nil {
		return nil, forbidden(r.key, "%v", err)
	}
	x, err := parseCSR(csr.Spec.Request)
	if err != nil {
		return nil, badRequest(r.key, "%v", err)
	}
	if err := servingSubject(r.node, x); err != nil {
		return nil, forbidden(r.key, "%v", err)
	}
	if err := h.ownNames(ctx, r, x); err != nil {
		return nil, err
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: csr.Name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:           csr.Spec.Request,
			SignerName:        csr.Spec.SignerName,
			Usages:            csr.Spec.Usages,
			ExpirationSeconds: csr.Spec.ExpirationSeconds,
		},
	}, nil
}

// servingUsages checks that the usages are those that the signer kubernetes.io/kubelet-serving accepts.
func servingUsages(usages []certificatesv1.KeyUsage) error {
	given := slices.Clone(usages)
	slices.Sort(given)
	for _, allowed := range [][]certificatesv1.KeyUsage{
		{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageServerAuth},
	} {
		if slices.Equal(given, allowed) {
			return nil
		}
	}
	return fmt.Errorf("its usages are %.200q, want digital signature, server auth and optionally key encipherment",
		usages)
}

// parseCSR reads a PKCS #10 request in PEM, and checks its signature.
func parseCSR(text []byte) (*x509.CertificateRequest, error) {
	if len(text) > maxCSRBytes {
		return nil, fmt.Errorf("spec.request has %d bytes, limit %d", len(text), maxCSRBytes)
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("spec.request is not one PEM block of type CERTIFICATE REQUEST")
	}
	x, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("spec.request: %w", err)
	}
	if key, is := x.PublicKey.(*rsa.PublicKey); is && key.N.BitLen() > maxRSABits {
		return nil, fmt.Errorf("spec.request: an RSA key of %d bits, limit %d", key.N.BitLen(), maxRSABits)
	}
	if err := x.CheckSignature(); err != nil {
		return nil, fmt.Errorf("spec.request: %w", err)
	}
	return x, nil
}

// servingSubject checks a request's subject as kubernetes.io/kubelet-serving does, and that it is the requesting node.
func servingSubject(node string, x *x509.CertificateRequest) error {
	user := "system:node:" + node
	switch {
	case x.Subject.CommonName != user || !slices.Equal(x.Subject.Organization, []string{impersonate.NodesGroup}):
		return fmt.Errorf("its subject is %.200q, want O=%s, CN=%s", x.Subject, impersonate.NodesGroup, user)
	case len(x.EmailAddresses) > 0 || len(x.URIs) > 0:
		return fmt.Errorf("it asks for email addresses or URIs; a node has DNS names and IP addresses")
	case len(x.DNSNames)+len(x.IPAddresses) == 0:
		return fmt.Errorf("it asks for no DNS name and no IP address")
	}
	return nil
}

// ownNames checks that a request is only for the node's names and addresses. If the Node object does not have its
// addresses yet, the node must retry (503).
func (h *certificateHandlers) ownNames(ctx context.Context, r *request, x *x509.CertificateRequest) error {
	foreign := foreignNames(r.node, h.caches.Node(r.node), x)
	if len(foreign) == 0 {
		return nil
	}
	node, err := h.asNode.CoreV1().Nodes().Get(ctx, r.node, metav1.GetOptions{}) // the cache may be stale
	switch {
	case err == nil:
		foreign = foreignNames(r.node, node, x)
	case !apierrors.IsNotFound(err):
		return err
	}
	if len(foreign) == 0 {
		return nil
	}
	return apierrors.NewServiceUnavailable(fmt.Sprintf("%s: %.200q are not in status.addresses of Node %s; "+
		"ask again when the Node has them", r.key, foreign, r.node))
}

// foreignNames lists names in a request that the node does not have. The Node may be nil.
func foreignNames(name string, node *v1.Node, x *x509.CertificateRequest) []string {
	names, ips := map[string]bool{name: true}, map[string]bool{}
	if node != nil {
		for _, a := range node.Status.Addresses {
			switch a.Type {
			case v1.NodeHostName, v1.NodeInternalDNS, v1.NodeExternalDNS:
				names[a.Address] = true
			case v1.NodeInternalIP, v1.NodeExternalIP:
				if ip := net.ParseIP(a.Address); ip != nil {
					ips[ip.String()] = true
				}
			}
		}
	}
	var foreign []string
	for _, n := range x.DNSNames {
		if !names[n] {
			foreign = append(foreign, n)
		}
	}
	for _, ip := range x.IPAddresses {
		if !ips[ip.String()] {
			foreign = append(foreign, ip.String())
		}
	}
	return foreign
}

// queryCSR returns only the node's own requests: the API server would show a node all of them.
func (h *certificateHandlers) queryCSR(ctx context.Context, r *request) result {
	csr, err := h.asNode.CertificatesV1().CertificateSigningRequests().Get(ctx, r.key.Name, metav1.GetOptions{})
	if err == nil && csr.Spec.Username != "system:node:"+r.node {
		err = forbidden(r.key, "it is not a request of node %s", r.node)
	}
	return found(csr, err)
}
