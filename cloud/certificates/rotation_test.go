package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// handshake connects as a node with a CA file and a certificate, and returns the chain that the cloud showed.
func handshake(
	t *testing.T, a *Authority, knows *x509.Certificate, cert *tls.Certificate,
) ([]*x509.Certificate, error) {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	server := tls.Server(far, a.ServerTLS(tls.RequireAndVerifyClientCert))
	done := make(chan error, 1)
	go func() {
		defer far.Close()
		done <- server.Handshake()
	}()
	roots := x509.NewCertPool()
	roots.AddCert(knows)
	client := tls.Client(near, &tls.Config{
		RootCAs:      roots,
		ServerName:   "cloud.example",
		Time:         a.opts.Now,
		Certificates: []tls.Certificate{*cert},
	})
	err := client.Handshake()
	near.Close()
	if other := <-done; err == nil {
		err = other
	}
	return client.ConnectionState().PeerCertificates, err
}

// TestRotateCA: every replica takes the new CA up while it runs. Nodes that know the old one only go on connecting, and
// the certificates that it issued are good until the rotation is finished.
func TestRotateCA(t *testing.T) {
	secrets, c := newFakeSecrets(), newClock()
	a, b := newTestAuthority(t, secrets, c), newTestAuthority(t, secrets, c)
	d := &device{t: t, address: serve(t, b, fakeNodes{}), a: a}
	first := a.CA()
	old := certFor(t, a, "edge1")
	applied(t, a, b)
	cas := []*x509.Certificate{first}
	certificates := []*tls.Certificate{old}
	for range 2 {
		before := cas[len(cas)-1]
		if err := RotateCA(t.Context(), secrets, c.now()); err != nil {
			t.Fatal(err)
		}
		for _, replica := range []*Authority{a, b} {
			wait.True(t, "the new CA and its server certificate on each replica", func() bool {
				return !replica.CA().Equal(before) && replica.server.Load().cert.CheckSignatureFrom(replica.CA()) == nil
			})
		}
		if !a.CA().Equal(b.CA()) {
			t.Fatalf("replicas have CAs %v and %v, want one", a.CA().SerialNumber, b.CA().SerialNumber)
		}
		cas = append(cas, a.CA())
		got := d.renewAs("edge1", old)
		if got.status != http.StatusOK {
			t.Fatalf("renewal of a certificate of the first CA: status %d %s, want %d", got.status, got.body,
				http.StatusOK)
		}
		renewed, err := x509.ParseCertificate([]byte(got.body))
		if err != nil {
			t.Fatal(err)
		}
		if err := renewed.CheckSignatureFrom(a.CA()); err != nil {
			t.Errorf("the renewed certificate is not of the new CA: %v", err)
		}
		certificates = append(certificates, certFor(t, b, "edge1"))
		for i, ca := range cas {
			for j, cert := range certificates {
				if _, err := handshake(t, a, ca, cert); err != nil {
					t.Errorf("node that knows CA %d and has a certificate of CA %d, of %d: %v", i, j, len(cas), err)
				}
			}
		}
	}
	if err := RotateCA(t.Context(), secrets, c.now()); err == nil ||
		!strings.Contains(err.Error(), "rotate ca --finish") {
		t.Errorf("a third rotation: %v, want that the others are to be finished", err)
	}
	wait.True(t, "a general token of the new CA", func() bool {
		return a.tokenIsFresh(string(secrets.data(tokenSecret, tokenData)))
	})
	late := newTestAuthority(t, secrets, c) // starts in the middle of it
	sameAuthority(t, a, late)
	if _, err := handshake(t, late, first, old); err != nil {
		t.Errorf("a replica that starts after the rotation: %v", err)
	}

	if n, err := FinishCA(t.Context(), secrets); err != nil || n != 2 {
		t.Fatalf("FinishCA = %d, %v; want 2", n, err)
	}
	wait.True(t, "the old CAs to be refused", func() bool { return a.Check("edge1", old.Leaf) != nil })
	if err := a.Check("edge1", old.Leaf); !strings.Contains(err.Error(), "`cloudcore gettoken --node edge1`") {
		t.Errorf("Check = %v, want the remedy in it", err)
	}
	if _, err := handshake(t, a, first, old); err == nil {
		t.Error("a certificate of the first CA is let in after the rotation was finished")
	}
	// A node that never learns of a new CA, as KubeEdge's, has renewed its certificate all the same.
	chain, err := handshake(t, a, first, certificates[2])
	if err != nil || len(chain) != 3 {
		t.Errorf("a node with the first CA's file and a new certificate: %v, %d certificates shown; want no error, 3",
			err, len(chain))
	}
}

// TestRotateTokenKey: earlier tokens are void on every replica, also when someone deletes the secret.
func TestRotateTokenKey(t *testing.T) {
	secrets, c := newFakeSecrets(), newClock()
	a, b := newTestAuthority(t, secrets, c), newTestAuthority(t, secrets, c)
	applied(t, a, b)
	for what, rotate := range map[string]func() error{
		"rotated": func() error { return RotateTokenKey(t.Context(), secrets) },
		"deleted": func() error { secrets.remove(tokenKeySecret); return nil },
	} {
		old := newTokenFor(t, secrets, "edge1", c)
		if err := rotate(); err != nil {
			t.Fatal(err)
		}
		for _, replica := range []*Authority{a, b} {
			wait.True(t, "tokens of before to be void: "+what, func() bool {
				_, err := replica.VerifyToken(old.Bearer, "edge1")
				return err != nil
			})
		}
		wait.True(t, "a new general token: "+what, func() bool {
			token := string(secrets.data(tokenSecret, tokenData))
			return a.tokenIsFresh(token) && b.tokenIsFresh(token)
		})
		if _, err := b.VerifyToken(newTokenFor(t, secrets, "edge1", c).Bearer, "edge1"); err != nil {
			t.Errorf("a token of the new key, %s: %v", what, err)
		}
	}
}

// TestBadRotation: what cannot be used is not taken over.
func TestBadRotation(t *testing.T) {
	secrets, c := newFakeSecrets(), newClock()
	a := newTestAuthority(t, secrets, c)
	ca, key := a.CA(), *a.tokenKey.Load()
	data, err := a.ca.Load().encode()
	if err != nil {
		t.Fatal(err)
	}
	data[previousData] = []byte("x")
	a.applyCA(data)
	a.applyCA(nil)
	a.applyTokenKey(map[string][]byte{tokenKeyData: []byte("short")})
	if !a.CA().Equal(ca) || string(*a.tokenKey.Load()) != string(key) {
		t.Error("a damaged secret replaced the CA or the key of tokens")
	}
	if err := RotateCA(t.Context(), secrets, c.now().Add(2*caLifetime)); err == nil {
		t.Error("a CA that has expired is rotated, want an error")
	}
}
