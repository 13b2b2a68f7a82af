package certs

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"strings"
	"testing"
	"time"
)

// authority signs for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

var begin = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test"},
		NotBefore:             begin,
		NotAfter:              begin.AddDate(10, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	a := &authority{cert: template, key: key}
	a.cert = a.sign(t, template, key)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) sign(t testing.TB, template *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (a *authority) node(t testing.TB, node string, key *ecdsa.PrivateKey, usage x509.ExtKeyUsage) *x509.Certificate {
	t.Helper()
	return a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      Subject(node),
		NotBefore:    begin.Add(time.Hour),
		NotAfter:     begin.Add(101 * time.Hour),
		ExtKeyUsage:  []x509.ExtKeyUsage{usage},
	}, key)
}

func TestCheckNode(t *testing.T) {
	subject := func(o, cn string) pkix.Name {
		s := pkix.Name{CommonName: cn}
		if o != "" {
			s.Organization = strings.Split(o, "+")
		}
		return s
	}
	for name, tc := range map[string]struct {
		subject pkix.Name
		legacy  bool
		err     string
	}{
		"its own": {subject: Subject("edge1")},
		"another's": {
			subject: Subject("edge2"), err: `is that of node "edge2" and cannot speak for node "edge1"`,
		},
		"a longer one":         {subject: Subject("edge11"), err: "cannot speak"},
		"no organization":      {subject: subject("", "system:node:edge1"), err: "is not that of a node"},
		"another organization": {subject: subject("system:masters", "system:node:edge1"), err: "is not that of a node"},
		"second organization":  {subject: subject("x+system:nodes", "system:node:edge1"), err: "is not that of a node"},
		"no name":              {subject: subject("system:nodes", "system:node:"), err: "is not that of a node"},
		"no prefix":            {subject: subject("system:nodes", "edge1"), err: "is not that of a node"},
		"old, not allowed":     {subject: subject("KubeEdge", "kubeedge.io"), err: "is not that of a node"},
		"old, allowed":         {subject: subject("KubeEdge", "kubeedge.io"), legacy: true},
		"half old": {
			subject: subject("system:nodes", "kubeedge.io"), legacy: true, err: "is not that of a node",
		},
		"another's with old": {subject: Subject("edge2"), legacy: true, err: "cannot speak"},
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, CheckNode(&x509.Certificate{Subject: tc.subject}, "edge1", tc.legacy), tc.err)
		})
	}
}

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("error: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("error %v, want %q in it", err, want)
	}
}

func TestVerifyClient(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	key := newKey(t)
	good := ours.node(t, "edge1", key, x509.ExtKeyUsageClientAuth)
	for name, tc := range map[string]struct {
		cert *x509.Certificate
		now  time.Time
		err  string
	}{
		"good":      {good, begin.Add(2 * time.Hour), ""},
		"too early": {good, begin, "not yet valid"},
		"too late":  {good, begin.Add(102 * time.Hour), "expired"},
		"of another CA": {
			others.node(t, "edge1", key, x509.ExtKeyUsageClientAuth), begin.Add(2 * time.Hour), "unknown authority",
		},
		"of a server": {
			ours.node(t, "edge1", key, x509.ExtKeyUsageServerAuth), begin.Add(2 * time.Hour), "key usage",
		},
	} {
		t.Run(name, func(t *testing.T) { wantError(t, VerifyClient(tc.cert, Pool(ours.cert), tc.now), tc.err) })
	}
}

func TestRenewAt(t *testing.T) {
	cert := newAuthority(t).node(t, "edge1", newKey(t), x509.ExtKeyUsageClientAuth)
	if got, want := RenewAt(cert, 0.7), cert.NotBefore.Add(70*time.Hour); got.Sub(want).Abs() > time.Second {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestAtLeast(t *testing.T) {
	clock := func(s int64) func() time.Time { return func() time.Time { return time.Unix(s, 0) } }
	for _, tc := range []struct {
		now    int64
		bounds []int64
		want   int64
	}{{5, nil, 5}, {5, []int64{3, 9, 7}, 9}, {10, []int64{3, 9, 7}, 10}} {
		var bounds []time.Time
		for _, b := range tc.bounds {
			bounds = append(bounds, time.Unix(b, 0))
		}
		if got := AtLeast(clock(tc.now), bounds...)().Unix(); got != tc.want {
			t.Errorf("now %d, bounds %v: %d, want %d", tc.now, tc.bounds, got, tc.want)
		}
	}
}
