package requests

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// servingCSR is what an edge asks for; change makes it another request.
func servingCSR(t *testing.T, change func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest)) string {
	t.Helper()
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: "kubernetes.io/kubelet-serving",
			Usages:     []certificatesv1.KeyUsage{"server auth", "digital signature"},
		},
	}
	x := &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "system:node:e1", Organization: []string{"system:nodes"}},
		DNSNames: []string{"e1"},
	}
	if change != nil {
		change(csr, x)
	}
	if csr.Spec.Request == nil {
		csr.Spec.Request = signedRequest(t, x)
	}
	data, err := json.Marshal(csr)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func signedRequest(t *testing.T, x *x509.CertificateRequest) []byte {
	t.Helper()
	var key crypto.Signer
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, x, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// TestCreateCSR: a node gets certificates of its own port for its own names, and nothing else.
func TestCreateCSR(t *testing.T) {
	type (
		csr = certificatesv1.CertificateSigningRequest
		req = x509.CertificateRequest
	)
	const bad, forbidden = metav1.StatusReasonBadRequest, metav1.StatusReasonForbidden
	const again = metav1.StatusReasonServiceUnavailable
	ip := func(text string) []net.IP { return []net.IP{net.ParseIP(text)} }
	signer := func(name string) func(*csr, *req) {
		return func(c *csr, _ *req) { c.Spec.SignerName = name }
	}
	groups := func(list ...string) func(*csr, *req) {
		return func(_ *csr, x *req) { x.Subject.Organization = list }
	}
	request := func(text []byte) func(*csr, *req) {
		return func(c *csr, _ *req) { c.Spec.Request = text }
	}
	two := func(c *csr, x *req) { c.Spec.Request = append(signedRequest(t, x), signedRequest(t, x)...) }
	long := func(c *csr, x *req) { c.Spec.Request = append(signedRequest(t, x), make([]byte, maxCSRBytes)...) }
	usages := func(list ...certificatesv1.KeyUsage) func(*csr, *req) {
		return func(c *csr, _ *req) { c.Spec.Usages = list }
	}
	for name, tc := range map[string]struct {
		change func(*csr, *req)
		reason metav1.StatusReason // "" is accepted
	}{
		"its name":            {nil, ""},
		"its address":         {func(_ *csr, x *req) { x.IPAddresses = ip("192.0.2.7") }, ""},
		"its second address":  {func(_ *csr, x *req) { x.IPAddresses = ip("2001:db8:0::7") }, ""},
		"its host name":       {func(_ *csr, x *req) { x.DNSNames = []string{"e1", "e1.example.com"} }, ""},
		"an address alone":    {func(_ *csr, x *req) { x.DNSNames, x.IPAddresses = nil, ip("192.0.2.7") }, ""},
		"an address since":    {func(_ *csr, x *req) { x.IPAddresses = ip("192.0.2.8") }, ""},
		"key encipherment":    {usages("key encipherment", "digital signature", "server auth"), ""},
		"another's address":   {func(_ *csr, x *req) { x.IPAddresses = ip("192.0.2.9") }, again},
		"another's name":      {func(_ *csr, x *req) { x.DNSNames = []string{"e1", "e2"} }, again},
		"a wildcard":          {func(_ *csr, x *req) { x.DNSNames = []string{"*"} }, again},
		"no name":             {func(_ *csr, x *req) { x.DNSNames = nil }, forbidden},
		"email":               {func(_ *csr, x *req) { x.EmailAddresses = []string{"a@example.com"} }, forbidden},
		"URI":                 {func(_ *csr, x *req) { x.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }, forbidden},
		"another node":        {func(_ *csr, x *req) { x.Subject.CommonName = "system:node:e2" }, forbidden},
		"another group":       {groups("system:masters"), forbidden},
		"two groups":          {groups("system:nodes", "system:masters"), forbidden},
		"client's signer":     {signer("kubernetes.io/kube-apiserver-client-kubelet"), forbidden},
		"user's signer":       {signer("kubernetes.io/kube-apiserver-client"), forbidden},
		"no signer":           {signer(""), forbidden},
		"client auth":         {usages("digital signature", "client auth"), forbidden},
		"client auth, too":    {usages("digital signature", "server auth", "client auth"), forbidden},
		"no usages":           {usages(), forbidden},
		"repeated usages":     {usages("digital signature", "digital signature", "server auth"), forbidden},
		"no request":          {request([]byte("x")), bad},
		"other PEM":           {request([]byte("-----BEGIN X-----\neA==\n-----END X-----\n")), bad},
		"two blocks":          {two, bad},
		"not what was signed": {func(c *csr, x *req) { c.Spec.Request = forged(t, x) }, bad},
		"a long request":      {long, bad},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			cached := fakes.Node("e1")
			cached.Status.Addresses = []v1.NodeAddress{
				{Type: v1.NodeInternalIP, Address: "192.0.2.7"},
				{Type: v1.NodeInternalIP, Address: "2001:db8::7"},
				{Type: v1.NodeHostName, Address: "e1.example.com"},
			}
			w.add(cached)
			now := cached.DeepCopy()
			now.APIVersion, now.Kind = "v1", "Node"
			now.Status.Addresses = append(now.Status.Addresses,
				v1.NodeAddress{Type: v1.NodeInternalIP, Address: "192.0.2.8"})
			var sent []string
			w.api.Answer(func(r fakes.Call) (int, any) {
				if r.Method == http.MethodGet {
					return 200, now
				}
				sent = append(sent, r.Body)
				return 201, map[string]any{"kind": "CertificateSigningRequest", "apiVersion": "certificates.k8s.io/v1"}
			})
			status, _ := failure(t, w.ask("e1", "insert", "default/certificatesigningrequest/c",
				servingCSR(t, tc.change)))
			var reason metav1.StatusReason
			if status != nil {
				reason = status.Reason
			}
			if reason != tc.reason || (len(sent) == 1) != (tc.reason == "") {
				t.Errorf("answered with %q, %d requests sent on; want %q and a request if that is none: %+v",
					reason, len(sent), tc.reason, status)
			}
		})
	}
}

