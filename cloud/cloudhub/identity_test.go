package cloudhub

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestIdentify(t *testing.T) {
	cert := func(name, organization string) []*x509.Certificate {
		return []*x509.Certificate{{Subject: pkix.Name{CommonName: name, Organization: []string{organization}}}}
	}
	good := cert("system:node:n1", "system:nodes")
	for _, tt := range []struct {
		name, node, use string
		peer            []*x509.Certificate
		legacy          bool
		status          int
		says            string
	}{
		{"its own", "n1", "msg", good, false, 0, ""},
		{"with dots", "edge.site-1", "msg", cert("system:node:edge.site-1", "system:nodes"), false, 0, ""},
		{"no use named", "n1", "", good, false, 0, ""},
		{"another's name", "n2", "msg", good, false, 403, `the certificate is for "n1" and not for node n2`},
		{"another's name, legacy", "n2", "msg", good, true, 403, "not for node n2"},
		{"another organization", "n1", "msg", cert("system:node:n1", "KubeEdge"), false, 403, "run edgecore join"},
		{"the server's", "n1", "msg", cert("KubeEdge", "KubeEdge"), true, 403, "not for node n1"},
		{"shared", "n1", "msg", cert("kubeedge.io", "KubeEdge"), true, 0, ""},
		{"shared, of v1.12", "n1", "msg", cert("kubeedge.io", "kubeEdge"), true, 0, ""},
		{"shared, not accepted", "n1", "msg", cert("kubeedge.io", "KubeEdge"), false, 403, "edges up to v1.15 share"},
		{"none", "n1", "msg", nil, true, 403, "showed no certificate"},
		{"no node", "", "msg", good, false, 400, "node_id is missing"},
		{"nonsense", "N1/../x", "msg", good, false, 400, "is not a node name"},
		{"raw data", "n1", "str", good, false, 400, `only "msg", "tunnel" and "api" are served`},
	} {
		h := http.Header{}
		h.Set(wire.HeaderNodeID, tt.node)
		h.Set(wire.HeaderUse, tt.use)
		node, why := identify(h, tt.peer, tt.legacy)
		switch {
		case tt.status == 0 && (why != nil || node != tt.node):
			t.Errorf("%s: node %q, refused because %v; want node %q", tt.name, node, why, tt.node)
		case tt.status != 0 && (why == nil || why.status != tt.status || !strings.Contains(why.text, tt.says)):
			t.Errorf("%s: refused because %v, want status %d with %q", tt.name, why, tt.status, tt.says)
		}
	}
}

// TestRefusals: who may not connect is told why, before there is a session.
func TestRefusals(t *testing.T) {
	t.Parallel()
	c := startCloud(t, func(o *Options) { o.NodeLimit = 2 })
	newEdge(t, "n1").dialOurs(c)
	newEdge(t, "n2").dialUpstream(c)
	wait.True(t, "both nodes", func() bool { return len(c.hub.Connected()) == 2 })
	stranger := wiretest.NewCA(t)
	hour := time.Now().Add(time.Hour)
	for _, tt := range []struct {
		name   string
		node   string
		cert   tls.Certificate
		status int
		says   string
	}{
		{
			"another node's certificate", "n1", c.ca.Node(t, "n3", hour), 403,
			`the certificate is for "n3" and not for node n1`,
		},
		{"one too many", "n3", c.ca.Node(t, "n3", hour), 503, "nodeLimit"},
		{"another CA", "n1", stranger.Node(t, "n1", hour), 0, ""},
		{"expired", "n1", c.ca.Node(t, "n1", time.Now().Add(-time.Minute)), 0, ""},
		{"no client's certificate", "n1", c.ca.Server(t), 0, ""},
	} {
		_, err := wire.DialWebSocket(t.Context(), c.options(tt.node, tt.cert))
		var refused *wire.Refused
		switch {
		case err == nil:
			t.Errorf("%s: accepted, want status %d with %q", tt.name, tt.status, tt.says)
		case tt.status == 0 && errors.As(err, &refused):
			t.Errorf("%s: it came as far as HTTP, want a refusal by TLS: %v", tt.name, err)
		case tt.status != 0 && (!errors.As(err, &refused) || refused.Status != tt.status ||
			!strings.Contains(refused.Text, tt.says)):
			t.Errorf("%s: refused with %v, want status %d with %q", tt.name, err, tt.status, tt.says)
		}
	}
	if n := len(c.hub.Connected()); n != 2 {
		t.Errorf("%d nodes are connected, want 2", n)
	}
	// A node that is connected may come again in spite of the limit.
	again := newEdge(t, "n1").dialOurs(c)
	wait.True(t, "the newer connection", func() bool {
		s := c.hub.session("n1")
		return s != nil && s.conn.RemoteAddr() != nil && again.isSynced()
	})
}

// TestTLS: what the oldest edges of upstream can do is enough, and older is refused.
func TestTLS(t *testing.T) {
	t.Parallel()
	c := startCloud(t, nil)
	cert := c.ca.Node(t, "n1", time.Now().Add(time.Hour))
	for _, tt := range []struct {
		name   string
		config *tls.Config
		ok     bool
	}{
		{
			"v1.12's only suite", &tls.Config{
				MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
			}, true,
		},
		{"TLS 1.3", &tls.Config{MinVersion: tls.VersionTLS13}, true},
		{"TLS 1.1", &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, false},
		{
			"a suite without authenticated encryption", &tls.Config{
				MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA},
			}, false,
		},
	} {
		config := tt.config.Clone()
		config.RootCAs, config.Certificates = c.ca.Pool(), []tls.Certificate{cert}
		conn, err := tls.Dial("tcp", c.addr, config)
		if (err == nil) != tt.ok {
			t.Errorf("%s: the handshake ended with %v, want success: %v", tt.name, err, tt.ok)
		}
		if err == nil {
			if p := conn.ConnectionState().NegotiatedProtocol; p == "h2" {
				t.Errorf("%s: the protocol is %q, want no HTTP/2", tt.name, p)
			}
			_ = conn.Close()
		}
	}
}

func TestRefusalsAreLoggedSeldom(t *testing.T) {
	var l refusedLog
	now := time.Now()
	got := []bool{
		l.shouldLog("n1 limit", now), l.shouldLog("n1 limit", now.Add(time.Minute)), l.shouldLog("n2 limit", now),
		l.shouldLog("n1 limit", now.Add(11*time.Minute)),
	}
	if want := []bool{true, false, true, true}; !slices.Equal(got, want) {
		t.Errorf("news = %v, want %v: a refusal is logged once in ten minutes for each node", got, want)
	}
	for i := range 5000 {
		l.shouldLog(fmt.Sprint(i), now)
	}
	if len(l.logged) > refusedKept {
		t.Errorf("%d refusals are kept, want at most %d", len(l.logged), refusedKept)
	}
}
