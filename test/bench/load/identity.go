package load

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

// Issuer makes the certificates of nodes with the cloud's own CA, so that a thousand of them take no thousand joins.
type Issuer struct {
	ca    *x509.Certificate
	caKey crypto.Signer
	// key is the one of all nodes: what is measured does not depend on it.
	key *ecdsa.PrivateKey
}

// NewIssuer reads the CA from the secret in which cloudcore keeps it.
func NewIssuer(ctx context.Context, api kubernetes.Interface) (*Issuer, error) {
	secret, err := api.CoreV1().Secrets("kubeedge").Get(ctx, "casecret", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the CA of cloudcore: %w", err)
	}
	ca, err := x509.ParseCertificate(secret.Data["cadata"])
	if err != nil {
		return nil, fmt.Errorf("read the CA of cloudcore: %w", err)
	}
	caKey, err := certs.ParseKey(secret.Data["cakeydata"])
	if err != nil {
		return nil, fmt.Errorf("read the key of cloudcore's CA: %w", err)
	}
	key, err := certs.NewKey()
	return &Issuer{ca, caKey, key}, err
}

// TLS is what a node connects with.
func (i *Issuer) TLS(node string) (*tls.Config, error) {
	serial, err := certs.NewSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      certs.Subject(node),
		NotBefore:    now.Add(-time.Minute),
		NotAfter:     now.Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, i.ca, i.key.Public(), i.caKey)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", node, err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: certs.Pool(i.ca),
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: i.key}},
	}, nil
}
