package join

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	cloud "github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// TestCertificate: a device gets a certificate with a token, keeps it while it is not near its end, and a token for any
// node does not give it the name of a node that exists.
func TestCertificate(t *testing.T) {
	client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "taken"}})
	authority, err := cloud.New(t.Context(), client.CoreV1().Secrets(cloud.Namespace),
		cloud.Options{Addresses: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	nodes := client.CoreV1().Nodes()
	go func() { served <- authority.Serve(t.Context(), l, nodes) }()
	t.Cleanup(func() {
		if err := <-served; err != nil {
			t.Errorf("Serve = %v, want nil", err)
		}
	})
	token, err := authority.NewToken("", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cfg := v1alpha2.Default()
	dir := t.TempDir()
	files := FilesIn(dir)
	hub := &cfg.Modules.EdgeHub
	hub.HTTPServer = "https://" + l.Addr().String()
	hub.TLSCAFile, hub.TLSCertFile, hub.TLSPrivateKeyFile = files.CA, files.Cert, files.Key
	if got := FilesOf(cfg); got != files {
		t.Fatalf("FilesOf = %v, want %v", got, files)
	}
	for _, step := range []struct {
		name, node string
		token      bool
		want, err  string
	}{
		{"without a token", "edge1", false, "", "this device has no certificate for the cloud yet"},
		{"the name of another node", "taken", true, "", "the cloud has a node taken already"},
		{"the first one", "edge1", true, "Got a certificate for node edge1, valid until ", ""},
		{"again", "edge1", true, "Kept the certificate of node edge1, valid until ", ""},
		{"again, without a token", "edge1", false, "Kept the certificate of node edge1", ""},
		{"under another name", "edge2", true, "Got a certificate for node edge2, valid until ", ""},
	} {
		cfg.Modules.Edged.HostnameOverride = step.node
		given, text := token, token.String()
		if !step.token {
			given, text = nil, ""
		}
		got, err := Certificate(t.Context(), cfg, given, text, false)
		if (err == nil) != (step.err == "") || err != nil && !strings.Contains(err.Error(), step.err) {
			t.Errorf("%s: Certificate = %v, want an error with %q", step.name, err, step.err)
		}
		if !strings.HasPrefix(got, step.want) {
			t.Errorf("%s: Certificate = %q, want %q", step.name, got, step.want)
		}
	}
}

// TestWrite: a configuration that stays the same is not written, and the file before a change is kept.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edgecore.yaml")
	write := func(node string) string {
		t.Helper()
		p, err := (&Request{CertPort: 10002, Node: node}).Plan("cloud.example:10000", path, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.Write(path)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, step := range []struct{ node, want string }{
		{"edge1", "Wrote configuration " + path},
		{"edge1", "Configuration " + path + " is as it should be"},
		{"edge2", "Changed configuration " + path + " (the one before is " + path + ".bak)"},
	} {
		if got := write(step.node); got != step.want {
			t.Errorf("Write for %s = %q, want %q", step.node, got, step.want)
		}
	}
	for file, want := range map[string]string{path: "edge2", path + ".bak": "edge1"} {
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s = %q, %v; want it to name %s", file, text, err, want)
		}
	}
}
