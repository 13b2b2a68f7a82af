package certificates

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

func TestCACert(t *testing.T) {
	a := newTestAuthority(t, newFakeSecrets(), newClock())
	d := &device{t: t, address: serve(t, a, fakeNodes{}), a: a}
	got := d.get("/ca.crt", nil, nil)
	if got.status != http.StatusOK || got.body != string(a.CA().Raw) {
		t.Errorf("%d, %d bytes; want the CA in DER form", got.status, len(got.body))
	}
	if got.header.Get("Date") == "" {
		t.Error(`header Date = "", want a date: a device compares its clock with it`)
	}
}

// TestNode: a caller with a token learns whether a name is taken. Anyone else is told that each is free, and the API
// server is not asked; but if a general token gets a certificate for a name that is taken, anyone is told.
func TestNode(t *testing.T) {
	var a *Authority
	header := func(node string, lifetime time.Duration) map[string]string {
		token, err := a.NewToken(node, lifetime)
		if err != nil {
			t.Fatal(err)
		}
		return map[string]string{"Authorization": "Bearer " + token.Bearer}
	}
	for _, protect := range []bool{true, false} {
		a = newTestAuthority(t, newFakeSecrets(), newClock(), func(o *Options) { o.ProtectTaken = protect })
		d := &device{t: t, address: serve(t, a, fakeNodes{"edge1": nil, "broken": errors.New("no API server")}), a: a}
		type reply struct {
			status int
			body   string
		}
		taken, free := reply{200, "Node found"}, reply{404, "Node not found"}
		broken := reply{500, "the cloud cannot ask its API server now"}
		refused := reply{401, "token validation failure, "}
		anonymous := map[bool][2]reply{true: {free, free}, false: {taken, broken}}[protect]
		for _, tc := range []struct {
			path   string
			header map[string]string
			want   reply
		}{
			{"/node/edge1", header("", time.Hour), taken},
			{"/node/edge2", header("", time.Hour), free},
			{"/node/broken", header("", time.Hour), broken},
			{"/node/edge1", header("edge1", time.Hour), taken},
			{"/node/edge1", header("edge2", time.Hour), refused},
			{"/node/edge1", header("", -time.Hour), refused},
			{"/node/edge1", map[string]string{"Authorization": "Bearer x.y.z"}, refused},
			{"/node/edge1", map[string]string{"Authorization": "x"}, refused},
			{"/node/edge1", nil, anonymous[0]},
			{"/node/broken", nil, anonymous[1]},
			{"/node/edge2", nil, free},
			{"/node/Edge_2", nil, reply{400, "not the name of a node: "}},
			{"/node/..%2fx", nil, reply{400, "not the name of a node: "}},
			{"/node/", nil, reply{404, ""}},
			{"/node/a/b", nil, reply{404, ""}},
			{"/", nil, reply{404, ""}},
			{"/edge.crt/more", nil, reply{404, ""}},
		} {
			got, want := d.get(tc.path, nil, tc.header), tc.want
			if exact := want.status < 400 || want == free; got.status != want.status ||
				!strings.HasPrefix(got.body, want.body) || exact && got.body != want.body {
				t.Errorf("protected %v: %s with %v: %d %q, want %d %q", protect, tc.path, tc.header, got.status,
					got.body, want.status, want.body)
			}
		}
	}
}

