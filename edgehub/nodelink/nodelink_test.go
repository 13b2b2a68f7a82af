package nodelink

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/edgecore-io/edgecore/beehive"
	cloud "github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// config returns the configuration of a node whose certificate lies below a folder; there is none yet.
func config(t *testing.T) *v1alpha2.EdgeCore {
	t.Helper()
	dir := t.TempDir()
	cfg := v1alpha2.Default()
	cfg.Modules.Edged.HostnameOverride = "edge1"
	hub := &cfg.Modules.EdgeHub
	hub.Enable = true
	hub.TLSCAFile = filepath.Join(dir, "ca.crt")
	hub.TLSCertFile = filepath.Join(dir, "server.crt")
	hub.TLSPrivateKeyFile = filepath.Join(dir, "server.key")
	hub.HTTPServer, hub.WebSocket.Server = "https://127.0.0.1:1", "127.0.0.1:1" // nothing listens there
	return cfg
}

// serveCloud serves certificates, and returns where, and a token.
func serveCloud(t *testing.T) (address, token string) {
	t.Helper()
	client := fake.NewClientset()
	authority, err := cloud.New(t.Context(), client.CoreV1().Secrets(cloud.Namespace),
		cloud.Options{Addresses: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	issued, err := authority.NewToken("edge1", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- authority.Serve(ctx, listener, client.CoreV1().Nodes()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "https://" + listener.Addr().String(), issued.String()
}

// TestNew: a device has a link if it has a certificate, or a token for one.
func TestNew(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha2.EdgeHub)
		linked bool
		err    bool
	}{
		"nothing":         {func(*v1alpha2.EdgeHub) {}, false, false},
		"a token":         {func(h *v1alpha2.EdgeHub) { h.Token = "x" }, true, false},
		"switched off":    {func(h *v1alpha2.EdgeHub) { h.Token, h.Enable = "x", false }, false, false},
		"no server":       {func(h *v1alpha2.EdgeHub) { h.Token, h.WebSocket.Server = "x", "" }, true, true},
		"a certificate":   {func(h *v1alpha2.EdgeHub) { put(t, h.TLSCertFile) }, true, false},
		"only half of it": {func(h *v1alpha2.EdgeHub) { put(t, h.TLSPrivateKeyFile) }, false, false},
	} {
		cfg := config(t)
		c.change(&cfg.Modules.EdgeHub)
		l, err := New(beehive.New(), cfg, &health.Registry{}, Options{})
		if (err != nil) != c.err || !c.err && (l != nil) != c.linked {
			t.Errorf("%s: New = %v, %v; want a link: %v, an error: %v", name, l != nil, err, c.linked, c.err)
		}
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := New(beehive.New(), config(t), &health.Registry{}, Options{TokenFile: file}); err != nil || l == nil {
		t.Errorf("a file with a token: New = %v, %v; want a link", l != nil, err)
	}
}

func put(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// codes returns the conditions that are set.
func codes(r *health.Registry) map[health.Code]bool {
	set := map[health.Code]bool{}
	for _, c := range r.Snapshot() {
		set[c.Code] = true
	}
	return set
}

// start runs the link of a configuration until stop is called, which returns what Run returned.
func start(t *testing.T, cfg *v1alpha2.EdgeCore, conditions *health.Registry) (l *Module, stop func() error) {
	t.Helper()
	bus := beehive.New()
	l, err := New(bus, cfg, conditions, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Add(l); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	return l, func() error {
		cancel()
		return wait.Receive(t, "the link to stop", done)
	}
}

// TestRunWithoutCertificate: the link waits for a certificate, and says so.
func TestRunWithoutCertificate(t *testing.T) {
	cfg := config(t)
	_, cfg.Modules.EdgeHub.Token = serveCloud(t) // which is not where the configuration says
	conditions := &health.Registry{}
	_, stop := start(t, cfg, conditions)
	wait.True(t, "condition NotJoined", func() bool { return codes(conditions)[health.NotJoined] })
	if codes(conditions)[health.CertificateEnding] {
		t.Errorf("conditions = %v, want none of a certificate that expires", conditions.Snapshot())
	}
	if err := stop(); err != nil {
		t.Errorf("Run = %v, want no error when its context ends", err)
	}
}

// TestRun: the link gets its certificate with the token, and then dials.
func TestRun(t *testing.T) {
	cfg := config(t)
	hub := &cfg.Modules.EdgeHub
	hub.HTTPServer, hub.Token = serveCloud(t)
	conditions := &health.Registry{}
	l, stop := start(t, cfg, conditions)
	wait.True(t, "the link to be dialled", func() bool { return l.State().Reason != "" })
	if _, err := os.Stat(hub.TLSCertFile); err != nil {
		t.Errorf("certificate: %v, want one before the link is dialled", err)
	}
	if set := codes(conditions); set[health.NotJoined] || set[health.CertificateEnding] {
		t.Errorf("conditions = %v, want none of the certificate", conditions.Snapshot())
	}
	if l.State().Connected {
		t.Error("the link is connected, want it not: nothing listens")
	}
	if err := stop(); err != nil {
		t.Errorf("Run = %v, want no error when its context ends", err)
	}
}
