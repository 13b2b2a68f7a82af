package servingcert

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

const (
	// firstRetry and lastRetry bound how often the cluster is asked for what it has not signed.
	firstRetry = 2 * time.Second
	lastRetry  = 5 * time.Minute
	// maxCheck is how long at most nothing is looked at.
	maxCheck = 10 * time.Minute
	// renewFrom is the part of its life after which a certificate is renewed; it differs from node to node by
	// renewSpread.
	renewFrom   = 0.7
	renewSpread = 0.2
)

// Cluster takes requests for certificates; see package metaclient. Without a link it fails at once.
type Cluster interface {
	CreateCSR(ctx context.Context,
		csr *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error)
	CSR(ctx context.Context, name string) (*certificatesv1.CertificateSigningRequest, error)
}

// errPending: the request was not approved yet.
var errPending = errors.New("it is not approved yet")

// readSigned reads the certificate that the cluster signed before.
func (c *Certificate) readSigned() {
	data, err := os.ReadFile(filepath.Join(c.opts.Dir, signedCert))
	if err != nil {
		return
	}
	chain, err := certs.ParseCertsPEM(data)
	if err != nil {
		klog.ErrorS(err, "Certificate of the authenticated port is invalid; requesting another",
			"file", filepath.Join(c.opts.Dir, signedCert))
		return
	}
	// The key of a renewal is there before its certificate: after a power cut between the two it is still the pending
	// one.
	for _, name := range []string{signedKey, pendingKey} {
		if key, err := readKey(filepath.Join(c.opts.Dir, name)); err == nil && certs.Fits(chain[0], key) {
			c.mu.Lock()
			c.signed = pair(key, chain...)
			c.mu.Unlock()
			return
		}
	}
}

func readKey(name string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return certs.ParseKeyPEM(data)
}

// step asks for a certificate where one is due, and returns when to look again.
func (c *Certificate) step(ctx context.Context) (time.Duration, error) {
	_, ips := c.names()
	names := []string{c.opts.Node} // a host name that is not the node's is not in its Node: cloudcore refuses it
	c.mu.Lock()
	have := c.signed
	c.mu.Unlock()
	if have != nil && speaksFor(have.Leaf, names, ips) {
		due := certs.RenewAt(have.Leaf, renewFrom+renewSpread*c.share()).Sub(c.opts.Now())
		if due > 0 {
			return min(due, maxCheck), nil // addresses change, and clocks are set
		}
	}
	if len(ips) == 0 {
		return 0, errors.New("certificate of the authenticated port: this node has no network address yet")
	}
	if err := c.request(ctx, names, ips); err != nil {
		return 0,
			fmt.Errorf("certificate of the authenticated port, to be signed by the cluster "+
				"(kubernetes.io/kubelet-serving): %w", err)
	}
	return firstRetry, nil
}

// share is this node's own number from 0 to 1, so that not all are renewed together.
func (c *Certificate) share() float64 {
	sum := sha256.Sum256([]byte(c.opts.Node))
	return float64(sum[0]) / 255
}

// request asks the cluster to sign, or asks how a request is doing: its name goes by its key, so that a node that
// starts again finds the one it made.
func (c *Certificate) request(ctx context.Context, names []string, ips []net.IP) error {
	key, err := c.pending()
	if err != nil {
		return err
	}
	csr, err := c.signingRequest(key, names, ips)
	if err != nil {
		return err
	}
	got, err := c.opts.Cluster.CSR(ctx, csr.Name)
	if apierrors.IsNotFound(err) {
		got, err = c.opts.Cluster.CreateCSR(ctx, csr)
	}
	if err != nil {
		return err
	}
	for _, cond := range got.Status.Conditions {
		if cond.Type == certificatesv1.CertificateDenied || cond.Type == certificatesv1.CertificateFailed {
			return errors.Join(c.dropPending(), fmt.Errorf("request %s: %s: %s", got.Name, cond.Type, cond.Message))
		}
	}
	if len(got.Status.Certificate) == 0 {
		return fmt.Errorf("request %s: %w (kubectl certificate approve %s)", got.Name, errPending, got.Name)
	}
	return c.useSigned(got.Status.Certificate, key)
}

// useSigned puts a signed certificate to use.
func (c *Certificate) useSigned(text []byte, key *ecdsa.PrivateKey) error {
	chain, err := certs.ParseCertsPEM(text)
	if err != nil {
		return fmt.Errorf("what the cluster signed: %w", err)
	}
	if !certs.Fits(chain[0], key) {
		return errors.Join(c.dropPending(), errors.New("what the cluster signed is not for this node's key"))
	}
	keyText, err := certs.EncodeKeyPEM(key)
	if err != nil {
		return err
	}
	if err := save(c.opts.Dir, map[string][]byte{signedCert: text, signedKey: keyText}, signedCert,
		signedKey); err != nil {
		return err
	}
	c.mu.Lock()
	c.signed = pair(key, chain...)
	c.mu.Unlock()
	klog.InfoS("Certificate of the authenticated port signed by the cluster", "until", chain[0].NotAfter)
	return c.dropPending()
}

// pending is the key of the request under way.
func (c *Certificate) pending() (*ecdsa.PrivateKey, error) {
	if key, err := readKey(filepath.Join(c.opts.Dir, pendingKey)); err == nil {
		return key, nil
	}
	key, err := certs.NewKey()
	if err != nil {
		return nil, err
	}
	text, err := certs.EncodeKeyPEM(key)
	if err != nil {
		return nil, err
	}
	return key, save(c.opts.Dir, map[string][]byte{pendingKey: text}, pendingKey)
}

func (c *Certificate) dropPending() error {
	if err := os.Remove(filepath.Join(c.opts.Dir, pendingKey)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// signingRequest is what the signer kubernetes.io/kubelet-serving takes.
func (c *Certificate) signingRequest(
	key *ecdsa.PrivateKey, names []string, ips []net.IP,
) (*certificatesv1.CertificateSigningRequest, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: certs.Subject(c.opts.Node),
		DNSNames: names, IPAddresses: ips}, key)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	sum.Write(public)
	for _, ip := range ips {
		sum.Write([]byte(ip.String() + " "))
	}
	return &certificatesv1.CertificateSigningRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: "csr-" + hex.EncodeToString(sum.Sum(nil)[:16])},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeletServingSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		},
	}, nil
}
