package servingcert

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// cluster signs what was approved, as the signer kubernetes.io/kubelet-serving does.
type cluster struct {
	mu       sync.Mutex
	down     error
	approve  bool
	deny     bool
	wrong    bool
	life     time.Duration
	key      *ecdsa.PrivateKey
	requests map[string]*certificatesv1.CertificateSigningRequest
	made     int
}

func newCluster(t *testing.T) *cluster {
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{key: key, life: time.Hour, requests: map[string]*certificatesv1.CertificateSigningRequest{}}
}

func (c *cluster) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *cluster) CreateCSR(
	_ context.Context, csr *certificatesv1.CertificateSigningRequest,
) (*certificatesv1.CertificateSigningRequest, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil {
		return nil, c.down
	}
	if _, ok := c.requests[csr.Name]; ok {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{}, csr.Name)
	}
	c.made++
	c.requests[csr.Name] = csr.DeepCopy()
	return csr, nil
}

func (c *cluster) CSR(_ context.Context, name string) (*certificatesv1.CertificateSigningRequest, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil {
		return nil, c.down
	}
	csr, ok := c.requests[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
	}
	out := csr.DeepCopy()
	switch {
	case c.deny:
		out.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
			{Type: certificatesv1.CertificateDenied, Message: "not here"},
		}
	case c.approve:
		out.Status.Certificate = c.sign(out)
	}
	return out, nil
}

func (c *cluster) sign(csr *certificatesv1.CertificateSigningRequest) []byte {
	block, _ := pem.Decode(csr.Spec.Request)
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || req.Subject.CommonName != "system:node:n1" ||
		!slices.Equal(req.Subject.Organization, []string{"system:nodes"}) ||
		csr.Spec.SignerName != "kubernetes.io/kubelet-serving" ||
		!slices.Equal(csr.Spec.Usages, []certificatesv1.KeyUsage{"digital signature", "server auth"}) ||
		len(req.DNSNames)+len(req.IPAddresses) == 0 {
		panic("the signer would not sign it")
	}
	public := req.PublicKey
	if c.wrong {
		other, err := certs.NewKey()
		if err != nil {
			panic(err)
		}
		public = other.Public()
	}
	serial, err := certs.NewSerial()
	if err != nil {
		panic(err)
	}
	ca := &x509.Certificate{Subject: pkix.Name{CommonName: "cluster"}, SerialNumber: serial}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      req.Subject,
		DNSNames:     req.DNSNames,
		IPAddresses:  req.IPAddresses,
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(c.life),
	}, ca, public, c.key)
	if err != nil {
		panic(err)
	}
	return certs.EncodeCertPEM(der)
}

