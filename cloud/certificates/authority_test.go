package certificates

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// TestSecretsAreKubeEdges: where they lie and in which form, so that either cloudcore can take over.
func TestSecretsAreKubeEdges(t *testing.T) {
	secrets, c := newFakeSecrets(), newClock()
	a := newTestAuthority(t, secrets, c)
	ca, err := x509.ParseCertificate(secrets.data("casecret", "cadata"))
	if err != nil {
		t.Fatal(err)
	}
	if !ca.Equal(a.CA()) || !ca.IsCA || ca.Subject.CommonName != "KubeEdge" {
		t.Errorf("CA %v, IsCA %v; want the CA KubeEdge of the authority", ca.Subject, ca.IsCA)
	}
	caKey, err := x509.ParseECPrivateKey(secrets.data("casecret", "cakeydata"))
	if err != nil {
		t.Fatalf("the CA's key: %v, want SEC1 form", err)
	}
	if !caKey.PublicKey.Equal(ca.PublicKey) {
		t.Errorf("public key of cakeydata = %v, want the CA's: %v", caKey.PublicKey, ca.PublicKey)
	}
	server, err := x509.ParseCertificate(secrets.data("cloudcoresecret", "cloudcoredata"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x509.ParseECPrivateKey(secrets.data("cloudcoresecret", "cloudcorekeydata")); err != nil {
		t.Error(err)
	}
	for _, host := range []string{"127.0.0.1", "cloud.example"} {
		if _, err := server.Verify(x509.VerifyOptions{
			Roots: a.Pool(), DNSName: host, CurrentTime: c.now(),
		}); err != nil {
			t.Errorf("the server certificate is not valid for %s: %v", host, err)
		}
	}
	token, err := certs.ParseToken(string(secrets.data("tokensecret", "tokendata")))
	if err != nil || !token.SignedBy(ca.Raw) || token.Claims.Node != "" ||
		!token.Claims.Expires.Equal(c.now().Add(24*time.Hour)) {
		t.Errorf("token %+v, %v; want one for any node that expires in 24 h", token, err)
	}
	for name, s := range secrets.secrets {
		if s.Type != v1.SecretTypeOpaque {
			t.Errorf("%s has type %s, want %s", name, s.Type, v1.SecretTypeOpaque)
		}
	}
	if key := secrets.data("tokenkeysecret", "tokenkeydata"); len(key) != 32 ||
		bytes.Contains(secrets.data("casecret", "cakeydata"), key) {
		t.Errorf("the key for tokens has %d bytes, or is the CA's; want 32 of its own", len(key))
	}
}

// TestRestart: what is there is taken, and nothing is written.
func TestRestart(t *testing.T) {
	secrets, c := newFakeSecrets(), newClock()
	first := newTestAuthority(t, secrets, c)
	writes := secrets.writes
	second := newTestAuthority(t, secrets, c)
	if secrets.writes != writes {
		t.Errorf("%d writes at a restart, want none", secrets.writes-writes)
	}
	sameAuthority(t, first, second)
}

func sameAuthority(t *testing.T, a, b *Authority) {
	t.Helper()
	if !a.CA().Equal(b.CA()) || !a.ca.Load().key.Equal(b.ca.Load().key) ||
		!bytes.Equal(*a.tokenKey.Load(), *b.tokenKey.Load()) {
		t.Errorf("replicas have CAs %v and %v, same CA key %v, same token key %v; want one CA and the same keys",
			a.CA().SerialNumber, b.CA().SerialNumber, a.ca.Load().key.Equal(b.ca.Load().key),
			bytes.Equal(*a.tokenKey.Load(), *b.tokenKey.Load()))
	}
}

// TestReplicasShare: many start at once, and at every write each of them may be the slower one.
func TestReplicasShare(t *testing.T) {
	for range 20 {
		secrets, c := newFakeSecrets(), newClock()
		const n = 5
		replicas := make([]*Authority, n)
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range n {
			wg.Go(func() {
				<-start
				a, err := New(t.Context(), secrets, Options{Addresses: []string{"127.0.0.1"}, Now: c.now})
				if err != nil {
					t.Error(err)
					return
				}
				replicas[i] = a
			})
		}
		close(start)
		wg.Wait()
		for _, a := range replicas {
			if a == nil {
				t.FailNow()
			}
			sameAuthority(t, replicas[0], a)
			token, err := replicas[0].NewToken("", time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.VerifyToken(token.Bearer, "edge1"); err != nil {
				t.Error(err)
			}
		}
		if secrets.writes != 4 {
			t.Errorf("%d writes, want one for each secret", secrets.writes)
		}
	}
}

// TestSlowerReplica makes the other replica faster at each kind of write, for certain.
func TestSlowerReplica(t *testing.T) {
	for _, secret := range []string{"casecret", "cloudcoresecret", "tokensecret", "tokenkeysecret"} {
		t.Run(secret, func(t *testing.T) {
			secrets, c := newFakeSecrets(), newClock()
			var faster *Authority
			secrets.before = func(name string) {
				if name == secret && faster == nil {
					secrets.before = nil
					faster = newTestAuthority(t, secrets, c)
				}
			}
			slower := newTestAuthority(t, secrets, c)
			if faster == nil {
				t.Fatalf("writes of secret %s = 0, want one before which the faster replica starts", secret)
			}
			sameAuthority(t, slower, faster)
			if secrets.writes != 4 {
				t.Errorf("%d writes, want 4", secrets.writes)
			}
		})
	}
	secrets, c := newFakeSecrets(), newClock()
	newTestAuthority(t, secrets, c)
	secrets.before = func(name string) { // whoever writes for ever
		secrets.mu.Lock()
		defer secrets.mu.Unlock()
		secrets.version++
		secrets.secrets[name].ResourceVersion = strconv.Itoa(secrets.version)
	}
	_, err := New(t.Context(), secrets, Options{Addresses: []string{"192.0.2.9"}, Now: c.now})
	wantError(t, err, "other clients keep changing it")
}

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("error %v, want none", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("error %v, want %q in it", err, want)
	}
}

// TestDamagedSecrets: what edges trust is not replaced because it cannot be read.
func TestDamagedSecrets(t *testing.T) {
	for name, tc := range map[string]struct {
		secret, key string
		value       []byte
		err         string
	}{
		"CA":         {"casecret", "cadata", []byte("x"), "every edge has to join again"},
		"CA missing": {"casecret", "cadata", nil, "restore the secret from a backup"},
		"CA key":     {"casecret", "cakeydata", []byte("x"), "cakeydata: not a private key"},
		"token key":  {"tokenkeysecret", "tokenkeydata", []byte("short"), "less than 32 bytes"},
		"server":     {"cloudcoresecret", "cloudcoredata", []byte("x"), ""},
		"token":      {"tokensecret", "tokendata", []byte("x"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			secrets, c := newFakeSecrets(), newClock()
			newTestAuthority(t, secrets, c)
			secrets.secrets[tc.secret].Data[tc.key] = tc.value
			_, err := New(t.Context(), secrets, Options{Now: c.now})
			wantError(t, err, tc.err)
			if got := secrets.data(tc.secret, tc.key); (tc.err != "") != bytes.Equal(got, tc.value) {
				t.Errorf("afterwards it is %q, want it replaced: %v", got, tc.err == "")
			}
		})
	}
	secrets, c := newFakeSecrets(), newClock()
	newTestAuthority(t, secrets, c)
	other := newTestAuthority(t, newFakeSecrets(), c)
	key, err := certs.EncodeKey(other.ca.Load().key)
	if err != nil {
		t.Fatal(err)
	}
	secrets.secrets["casecret"].Data["cakeydata"] = key
	_, err = New(t.Context(), secrets, Options{Now: c.now})
	wantError(t, err, "cadata does not belong to cakeydata")
	c.add(101 * 365 * 24 * time.Hour)
	secrets.secrets["casecret"].Data["cadata"] = other.CA().Raw
	_, err = New(t.Context(), secrets, Options{Now: c.now})
	wantError(t, err, "it expired at")
	c.add(-102 * 365 * 24 * time.Hour)
	_, err = New(t.Context(), secrets, Options{Now: c.now})
	wantError(t, err, "set the clock")
}

func TestAPIFails(t *testing.T) {
	secrets, c := newFakeSecrets(), newClock()
	secrets.fail = errors.New("no API server")
	_, err := New(t.Context(), secrets, Options{Now: c.now})
	wantError(t, err, "secret casecret: no API server")
	secrets.fail = apierrors.NewForbidden(secretsResource, "casecret", errors.New("no"))
	_, err = New(t.Context(), secrets, Options{Now: c.now})
	wantError(t, err, "role must allow")
}

func TestFilesWin(t *testing.T) {
	dir, c := t.TempDir(), newClock()
	theirs := newTestAuthority(t, newFakeSecrets(), c, func(o *Options) { o.Addresses = []string{"files.example"} })
	server := theirs.server.Load()
	f := certs.Files{CA: dir + "/unused", Cert: dir + "/ca.crt", Key: dir + "/ca.key"}
	saveFiles(t, f, theirs.CA(), theirs.ca.Load().key)
	s := certs.Files{CA: dir + "/unused", Cert: dir + "/server.crt", Key: dir + "/server.key"}
	saveFiles(t, s, server.cert, server.key)

	secrets := newFakeSecrets()
	newTestAuthority(t, secrets, c) // one without files was here before
	opts := func(o *Options) { o.CAFile, o.CAKeyFile, o.CertFile, o.KeyFile = f.Cert, f.Key, s.Cert, s.Key }
	a := newTestAuthority(t, secrets, c, opts)
	if !a.CA().Equal(theirs.CA()) || !a.server.Load().cert.Equal(server.cert) {
		t.Errorf("CA %v, server certificate %v; want those of the files, %v and %v", a.CA().SerialNumber,
			a.server.Load().cert.SerialNumber, theirs.CA().SerialNumber, server.cert.SerialNumber)
	}
	if !bytes.Equal(secrets.data("casecret", "cadata"), theirs.CA().Raw) ||
		!bytes.Equal(secrets.data("cloudcoresecret", "cloudcoredata"), server.cert.Raw) {
		t.Errorf("secrets: casecret %x, cloudcoresecret %x; want the certificates of the files, %x and %x",
			secrets.data("casecret", "cadata"), secrets.data("cloudcoresecret", "cloudcoredata"), theirs.CA().Raw,
			server.cert.Raw)
	}
	token, err := ReadToken(t.Context(), secrets, c.now())
	if err != nil || !token.SignedBy(theirs.CA().Raw) {
		t.Errorf("ReadToken = %v, %v; want a token signed by the CA of the files", token, err)
	}
	writes := secrets.writes
	newTestAuthority(t, secrets, c, opts)
	if secrets.writes != writes {
		t.Errorf("writes after a second start = %d, want %d as before", secrets.writes, writes)
	}
	if err := os.Remove(f.Key); err != nil {
		t.Fatal(err)
	}
	_, err = New(t.Context(), secrets, Options{CAFile: f.Cert, CAKeyFile: f.Key, Now: c.now})
	wantError(t, err, "keep both files or neither")
	_, err = New(t.Context(), secrets, Options{CAFile: s.Cert, CAKeyFile: s.Key, Now: c.now})
	wantError(t, err, "is not a CA certificate")
}

func saveFiles(t *testing.T, f certs.Files, cert *x509.Certificate, key *ecdsa.PrivateKey) {
	t.Helper()
	if err := f.Save(cert.Raw, cert.Raw, key); err != nil {
		t.Fatal(err)
	}
}

// TestServerCertificate: reissued for new addresses, which replicas do not take from each other, and near
// its end.
func TestServerCertificate(t *testing.T) {
	secrets, c := newFakeSecrets(), newClock()
	with := func(addresses ...string) func(*Options) { return func(o *Options) { o.Addresses = addresses } }
	step := func(name string, want []string, reissued bool, addresses ...string) {
		t.Helper()
		before := secrets.data("cloudcoresecret", "cloudcoredata")
		a := newTestAuthority(t, secrets, c, with(addresses...))
		if diff := cmp.Diff(want, sansOf(a.server.Load().cert)); diff != "" {
			t.Errorf("%s: names mismatch (-want +got):\n%s", name, diff)
		}
		if got := !bytes.Equal(before, a.server.Load().cert.Raw); got != reissued {
			t.Errorf("%s: reissued %v, want %v", name, got, reissued)
		}
	}
	step("first, with KubeEdge's empty name", []string{"192.0.2.1", "a.example"}, true, "192.0.2.1", "a.example", "")
	step("the same", []string{"192.0.2.1", "a.example"}, false, "192.0.2.1", "a.example", "")
	step("fewer", []string{"192.0.2.1", "a.example"}, false, "192.0.2.1")
	step("another replica", []string{"192.0.2.2", "192.0.2.1", "a.example"}, true, "192.0.2.2")
	step("the first replica", []string{"192.0.2.2", "192.0.2.1", "a.example"}, false, "192.0.2.1", "a.example")
	step("IPv6", []string{"2001:db8::1", "192.0.2.2", "192.0.2.1", "a.example"}, true, "2001:db8::1")
	step("IPv6, other spelling", []string{"2001:db8::1", "192.0.2.2", "192.0.2.1", "a.example"}, false, "2001:0db8::1")
	step("a name for all below", []string{"2001:db8::1", "192.0.2.2", "192.0.2.1", "*.b.example", "a.example"}, true,
		"*.b.example")
	step("a name for all below, again", []string{"2001:db8::1", "192.0.2.2", "192.0.2.1", "*.b.example", "a.example"},
		false, "*.b.example")
	c.add(500 * 24 * time.Hour)
	step("near its end", []string{"192.0.2.3"}, true, "192.0.2.3")
	step("near its end, done", []string{"192.0.2.3"}, false, "192.0.2.3")
	c.add(1000 * 24 * time.Hour)
	step("after its end", []string{"192.0.2.3"}, true, "192.0.2.3")
}

// TestRun: token and server certificate are renewed while it runs, and connections get the new one.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secrets := newFakeSecrets()
		var ahead atomic.Int64 // of the bubble's clock, which would tick through all the days
		now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		a, err := New(t.Context(), secrets, Options{Addresses: []string{"127.0.0.1"}, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		first, token := a.server.Load(), string(secrets.data("tokensecret", "tokendata"))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := a.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(11*time.Hour + time.Minute)
		if string(secrets.data("tokensecret", "tokendata")) != token {
			t.Errorf("token after 11 h = %s, want %s as before", secrets.data("tokensecret", "tokendata"), token)
		}
		time.Sleep(time.Hour)
		if string(secrets.data("tokensecret", "tokendata")) == token {
			t.Errorf("token after 12 h = %s, want a new one", secrets.data("tokensecret", "tokendata"))
		}
		if parsed, err := certs.ParseToken(token); err != nil {
			t.Error(err)
		} else if _, err := a.VerifyToken(parsed.Bearer, "edge1"); err != nil {
			t.Errorf("the token before is void already: %v", err)
		}
		secrets.mu.Lock()
		secrets.fail = errors.New("no API server") // which is no reason to end
		secrets.mu.Unlock()
		time.Sleep(time.Hour)
		secrets.mu.Lock()
		secrets.fail = nil
		secrets.mu.Unlock()
		ahead.Store(int64(500 * 24 * time.Hour))
		time.Sleep(refreshEvery)
		synctest.Wait()
		if a.server.Load().cert.Equal(first.cert) {
			t.Errorf("server certificate = %v as before, want a renewed one", first.cert.SerialNumber)
		}
		cancel()
		wg.Wait()
	})
}

// TestClientGo uses the real client's types, and makes the namespace.
func TestClientGo(t *testing.T) {
	client := fake.NewClientset()
	for range 2 {
		secrets, err := SecretsOf(t.Context(), client, Namespace)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(t.Context(), secrets, Options{Addresses: []string{"127.0.0.1"}}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := client.CoreV1().Secrets(Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 4 {
		t.Errorf("%d secrets, %v; want 4", len(list.Items), err)
	}
	var _ Nodes = client.CoreV1().Nodes()
}
