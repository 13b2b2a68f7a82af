// Package wiretest helps to test both ends of the link: it makes certificates, and has proxies that disturb a
// connection as bad networks do.
package wiretest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// lifetime of a CA and of servers: some tests take hours.
const lifetime = 24 * time.Hour

// CA signs certificates for a test.
type CA struct {
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA makes a CA.
func NewCA(t testing.TB) *CA {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1024),
		Subject:               pkix.Name{CommonName: "KubeEdge"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(lifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	ca := &CA{key: key}
	ca.Cert = sign(t, template, template, &key.PublicKey, key)
	return ca
}

// Pool holds the CA's certificate.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	return pool
}

// Server makes a certificate for 127.0.0.1 and localhost, unless names are given.
func (ca *CA) Server(t testing.TB, names ...string) tls.Certificate {
	t.Helper()
	template := leaf("KubeEdge", "KubeEdge")
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = names
	if len(names) == 0 {
		template.DNSNames, template.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	return ca.issue(t, template)
}

// Node makes the certificate of a node, which ends at a time.
func (ca *CA) Node(t testing.TB, name string, end time.Time) tls.Certificate {
	t.Helper()
	template := leaf("system:node:"+name, "system:nodes")
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	template.NotAfter = end
	if end.Before(template.NotBefore) {
		template.NotBefore = end.Add(-time.Hour)
	}
	return ca.issue(t, template)
}

// ServerTLS is the cloud's configuration: clients need a certificate of the CA.
func (ca *CA) ServerTLS(t testing.TB, names ...string) *tls.Config {
	t.Helper()
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
		Certificates: []tls.Certificate{ca.Server(t, names...)},
	}
}

// ClientTLS is the edge's configuration.
func (ca *CA) ClientTLS(t testing.TB, node string) *tls.Config {
	t.Helper()
	return &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: ca.Pool(),
		Certificates: []tls.Certificate{ca.Node(t, node, time.Now().Add(time.Hour))},
	}
}

// Files are the paths of a node's certificate files.
type Files struct{ CA, Cert, Key string }

// Write puts the CA's certificate and a node's into a folder; it may be called again to replace them.
func (ca *CA) Write(t testing.TB, dir string, node tls.Certificate) Files {
	t.Helper()
	f := Files{filepath.Join(dir, "rootCA.crt"), filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key")}
	key, err := x509.MarshalECPrivateKey(node.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		f.CA:   {Type: "CERTIFICATE", Bytes: ca.Cert.Raw},
		f.Cert: {Type: "CERTIFICATE", Bytes: node.Certificate[0]},
		f.Key:  {Type: "EC PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func leaf(name, organization string) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: name, Organization: []string{organization}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

func (ca *CA) issue(t testing.TB, template *x509.Certificate) tls.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = serial
	key := newKey(t)
	cert := sign(t, template, ca.Cert, &key.PublicKey, ca.key)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(
	t testing.TB, template, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey,
) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