// issuer is who signed what a certificate serves now.
func issuer(t *testing.T, c *Certificate) string {
	t.Helper()
	got, err := c.Get(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf := got.Leaf
	if leaf == nil {
		if leaf, err = x509.ParseCertificate(got.Certificate[0]); err != nil {
			t.Fatal(err)
		}
	}
	if !certs.Fits(leaf, got.PrivateKey.(*ecdsa.PrivateKey)) {
		t.Fatalf("Fits(certificate of %s, its key) = false, want true", leaf.Issuer.CommonName)
	}
	return leaf.Issuer.CommonName
}

func TestOwnCertificate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	now := time.Now()
	opts := Options{
		Dir:  dir,
		Node: "n1",
		IPs:  func() []string { return []string{"192.0.2.7"} },
		Now:  func() time.Time { return now },
	}
	c := New(opts)
	first, err := c.Get(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Leaf.VerifyHostname("n1"); err != nil {
		t.Error(err)
	}
	if err := first.Leaf.VerifyHostname("192.0.2.7"); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(filepath.Join(dir, selfKey)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v; want mode 0600", info, err)
	}
	again, err := New(opts).Get(nil)
	if err != nil {
		t.Errorf("Get after a restart: %v, want no error", err)
	} else if !again.Leaf.Equal(first.Leaf) {
		t.Errorf("serial after a restart = %v, want %v", again.Leaf.SerialNumber, first.Leaf.SerialNumber)
	}
	now = now.Add(selfLife)
	if later, err := c.Get(nil); err != nil {
		t.Errorf("Get at the expiry: %v, want no error", err)
	} else if later.Leaf.Equal(first.Leaf) {
		t.Errorf("serial at the expiry = %v, want another", later.Leaf.SerialNumber)
	}
	now = now.Add(-2 * selfLife) // a clock that goes back
	if early, err := c.Get(nil); err != nil || early.Leaf.NotBefore.After(now) {
		t.Errorf("certificate valid from %v, %v; want it valid already by a clock that went back", early.Leaf.NotBefore,
			err)
	}
	// A disk that takes nothing, and damaged files, are no reason to have none.
	if err := os.WriteFile(filepath.Join(dir, selfCert), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := issuer(t, New(opts)); got != "n1@edgecore" {
		t.Errorf("issuer %q, want \"n1@edgecore\"", got)
	}
	opts.Dir = filepath.Join(dir, selfKey, "no folder")
	if got := issuer(t, New(opts)); got != "n1@edgecore" {
		t.Errorf("issuer %q, want \"n1@edgecore\"", got)
	}
}

// TestGivenCertificate: that of the configuration, again when its files change.
func TestGivenCertificate(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	var fault error
	c := New(Options{
		Dir:      filepath.Join(dir, "pki"),
		CertFile: cert,
		KeyFile:  key,
		Node:     "n1",
		IPs:      func() []string { return nil },
		Fault:    func(err error) { fault = err },
	})
	if got := issuer(t, c); got != "n1@edgecore" || fault == nil || !strings.Contains(fault.Error(), cert) {
		t.Errorf("%s, %v; want the node's own, and a word on the file", got, fault)
	}
	put := func(name string) {
		other := New(Options{Dir: filepath.Join(dir, name), Node: name, IPs: func() []string { return nil }})
		if _, err := other.Get(nil); err != nil {
			t.Fatal(err)
		}
		for from, to := range map[string]string{selfCert: cert, selfKey: key} {
			data, err := os.ReadFile(filepath.Join(dir, name, from))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	put("given")
	if got := issuer(t, c); got != "given@edgecore" || fault != nil {
		t.Errorf("issuer %q, fault %v; want \"given@edgecore\", nil", got, fault)
	}
	if err := os.WriteFile(key, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := issuer(t, c); got != "given@edgecore" || fault == nil {
		t.Errorf("issuer %q, fault %v; want \"given@edgecore\", an error", got, fault)
	}
	put("renewed")
	if got := issuer(t, c); got != "renewed@edgecore" || fault != nil {
		t.Errorf("issuer %q, fault %v; want \"renewed@edgecore\", nil", got, fault)
	}
	if err := c.Run(t.Context()); err != nil { // which has nothing to do
		t.Error(err)
	}
}

// TestClusterCertificate: asked for once, however often the node starts; served when it is approved; renewed in time,
// for new addresses too, and never lost.
func TestClusterCertificate(t *testing.T) {
	api := newCluster(t)
	ip := []string{}
	opts := Options{Dir: t.TempDir(), Node: "n1", IPs: func() []string { return ip }, Cluster: api}
	step := func(c *Certificate, want string) {
		t.Helper()
		_, err := c.step(t.Context())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	c := New(opts)
	step(c, "no network address")
	ip = []string{"192.0.2.7"}
	api.down = errors.New("not connected")
	step(c, "not connected")
	api.down = nil
	step(c, "kubectl certificate approve csr-")
	c = New(opts)
	c.readSigned()
	step(c, "it is not approved yet")
	if api.made != 1 || issuer(t, c) != "n1@edgecore" {
		t.Errorf("%d requests, serves %s; want 1, \"n1@edgecore\"", api.made, issuer(t, c))
	}
	api.deny = true
	step(c, "Denied: not here")
	api.deny, api.wrong, api.approve = false, true, true
	step(c, "it is not approved yet") // made again, with another key
	step(c, "not for this node's key")
	api.wrong = false
	for range 2 {
		_, _ = c.step(t.Context())
	}
	if got := issuer(t, c); got != "cluster" {
		t.Fatalf("issuer of the approved certificate = %q, want \"cluster\"", got)
	}
	first := c.signed.Leaf
	made := api.made
	step(c, "")
	if api.made != made {
		t.Errorf("%d requests once the certificate is there, want %d", api.made, made)
	}
	c = New(opts)
	c.readSigned()
	if got := issuer(t, c); got != "cluster" {
		t.Errorf("issuer after a restart = %q, want \"cluster\"", got)
	} else if !c.signed.Leaf.Equal(first) {
		t.Errorf("serial after a restart = %v, want %v", c.signed.Leaf.SerialNumber, first.SerialNumber)
	}
	ip = []string{"192.0.2.8"}
	for range 2 {
		_, _ = c.step(t.Context())
	}
	if err := c.signed.Leaf.VerifyHostname("192.0.2.8"); err != nil || api.made != made+1 {
		t.Errorf("%v after the address changed, %d requests; want no error, one", err, api.made-made)
	}
	now := time.Now().Add(55 * time.Minute)
	c.opts.Now = func() time.Time { return now }
	before := c.signed.Leaf
	for range 2 {
		_, _ = c.step(t.Context())
	}
	if c.signed.Leaf.Equal(before) {
		t.Errorf("certificate shortly before its expiry still has serial %v, want another", before.SerialNumber)
	}
	now = time.Now().Add(100 * time.Hour)
	if got := issuer(t, c); got != "n1@edgecore" {
		t.Errorf("issuer after the expiry = %q, want \"n1@edgecore\"", got)
	}
}

// TestPowerCut between the certificate's file and its key's.
func TestPowerCut(t *testing.T) {
	api := newCluster(t)
	api.approve = true
	opts := Options{Dir: t.TempDir(), Node: "n1", IPs: func() []string { return []string{"192.0.2.7"} }, Cluster: api}
	c := New(opts)
	key, err := c.pending()
	if err != nil {
		t.Fatal(err)
	}
	names, ips := c.names()
	csr, err := c.signingRequest(key, names, ips)
	if err != nil {
		t.Fatal(err)
	}
	if err := certs.WriteFile(filepath.Join(opts.Dir, signedCert), api.sign(csr)); err != nil {
		t.Fatal(err)
	}
	c = New(opts)
	c.readSigned()
	if got := issuer(t, c); got != "cluster" {
		t.Errorf("issuer after a power cut = %q, want \"cluster\"", got)
	}
}

// TestRun waits for the link and the approval, and ends with its context.
func TestRun(t *testing.T) {
	api := newCluster(t)
	api.down = errors.New("not connected")
	var mu sync.Mutex
	var faults []string
	c := New(Options{
		Dir:     t.TempDir(),
		Node:    "n1",
		IPs:     func() []string { return []string{"192.0.2.7"} },
		Cluster: api,
		Fault: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				faults = append(faults, err.Error())
			} else {
				faults = append(faults, "")
			}
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	last := func() string {
		mu.Lock()
		defer mu.Unlock()
		if len(faults) == 0 {
			return "-"
		}
		return faults[len(faults)-1]
	}
	wait.True(t, "the fault to be reported", func() bool { return strings.Contains(last(), "not connected") })
	api.set(func() { api.down, api.approve = nil, true })
	c.Wake()
	wait.True(t, "the certificate", func() bool { c.Wake(); return issuer(t, c) == "cluster" })
	wait.True(t, "the fault to be over", func() bool { return last() == "" })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
