package devicecert

import (
	"bytes"
	"crypto/x509"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

// env is a folder, the names and the clock of a device.
type env struct {
	dir   string
	names Names
	now   time.Time
}

func newEnv(t *testing.T) *env {
	return &env{
		dir: filepath.Join(t.TempDir(), "pki"),
		names: NamesOf([]netip.Addr{netip.MustParseAddr("169.254.30.10")},
			[]netip.Addr{netip.MustParseAddr("10.96.0.1")}, "cluster.local"),
		now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

func (e *env) open(t *testing.T) *Certificate {
	t.Helper()
	c, err := Open(e.options())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (e *env) options() Options {
	return Options{
		Dir:   e.dir,
		Node:  "n1",
		Names: func() Names { return e.names },
		Now:   func() time.Time { return e.now },
	}
}

// verify checks the served certificate as a client that holds a ca.crt.
func verify(t *testing.T, c *Certificate, ca []byte, host string, now time.Time) error {
	t.Helper()
	served, err := c.Get(nil)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		t.Fatalf("CA is %q, want PEM", ca)
	}
	_, err = served.Leaf.Verify(x509.VerifyOptions{
		Roots:       pool,
		DNSName:     host,
		CurrentTime: now,
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

// TestCAStays: a restarted agent has the CA that pods hold, and only its owner can read it.
func TestCAStays(t *testing.T) {
	e := newEnv(t)
	first := e.open(t)
	again := e.open(t)
	if !bytes.Equal(first.CA(), again.CA()) {
		t.Error("another CA after a restart, want the same one")
	}
	for _, host := range []string{
		"169.254.30.10", "127.0.0.1", "::1", "10.96.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local", "localhost",
	} {
		if err := verify(t, again, first.CA(), host, e.now); err != nil {
			t.Errorf("%s: %v, want it to be a name of the endpoint", host, err)
		}
	}
	if verify(t, again, first.CA(), "example.com", e.now) == nil {
		t.Error("example.com is a name of the endpoint, want it refused")
	}
	for _, name := range Files(e.dir) {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", name, info.Mode().Perm())
		}
	}
}

// TestWithoutClock: a device that starts in 1970 serves, and goes on when its clock is set, either way.
func TestWithoutClock(t *testing.T) {
	e := newEnv(t)
	set := e.now
	e.now = time.Unix(20, 0)
	c := e.open(t)
	ca := c.CA()
	for _, now := range []time.Time{e.now, set, set.AddDate(60, 0, 0), time.Unix(20, 0)} {
		e.now = now
		if err := verify(t, c, ca, "169.254.30.10", now); err != nil {
			t.Errorf("clock at %v: %v", now, err)
		}
	}
}

// TestNewNameWithOldCA: a ClusterIP that comes later does not make clients refuse the endpoint.
func TestNewNameWithOldCA(t *testing.T) {
	e := newEnv(t)
	c := e.open(t)
	ca := c.CA()
	if verify(t, c, ca, "10.0.0.1", e.now) == nil {
		t.Fatal("10.0.0.1 is a name of the endpoint already, want it refused")
	}
	e.names = NamesOf([]netip.Addr{netip.MustParseAddr("169.254.30.10")}, []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		"other.example")
	for _, host := range []string{"10.0.0.1", "kubernetes.default.svc.other.example"} {
		if err := verify(t, c, ca, host, e.now); err != nil {
			t.Errorf("%s: %v, want a certificate with the new names", host, err)
		}
	}
	if len(c.ca.PermittedDNSDomains) != 0 || len(c.ca.PermittedIPRanges) != 0 {
		t.Error("the CA has name constraints, want none")
	}
}

// TestServedIsRenewed: only when it is due.
func TestServedIsRenewed(t *testing.T) {
	e := newEnv(t)
	c := e.open(t)
	serial := func() string {
		served, err := c.Get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return served.Leaf.SerialNumber.String()
	}
	first, end := serial(), c.NotAfter()
	e.now = end.Add(-servedLeft - time.Second)
	if serial() != first {
		t.Error("another certificate before it was due, want the same one")
	}
	e.now = end.Add(-servedLeft)
	if serial() == first {
		t.Error("the same certificate 30 days before its end, want a new one")
	}
}

// TestDamagedCAIsReplaced: a CA that cannot be used is no use to pods either.
func TestDamagedCAIsReplaced(t *testing.T) {
	for i, content := range []string{"", "rubbish"} {
		for _, which := range Files("") {
			e := newEnv(t)
			old := e.open(t)
			if err := os.WriteFile(filepath.Join(e.dir, which), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			c := e.open(t)
			if bytes.Equal(c.CA(), old.CA()) {
				t.Errorf("case %d, %s: the same CA, want another one", i, which)
			}
			if again := e.open(t); !bytes.Equal(c.CA(), again.CA()) {
				t.Errorf("case %d, %s: another CA after a restart, want the one that was made", i, which)
			}
		}
	}
	e := newEnv(t)
	old := e.open(t)
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := certs.EncodeKeyPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	// As by a power cut before the certificate is written.
	if err := certs.WriteFile(filepath.Join(e.dir, caKey), text); err != nil {
		t.Fatal(err)
	}
	c := e.open(t)
	if bytes.Equal(c.CA(), old.CA()) || verify(t, c, c.CA(), "localhost", e.now) != nil {
		t.Error("a key that is not the CA's is used with it, want another CA")
	}
}

// TestDiskTakesNothing: the endpoint serves also if the CA cannot be kept, and says so.
func TestDiskTakesNothing(t *testing.T) {
	e := newEnv(t)
	if err := os.WriteFile(e.dir, nil, 0o600); err != nil { // a file in place of the folder
		t.Fatal(err)
	}
	c, err := Open(e.options())
	if err == nil || c == nil {
		t.Fatalf("Open = %v, %v; want a CA and an error that it is only in memory", c, err)
	}
	if err := verify(t, c, c.CA(), "localhost", e.now); err != nil {
		t.Error(err)
	}
}

// TestUnreadableCAIsKept: a CA that could only not be read is there again when the disk is.
func TestUnreadableCAIsKept(t *testing.T) {
	e := newEnv(t)
	old := e.open(t)
	cert := filepath.Join(e.dir, caCert)
	if err := os.Rename(cert, cert+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(cert, 0o700); err != nil { // which read(2) refuses
		t.Fatal(err)
	}
	c, err := Open(e.options())
	if err == nil || c == nil || bytes.Equal(c.CA(), old.CA()) {
		t.Fatalf("Open = %v, %v; want another CA, and an error that it is only in memory", c, err)
	}
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(cert+".away", cert); err != nil {
		t.Fatal(err)
	}
	if again := e.open(t); !bytes.Equal(again.CA(), old.CA()) {
		t.Error("another CA once the file can be read, want the first one")
	}
}

func TestNamesOf(t *testing.T) {
	names := NamesOf([]netip.Addr{netip.MustParseAddr("::ffff:169.254.30.10"), netip.MustParseAddr("0.0.0.0")},
		[]netip.Addr{netip.MustParseAddr("127.0.0.1"), {}}, "")
	var ips []string
	for _, ip := range names.IPs {
		ips = append(ips, net.IP(ip.AsSlice()).String())
	}
	if want := []string{"127.0.0.1", "169.254.30.10", "::1"}; !slices.Equal(ips, want) {
		t.Errorf("addresses %v, want %v", ips, want)
	}
	if len(names.DNS) != 4 {
		t.Errorf("names %v, want 4 without a domain", names.DNS)
	}
}
