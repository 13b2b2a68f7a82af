package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// certificateLife is longer than any test or demonstration.
const certificateLife = 30 * 24 * time.Hour

// authority is a cluster's certificate authority: it signs the server's and all clients' certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// PEM is the certificate as clients get it.
	PEM []byte
}

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template, err := certificate(pkix.Name{CommonName: name})
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, PEM: encodeCertificate(der)}, nil
}

// pair is a certificate and its key, as PEM.
type pair struct{ cert, key []byte }

// server issues the certificate of a server that is reached by these addresses and names.
func (a *authority) server(name string, addresses []net.IP, names ...string) (pair, error) {
	template, err := certificate(pkix.Name{CommonName: name})
	if err != nil {
		return pair{}, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.IPAddresses, template.DNSNames = addresses, names
	return a.issue(template)
}

// client issues the certificate of a user in these groups.
func (a *authority) client(user string, groups ...string) (pair, error) {
	template, err := certificate(pkix.Name{CommonName: user, Organization: groups})
	if err != nil {
		return pair{}, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(template)
}

func (a *authority) issue(template *x509.Certificate) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return pair{}, fmt.Errorf("issue the certificate of %s: %w", template.Subject.CommonName, err)
	}
	text, err := encodeKey(key)
	return pair{cert: encodeCertificate(der), key: text}, err
}

func certificate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-time.Minute),
		NotAfter:     now.Add(certificateLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}, nil
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// writePKI makes the files that the servers read.
func (c *Cluster) writePKI() error {
	var err error
	if c.ca, err = newAuthority(c.name + "-ca"); err != nil {
		return err
	}
	caKey, err := encodeKey(c.ca.key)
	if err != nil {
		return err
	}
	serving, err := c.ca.server("kube-apiserver", []net.IP{net.IPv4(127, 0, 0, 1), serviceIP}, "localhost",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	if err != nil {
		return err
	}
	kubelet, err := c.ca.client(kubeletClient, "system:masters")
	if err != nil {
		return err
	}
	tokens, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	tokensKey, err := encodeKey(tokens)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		caFile: c.ca.PEM, caKeyFile: caKey,
		servingFile: serving.cert, servingKeyFile: serving.key,
		kubeletFile: kubelet.cert, kubeletKeyFile: kubelet.key,
		tokensKeyFile: tokensKey,
	} {
		if err := os.WriteFile(c.file(name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