// forged is a request whose signature is another's.
func forged(t *testing.T, x *x509.CertificateRequest) []byte {
	t.Helper()
	block, _ := pem.Decode(signedRequest(t, x))
	block.Bytes[len(block.Bytes)-1] ^= 1
	return pem.EncodeToMemory(block)
}

// TestCSRIsNarrowed: what the API server sets, and what nobody asked for, is not passed on; the wanted lifetime is.
func TestCSRIsNarrowed(t *testing.T) {
	w := newFixture(t)
	var got certificatesv1.CertificateSigningRequest
	w.api.Answer(func(r fakes.Call) (int, any) {
		if err := json.Unmarshal([]byte(r.Body), &got); err != nil {
			t.Errorf("body %s: %v, want a request", r.Body, err)
		}
		return 201, map[string]any{"kind": "CertificateSigningRequest", "apiVersion": "certificates.k8s.io/v1"}
	})
	answer := w.ask("e1", "insert", "default/certificatesigningrequest/c",
		servingCSR(t, func(c *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
			c.Labels, c.OwnerReferences = map[string]string{"a": "b"}, []metav1.OwnerReference{{Name: "x"}}
			c.Spec.Username, c.Spec.UID, c.Spec.Groups = "admin", "u", []string{"system:masters"}
			c.Spec.Extra = map[string]certificatesv1.ExtraValue{"a": {"b"}}
			c.Spec.ExpirationSeconds = ptr.To[int32](3600)
			c.Status.Certificate = []byte("x")
		}))
	if status, _ := failure(t, answer); status != nil {
		t.Fatalf("answered with %+v, want it accepted", status)
	}
	spec := got.Spec
	if got.Name != "c" || got.Labels != nil || got.OwnerReferences != nil || got.Status.Certificate != nil ||
		spec.Username != "" || spec.UID != "" || spec.Groups != nil || spec.Extra != nil ||
		ptr.Deref(spec.ExpirationSeconds, 0) != 3600 || !strings.Contains(string(spec.Request), "CERTIFICATE REQUEST") {
		t.Errorf("passed on: %+v, want the name, the request, its signer, usages and expirationSeconds alone", got)
	}
}
