package join

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	cloud "github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/certs"
)

// newToken returns a token for a node, or for any if node is "".
func newToken(t *testing.T, node string) *certs.Token {
	t.Helper()
	authority, err := cloud.New(t.Context(), fake.NewClientset().CoreV1().Secrets(cloud.Namespace),
		cloud.Options{Addresses: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	token, err := authority.NewToken(node, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestReadToken(t *testing.T) {
	good := newToken(t, "").String()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file, empty := write("token", "\n"+good+"\n"), write("empty", " \n")
	for name, c := range map[string]struct {
		text, file, in string
		want, err      string
	}{
		"none":                {"", "", good, "", ""},
		"text":                {good, "", "", good, ""},
		"text with spaces":    {" " + good + "\n", "", "", good, ""},
		"spaces alone":        {" ", "", "", "", ""},
		"a file":              {"", file, "", good, ""},
		"standard input":      {"", "-", good + "\n", good, ""},
		"standard input, too": {"-", "", good + "\n", good, ""},
		"both":                {good, file, "", "", "--token and --token-file: want one of the two"},
		"no such file":        {"", filepath.Join(dir, "none"), "", "", "token: open "},
		"an empty file":       {"", empty, "", "", "--token-file " + empty + ": there is no token in it"},
		"no input":            {"", "-", "", "", "--token-file -: there is no token in it"},
		"not a token":         {"x", "", "", "", "token"},
		"an endless file":     {"", "-", strings.Repeat("x", maxTokenFile+1), "", "token"},
	} {
		text, token, err := ReadToken(strings.NewReader(c.in), c.text, c.file)
		if text != c.want || (token != nil) != (c.want != "") {
			t.Errorf("%s: ReadToken = %q, %v; want %q", name, text, token, c.want)
		}
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: ReadToken = %v, want an error with %q", name, err, c.err)
		}
	}
}

func TestPlan(t *testing.T) {
	forNode, forAny := newToken(t, "edge7"), newToken(t, "")
	there := filepath.Join(t.TempDir(), "edgecore.yaml")
	text := "apiVersion: " + v1alpha2.APIVersion + "\nkind: EdgeCore\nmodules: {edged: {hostnameOverride: edge1}}\n"
	if err := os.WriteFile(there, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(t.TempDir(), "edgecore.yaml")
	host := v1alpha2.Default().Modules.Edged.HostnameOverride
	for name, c := range map[string]struct {
		server, path string
		request      Request
		token        *certs.Token
		node, err    string
	}{
		"name of the token":         {"a:1", none, Request{CertPort: 1}, forNode, "edge7", ""},
		"name of the command line":  {"a:1", none, Request{CertPort: 1, Node: "edge2"}, forNode, "edge2", ""},
		"name of the configuration": {"a:1", there, Request{CertPort: 1}, forNode, "edge1", ""},
		"name of the host":          {"a:1", none, Request{CertPort: 1}, forAny, host, ""},
		"no token":                  {"a", none, Request{CertPort: 1}, nil, host, ""},
		"QUIC":                      {"a", none, Request{CertPort: 1, Protocol: "quic"}, nil, host, ""},
		"no server": {
			"", none, Request{CertPort: 1}, nil, "", "--cloudcore-ipport HOST:PORT is missing",
		},
		"a bad server": {"a:b", none, Request{CertPort: 1}, nil, "", "want HOST:PORT"},
		"no port":      {"a:1", none, Request{}, nil, "", "--certport 0: want 1 to 65535"},
		"a large port": {
			"a:1", none, Request{CertPort: 65536}, nil, "", "--certport 65536: want 1 to 65535",
		},
		"another protocol": {
			"a:1", none, Request{CertPort: 1, Protocol: "tcp"}, nil, "", "--hub-protocol tcp: want websocket or quic",
		},
	} {
		p, err := c.request.Plan(c.server, c.path, nil, c.token)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: Plan = %v, want an error with %q", name, err, c.err)
		}
		if err == nil && p.Config.Modules.Edged.HostnameOverride != c.node {
			t.Errorf("%s: node %s, want %s", name, p.Config.Modules.Edged.HostnameOverride, c.node)
		}
	}
	if _, err := os.Stat(none); err == nil {
		t.Errorf("Stat(%s) = nil, want nothing written by a plan", none)
	}
}
