package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func TestKeyForms(t *testing.T) {
	key := newKey(t)
	sec1, err := EncodeKeyPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(sec1), "-----BEGIN EC PRIVATE KEY-----\n") {
		t.Errorf("key begins with %.40q, want KubeEdge's form, EC PRIVATE KEY", sec1)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8 := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	parameters := pem.EncodeToMemory(&pem.Block{
		Type: "EC PARAMETERS", Bytes: []byte{6, 8, 42, 134, 72, 206, 61, 3, 1, 7},
	})
	for name, data := range map[string][]byte{
		"SEC1": sec1, "PKCS#8": pkcs8, "with parameters, as openssl writes": append(parameters, sec1...),
	} {
		if got, err := ParseKeyPEM(data); err != nil {
			t.Errorf("%s: ParseKeyPEM = %v, want no error", name, err)
		} else if !got.Equal(key) {
			t.Errorf("%s: public key = %v, want %v", name, got.PublicKey, key.PublicKey)
		}
	}
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err = x509.MarshalPKCS8PrivateKey(other)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"empty": nil, "a certificate": EncodeCertPEM(newAuthority(t).cert.Raw),
		"damaged": bytes.Replace(sec1, []byte("M"), []byte("N"), 1),
		"Ed25519": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	} {
		if _, err := ParseKeyPEM(data); err == nil || !strings.Contains(err.Error(), "EC") {
			t.Errorf("ParseKeyPEM(%s) = %v, want an error with EC", name, err)
		}
	}
}

func TestNewRequest(t *testing.T) {
	key := newKey(t)
	der, err := NewRequest("edge1", key)
	if err != nil {
		t.Fatal(err)
	}
	req, err := ParseRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := req.Subject.String(), "CN=system:node:edge1,O=system:nodes"; got != want {
		t.Errorf("subject %s, want %s", got, want)
	}
	if len(req.DNSNames)+len(req.IPAddresses)+len(req.EmailAddresses)+len(req.URIs)+len(req.Extensions) > 0 {
		t.Errorf("request for %v, %v, %v, %v, %v; want a subject alone", req.DNSNames, req.IPAddresses,
			req.EmailAddresses, req.URIs, req.Extensions)
	}
	if key.Curve != elliptic.P256() || !key.PublicKey.Equal(req.PublicKey) {
		t.Errorf("key on curve %v, of the request %v; want %v, true", key.Curve, key.PublicKey.Equal(req.PublicKey),
			elliptic.P256())
	}
}

// TestKubeEdgeRequest: a request with the subject that KubeEdge's nodes ask for, made by openssl.
func TestKubeEdgeRequest(t *testing.T) {
	req, err := ParseRequest(readTestdata(t, "kubeedge-v1.23.csr.der"))
	if err != nil {
		t.Fatal(err)
	}
	node, err := NodeOf(req.Subject)
	if err != nil || node != "edge1" {
		t.Errorf("NodeOf = %q, %v; want edge1", node, err)
	}
}

func readTestdata(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParseRequest(t *testing.T) {
	request := func(key crypto.Signer) []byte {
		der, err := NewRequest("edge1", key)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsa2048, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	good := request(newKey(t))
	forged := bytes.Replace(good, []byte("edge1"), []byte("edge2"), 1)
	for name, tc := range map[string]struct {
		der []byte
		err string
	}{
		"P-256": {good, ""}, "P-384": {request(p384), ""}, "RSA": {request(rsa2048), ""},
		"P-224":   {request(p224), "key is invalid"},
		"forged":  {forged, "not signed by its key"},
		"empty":   {nil, "is empty"},
		"no DER":  {[]byte("-----BEGIN"), "not a certificate request in DER form"},
		"more":    {append(bytes.Clone(good), 0), "not a certificate request in DER form"},
		"too big": {make([]byte, MaxRequest+1), "more than 64 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseRequest(tc.der)
			wantError(t, err, tc.err)
		})
	}
}

func TestNewSerial(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		n, err := NewSerial()
		if err != nil {
			t.Fatal(err)
		}
		if n.Sign() <= 0 || n.BitLen() > 63 || seen[n.String()] {
			t.Fatalf("serial %s, want a new positive one of at most 63 bits", n)
		}
		seen[n.String()] = true
	}
}

// greedyRequests are requests in which as many as fit of the smallest parts of each kind are.
func greedyRequests(t testing.TB) [][]byte {
	t.Helper()
	key := newKey(t)
	var all [][]byte
	var names []pkix.AttributeTypeAndValue
	for range 3_000 {
		names = append(names, pkix.AttributeTypeAndValue{Type: []int{2, 5, 4, 3}, Value: ""})
	}
	var extensions []pkix.Extension
	for i := range 3_000 {
		extensions = append(extensions, pkix.Extension{Id: []int{1, 2, 3, i}})
	}
	for _, template := range []*x509.CertificateRequest{
		{Subject: pkix.Name{ExtraNames: names}},
		{ExtraExtensions: extensions},
		{DNSNames: slices.Repeat([]string{"a"}, 10_000)},
		{IPAddresses: slices.Repeat([]net.IP{net.IPv4(1, 2, 3, 4)}, 8_000)},
		{URIs: slices.Repeat([]*url.URL{{Scheme: "a", Opaque: "b"}}, 8_000)},
	} {
		der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
		if err != nil {
			t.Fatal(err)
		}
		if len(der) > MaxRequest {
			t.Fatalf("a request of %d bytes, want at most %d", len(der), MaxRequest)
		}
		all = append(all, der)
	}
	return all
}

func FuzzParseRequest(f *testing.F) {
	f.Add(readTestdata(f, "kubeedge-v1.23.csr.der"))
	f.Add([]byte{0x30, 0x80})
	for _, der := range greedyRequests(f) {
		f.Add(der)
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		var req *x509.CertificateRequest
		var err error
		// An empty part of a name is 9 bytes long; it becomes a value with the list of numbers of its type, in lists
		// that grow, once as it was sent and once as a pkix.Name. Checking a signature takes 1 MiB at most, for RSA of
		// 8192 bits.
		membound.Check(t, 1<<20+membound.Linear(min(len(der), MaxRequest), 256), func() {
			req, err = ParseRequest(der)
		})
		if err == nil && req.CheckSignature() != nil {
			t.Errorf("ParseRequest of a request with signature error %v = nil, want an error", req.CheckSignature())
		}
	})
}

func FuzzPEM(f *testing.F) {
	key, err := EncodeKeyPEM(newKey(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(key)
	cert := EncodeCertPEM(newAuthority(f).cert.Raw)
	f.Add(cert)
	f.Add(bytes.Repeat(cert, 60))
	f.Add(bytes.Repeat([]byte("-----BEGIN A-----\n-----END A-----\n"), 1_000))
	f.Add(bytes.Repeat([]byte("-----BEGIN A-----\n"), 2_000))
	f.Add([]byte("-----BEGIN A-----\n" + strings.Repeat("a:b\n", 8_000) + "\n-----END A-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		// A certificate has parts of a few bytes each as a request has; the blocks themselves are decoded once.
		limit := membound.Linear(len(data), 256)
		membound.Check(t, limit, func() {
			if key, err := ParseKeyPEM(data); err == nil && key == nil {
				t.Error("ParseKeyPEM = nil, nil; want a key or an error")
			}
		})
		membound.Check(t, limit, func() {
			if list, err := ParseCertsPEM(data); err == nil && (len(list) == 0 || list[0] == nil) {
				t.Errorf("ParseCertsPEM = %v, nil; want certificates or an error", list)
			}
		})
	})
}
