package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/cloud/edgeports"
	"github.com/edgecore-io/edgecore/cloud/kubeapi"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// TestLegacyCertificates: the certificate that edges before KubeEdge v1.16 share lets nobody in and gets nobody a
// certificate, unless the configuration says so.
func TestLegacyCertificates(t *testing.T) {
	for name, allowed := range map[string]bool{"by default": false, "allowed": true} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cfg, api := localConfig(t), fakeAPI()
			cfg.Modules.CloudHub.LegacyCertificates = cfg.Modules.CloudHub.LegacyCertificates || allowed
			result := started(ctx, t, cfg, api)
			shared := sharedCertificate(t, api)
			conn, err := wire.DialWebSocket(ctx, wire.DialOptions{
				URL: "wss://" + edgeports.Address(&cfg.Modules.CloudHub.WebSocket) + "/", TLS: shared,
				Header: http.Header{wire.HeaderNodeID: {"old-1"}},
			})
			var refused *wire.Refused
			switch {
			case allowed && err != nil:
				t.Error(err)
			case allowed:
				_ = conn.Close(wire.CloseNormal, "")
			case !errors.As(err, &refused) || refused.Status != http.StatusForbidden ||
				!strings.Contains(refused.Text, "modules.cloudHub.legacyCertificates"):
				t.Errorf("refused with %v, want status 403 that names the key", err)
			}
			status, of := renewed(t, "https://"+edgeports.Address(&cfg.Modules.CloudHub.HTTPS), shared, "old-1")
			if allowed && (status != http.StatusOK || of != "system:node:old-1") ||
				!allowed && status != http.StatusUnauthorized {
				t.Errorf("asked for its own certificate: status %d, subject %q; want it given: %v", status, of, allowed)
			}
			cancel()
			if err := <-result; err != nil {
				t.Error(err)
			}
		})
	}
}

// sharedCertificate makes the certificate that an older cloudcore with the same CA gave to all.
func sharedCertificate(t *testing.T, api *kubeapi.Server) *tls.Config {
	t.Helper()
	secret, err := api.Client.CoreV1().Secrets(certificates.Namespace).Get(t.Context(), "casecret", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(secret.Data["cadata"])
	if err != nil {
		t.Fatal(err)
	}
	caKey, err := certs.ParseKey(secret.Data["cakeydata"])
	if err != nil {
		t.Fatal(err)
	}
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	serial, err := certs.NewSerial()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"KubeEdge"}, CommonName: "kubeedge.io"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, key.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		RootCAs: certs.Pool(ca), Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}
}

// renewed asks for a node's own certificate, and returns the status and whose it is.
func renewed(t *testing.T, url string, with *tls.Config, node string) (status int, of string) {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewRequest(node, key)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/edge.crt", bytes.NewReader(csr))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("NodeName", node)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: with}}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if cert, err := x509.ParseCertificate(body); err == nil {
		return res.StatusCode, cert.Subject.CommonName
	}
	return res.StatusCode, string(body)
}