// TestFirstCertificate: what a token gets, and what it does not get.
func TestFirstCertificate(t *testing.T) {
	c := newClock()
	a := newTestAuthority(t, newFakeSecrets(), c, func(o *Options) { o.ProtectTaken = true })
	d := &device{t: t, address: serve(t, a, fakeNodes{"taken": nil, "broken": errors.New("no API server")}), a: a}
	bearer := func(node string) string {
		token, err := a.NewToken(node, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + token.Bearer
	}
	edge1, _ := request(t, "edge1")
	taken, _ := request(t, "taken")
	for name, tc := range map[string]struct {
		node, auth, usages string
		csr                []byte
		status             int
		body               string
	}{
		"good":          {node: "edge1", auth: bearer(""), csr: edge1, status: 200},
		"for this node": {node: "edge1", auth: bearer("edge1"), csr: edge1, status: 200},
		"scheme in lower case": {
			node:   "edge1",
			auth:   strings.Replace(bearer(""), "B", "b", 1),
			csr:    edge1,
			status: 200,
		},
		"as a client": {node: "edge1", auth: bearer(""), usages: "[2]", csr: edge1, status: 200},
		"as a server": {
			node:   "edge1",
			auth:   bearer(""),
			usages: "[1,2]",
			csr:    edge1,
			status: 403,
			body:   "for a client alone",
		},
		"bad usages": {
			node:   "edge1",
			auth:   bearer(""),
			usages: "client",
			csr:    edge1,
			status: 400,
			body:   "header ExtKeyUsages",
		},
		"no token": {
			node:   "edge1",
			csr:    edge1,
			status: 401,
			body:   "token validation failure, token is empty",
		},
		"one part": {
			node:   "edge1",
			auth:   "x",
			csr:    edge1,
			status: 401,
			body:   "token validation failure, token cannot be split",
		},
		"three parts": {
			node:   "edge1",
			auth:   bearer("") + " x",
			csr:    edge1,
			status: 401,
			body:   "token validation failure, token cannot be split",
		},
		"another scheme": {
			node:   "edge1",
			auth:   "Basic x",
			csr:    edge1,
			status: 401,
			body:   "want the scheme Bearer",
		},
		"bad token": {
			node:   "edge1",
			auth:   "Bearer x.y.z",
			csr:    edge1,
			status: 401,
			body:   "token validation failure, err: ",
		},
		"another's token": {
			node:   "edge1",
			auth:   bearer("edge2"),
			csr:    edge1,
			status: 401,
			body:   `for node "edge2" and not for node "edge1"`,
		},
		"another's request": {
			node:   "edge2",
			auth:   bearer(""),
			csr:    edge1,
			status: 403,
			body:   "failed to sign certs for edgenode edge2, err: the request is for ",
		},
		"no name":  {auth: bearer(""), csr: edge1, status: 400, body: "header NodeName"},
		"bad name": {node: "../x", auth: bearer(""), csr: edge1, status: 400, body: "header NodeName"},
		"no request": {
			node:   "edge1",
			auth:   bearer(""),
			status: 400,
			body:   "the certificate request is empty",
		},
		"bad request": {
			node:   "edge1",
			auth:   bearer(""),
			csr:    []byte("x"),
			status: 400,
			body:   "not a certificate request",
		},
		"huge request": {
			node:   "edge1",
			auth:   bearer(""),
			csr:    make([]byte, certs.MaxRequest+1),
			status: 413,
			body:   "more than 64 KiB",
		},
		"a name taken": {
			node:   "taken",
			auth:   bearer(""),
			csr:    taken,
			status: 409,
			body:   "the name taken is taken: use a token for that node",
		},
		"a name taken, ours": {node: "taken", auth: bearer("taken"), csr: taken, status: 200},
		"nobody knows":       {node: "broken", auth: bearer(""), csr: edge1, status: 500, body: "node broken: "},
	} {
		t.Run(name, func(t *testing.T) {
			header := map[string]string{}
			for k, v := range map[string]string{
				"NodeName": tc.node, "Authorization": tc.auth, "ExtKeyUsages": tc.usages,
			} {
				if v != "" {
					header[k] = v
				}
			}
			got := d.get("/edge.crt", tc.csr, header)
			if got.status != tc.status || tc.status != 200 && !strings.Contains(got.body, tc.body) {
				t.Fatalf("%d %.200q, want %d %q", got.status, got.body, tc.status, tc.body)
			}
			if tc.status == 200 {
				checkNodeCert(t, a, got.body, tc.node)
			}
		})
	}
	old := bearer("")
	c.add(2 * time.Hour)
	got := d.get("/edge.crt", edge1, map[string]string{"NodeName": "edge1", "Authorization": old})
	if want := "it expired at 2026-11-21T13:00:00Z, and the cloud's clock says " +
		"2026-11-21T14:00:00Z"; got.status != 401 ||
		!strings.Contains(got.body, want) {
		t.Errorf("%d %s, want %s", got.status, got.body, want)
	}
}

// checkNodeCert checks that a certificate is what a node's is to be, and no more.
func checkNodeCert(t *testing.T, a *Authority, der, node string) {
	t.Helper()
	cert, err := x509.ParseCertificate([]byte(der))
	if err != nil {
		t.Fatal(err)
	}
	want := certs.Subject(node)
	if want.SerialNumber = certs.HolderOf(cert); cert.Subject.String() != want.String() || want.SerialNumber == "" {
		t.Errorf("subject %s, want %s with a holder", cert.Subject, want)
	}
	if len(cert.DNSNames)+len(cert.IPAddresses)+len(cert.URIs)+len(cert.EmailAddresses) > 0 {
		t.Errorf("names %v %v %v %v, want none", cert.DNSNames, cert.IPAddresses, cert.URIs, cert.EmailAddresses)
	}
	if len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth ||
		len(cert.UnknownExtKeyUsage) > 0 || cert.IsCA {
		t.Errorf("usages %v, IsCA %v; want client authentication alone", cert.ExtKeyUsage, cert.IsCA)
	}
	if cert.KeyUsage != x509.KeyUsageKeyEncipherment|x509.KeyUsageDigitalSignature {
		t.Errorf("key usage %b, want %b", cert.KeyUsage, x509.KeyUsageKeyEncipherment|x509.KeyUsageDigitalSignature)
	}
	now := a.opts.Now()
	if err := certs.VerifyClient(cert, a.Pool(), now); err != nil {
		t.Error(err)
	}
	if got := cert.NotAfter.Sub(now); got != 365*24*time.Hour {
		t.Errorf("valid for %v, want %v", got, 365*24*time.Hour)
	}
	if got := now.Sub(cert.NotBefore); got < 0 || got > time.Hour {
		t.Errorf("valid since %v, want at most an hour", got)
	}
}

// TestGreedyRequest: what a request asks for beside its own name is not granted.
func TestGreedyRequest(t *testing.T) {
	a := newTestAuthority(t, newFakeSecrets(), newClock())
	d := &device{t: t, address: serve(t, a, fakeNodes{}), a: a}
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{
		Subject: pkix.Name{Organization: []string{"system:nodes", "system:masters"}, CommonName: "system:node:edge1",
			Country: []string{"CN"}},
		DNSNames: []string{"cloud.example"},
		ExtraExtensions: []pkix.Extension{ // basicConstraints, CA: true
			{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}},
		},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	token, err := a.NewToken("", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	got := d.get("/edge.crt", csr, map[string]string{"NodeName": "edge1", "Authorization": "Bearer " + token.Bearer})
	if got.status != http.StatusOK {
		t.Fatalf("status %d %s, want %d", got.status, got.body, http.StatusOK)
	}
	checkNodeCert(t, a, got.body, "edge1")
}

// TestRenewal: with a certificate only the certificate counts.
func TestRenewal(t *testing.T) {
	c := newClock()
	a := newTestAuthority(t, newFakeSecrets(), c)
	strict := serve(t, a, fakeNodes{"edge1": nil})
	b := *a.withLegacy(true)
	lenient := serve(t, &b, fakeNodes{"edge1": nil})
	other := newTestAuthority(t, newFakeSecrets(), c)
	old := oldCert(t, a)
	token, err := a.NewToken("", 1000*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	edge1, edge2 := certFor(t, a, "edge1"), certFor(t, a, "edge2")
	server := a.server.Load().tls()
	for name, tc := range map[string]struct {
		cert    *tls.Certificate
		lenient bool
		later   time.Duration
		body    string // of the error, if there is to be one
	}{
		"its own":          {cert: edge1},
		"another's":        {cert: edge2, body: `is that of node "edge2" and cannot speak for node "edge1"`},
		"of another CA":    {cert: certFor(t, other, "edge1"), body: "certificate signed by unknown authority"},
		"ended":            {cert: edge1, later: 366 * 24 * time.Hour, body: "`edgecore join` with a new token"},
		"the cloud's own":  {cert: &server, body: "is not that of a node"},
		"old, not allowed": {cert: old, body: "is not that of a node"},
		"old, allowed":     {cert: old, lenient: true},
		"another's, too":   {cert: edge2, lenient: true, body: "cannot speak"},
	} {
		t.Run(name, func(t *testing.T) {
			c.add(tc.later)
			defer c.add(-tc.later)
			d := &device{t: t, address: strict, a: a, cert: tc.cert}
			if tc.lenient {
				d.address = lenient
			}
			csr, _ := request(t, "edge1")
			got := d.get("/edge.crt", csr, map[string]string{
				"NodeName": "edge1", "Authorization": "Bearer " + token.Bearer,
			})
			if tc.body == "" {
				if got.status != http.StatusOK {
					t.Fatalf("status %d %s, want %d", got.status, got.body, http.StatusOK)
				}
				checkNodeCert(t, a, got.body, "edge1")
				return
			}
			if got.status != http.StatusUnauthorized ||
				!strings.HasPrefix(got.body, "failed to verify the certificate for edgenode: edge1, err: ") ||
				!strings.Contains(got.body, tc.body) {
				t.Errorf("%d %s, want %s", got.status, got.body, tc.body)
			}
		})
	}
}

// withLegacy is the same authority with the switch for old certificates.
func (a *Authority) withLegacy(allow bool) *Authority {
	b := &Authority{opts: a.opts, secrets: a.secrets}
	b.ca.Store(a.ca.Load())
	b.tokenKey.Store(a.tokenKey.Load())
	b.opts.AllowLegacy = allow
	b.server.Store(a.server.Load())
	b.revoked.Store(a.revoked.Load())
	return b
}

// oldCert is what KubeEdge before 1.16 gave to every node.
func oldCert(t *testing.T, a *Authority) *tls.Certificate {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{Organization: []string{"KubeEdge"}, CommonName: "kubeedge.io"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	cert, err := sign(template, a.CA(), key.Public(), a.ca.Load().key, a.opts.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// TestKubeEdgeEdge plays KubeEdge's edge byte by byte: a GET with a body, its headers, its request's subject
// of 1.12 (one name for all) and of 1.23.
func TestKubeEdgeEdge(t *testing.T) {
	a := newTestAuthority(t, newFakeSecrets(), newClock())
	address := serve(t, a, fakeNodes{})
	token, err := a.NewToken("", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"v1.12", "v1.23"} {
		csr, err := os.ReadFile("testdata/kubeedge-" + version + ".csr.der")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := tls.Dial("tcp", address, &tls.Config{
			RootCAs: a.Pool(), ServerName: "cloud.example", Time: a.opts.Now,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET /edge.crt HTTP/1.1\r\nHost: %s\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: "+
			"%d\r\nAuthorization: Bearer %s\r\nNodename: edge1\r\nAccept-Encoding: gzip\r\n\r\n%s",
			address, len(csr), strings.Join(strings.Split(token.String(), ".")[1:], "."), csr)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %s %s, %v; want %d", version, resp.Status, body, err, http.StatusOK)
		}
		checkNodeCert(t, a, string(body), "edge1")
		cert, err := x509.ParseCertificate(body)
		if err != nil {
			t.Fatalf("%s: ParseCertificate = %v, want no error", version, err)
		}
		if !bytes.Contains(csr, cert.RawSubjectPublicKeyInfo) {
			t.Errorf("%s: public key of the certificate = %x, want one that is in the request %x", version,
				cert.RawSubjectPublicKeyInfo, csr)
		}
	}
}

func TestWrongMethods(t *testing.T) {
	a := newTestAuthority(t, newFakeSecrets(), newClock())
	client := &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: a.Pool(), Time: a.opts.Now}, DisableKeepAlives: true,
		},
	}
	address := serve(t, a, fakeNodes{})
	for _, path := range []string{"/edge.crt", "/ca.crt", "/node/edge1"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: status %s, want %d", path, resp.Status, http.StatusMethodNotAllowed)
		}
	}
	if _, err := tls.Dial("tcp", address, &tls.Config{
		RootCAs: a.Pool(), Time: a.opts.Now, MaxVersion: tls.VersionTLS11,
	}); err == nil {
		t.Error("Dial with TLS 1.1 = nil, want an error")
	}
}

// TestOneRequestForAConnection: an answered connection is closed, also when the client would keep it, as KubeEdge's
// edgecore does.
func TestOneRequestForAConnection(t *testing.T) {
	a := newTestAuthority(t, newFakeSecrets(), newClock())
	conn, err := tls.Dial("tcp", serve(t, a, fakeNodes{}), &tls.Config{
		RootCAs: a.Pool(), ServerName: "cloud.example", Time: a.opts.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /ca.crt HTTP/1.1\r\nHost: cloud.example\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK || !resp.Close {
		t.Errorf("status %s, close %v, %v; want 200 and a connection that is closed", resp.Status, resp.Close, err)
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after the answer: %v, want the end of the connection", err)
	}
}

func TestServerTLSOfTheHub(t *testing.T) {
	a := newTestAuthority(t, newFakeSecrets(), newClock())
	config := a.ServerTLS(tls.RequireAndVerifyClientCert)
	if config.ClientAuth != tls.RequireAnyClientCert || config.VerifyConnection == nil ||
		config.MinVersion != tls.VersionTLS12 {
		t.Errorf("ClientAuth %v, MinVersion %x, verified: %v; want %v, %x, true", config.ClientAuth, config.MinVersion,
			config.VerifyConnection != nil, tls.RequireAnyClientCert, tls.VersionTLS12)
	}
	before, err := config.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	a.opts.Addresses = append(a.opts.Addresses, "more.example")
	if err := a.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	after, err := config.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	if before.Leaf.Equal(after.Leaf) || after.Leaf.VerifyHostname("more.example") != nil {
		t.Errorf("certificate %v for %v, before %v; want a renewed one for more.example", after.Leaf.SerialNumber,
			after.Leaf.DNSNames, before.Leaf.SerialNumber)
	}
}
