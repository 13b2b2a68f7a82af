package nodeidentity

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

func parsed(t *testing.T, cert *tls.Certificate) *x509.Certificate {
	t.Helper()
	c, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// renew gets the next certificate for one.
func (e *env) renew(node string, cert *tls.Certificate) *tls.Certificate {
	e.t.Helper()
	key, err := certs.NewKey()
	e.must(err)
	csr, err := certs.NewRequest(node, key)
	e.must(err)
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, "https://"+e.join+"/edge.crt",
		strings.NewReader(string(csr)))
	e.must(err)
	req.Header.Set("NodeName", node)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: e.authority.Pool(), Certificates: []tls.Certificate{*cert}}}}
	return e.issued(client, req, key)
}

// plain makes a certificate that names no device.
func (e *env) plain(node string) *tls.Certificate {
	e.t.Helper()
	key, err := certs.NewKey()
	e.must(err)
	der, err := certs.NewRequest(node, key)
	e.must(err)
	req, err := certs.ParseRequest(der)
	e.must(err)
	cert, err := e.authority.SignNode(node, req)
	e.must(err)
	return &tls.Certificate{Certificate: [][]byte{cert}, PrivateKey: key}
}

// issued is the certificate that a request is answered with.
func (e *env) issued(client *http.Client, req *http.Request, key *ecdsa.PrivateKey) *tls.Certificate {
	e.t.Helper()
	resp, err := client.Do(req)
	e.must(err)
	defer resp.Body.Close()
	der, err := io.ReadAll(resp.Body)
	e.must(err)
	if resp.StatusCode != http.StatusOK {
		e.t.Fatalf("certificate: status %s %s, want %d", resp.Status, der, http.StatusOK)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
