package agentconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/edged/node/preflight"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

func TestPreflightOptions(t *testing.T) {
	cert := filepath.Join(t.TempDir(), "server.crt")
	if err := os.WriteFile(cert, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	joined := preflight.Cloud{Joined: true, Server: "192.0.2.1:10000"}
	for name, c := range map[string]struct {
		change func(*v1alpha2.EdgeCore)
		ports  []string
		cloud  preflight.Cloud
	}{
		"joined": {func(*v1alpha2.EdgeCore) {}, []string{"readOnlyPort", "port"}, joined},
		"no certificate": {func(c *v1alpha2.EdgeCore) {
			c.Modules.EdgeHub.TLSCertFile += "x"
		}, []string{"readOnlyPort", "port"}, preflight.Cloud{}},
		"no link": {func(c *v1alpha2.EdgeCore) {
			c.Modules.EdgeHub.Enable = false
		}, []string{"readOnlyPort", "port"}, preflight.Cloud{}},
		"no WebSocket": {func(c *v1alpha2.EdgeCore) {
			c.Modules.EdgeHub.WebSocket.Enable = false
		}, []string{"readOnlyPort", "port"}, preflight.Cloud{}},
		"no read-only one": {func(c *v1alpha2.EdgeCore) { c.Modules.Edged.TailoredKubeletConfig.ReadOnlyPort = 0 },
			[]string{"port"}, joined},
	} {
		cfg := v1alpha2.Default()
		cfg.Modules.EdgeHub.Enable, cfg.Modules.EdgeHub.TLSCertFile = true, cert
		cfg.Modules.EdgeHub.WebSocket.Enable, cfg.Modules.EdgeHub.WebSocket.Server = true, "192.0.2.1:10000"
		cfg.Database.DataSource = "/data/db/edgecore.db"
		c.change(cfg)
		o := PreflightOptions(cfg)
		var ports []string
		for _, p := range o.Ports {
			ports = append(ports, p.Key)
		}
		if diff := cmp.Diff(c.ports, ports); diff != "" || o.Cloud != c.cloud {
			t.Errorf("%s: cloud %+v, want %+v; ports (-want +got):\n%s", name, o.Cloud, c.cloud, diff)
		}
		if got := o.Disks[1].Path; got != "/data/db" {
			t.Errorf("%s: folder of the store = %s, want /data/db", name, got)
		}
	}
}

// TestClockBound: a file of the store that was written later than the program was built says more.
func TestClockBound(t *testing.T) {
	cfg := v1alpha2.Default()
	cfg.Database.DataSource = filepath.Join(t.TempDir(), "edgecore.db")
	hub := &cfg.Modules.EdgeHub
	hub.TLSCAFile, hub.TLSCertFile = filepath.Join(t.TempDir(), "ca.crt"), filepath.Join(t.TempDir(), "node.crt")
	before := ClockBound(cfg)
	if strings.Contains(before.Of, "store") {
		t.Errorf("without a store the bound is that %s, want another one", before.Of)
	}
	if err := os.WriteFile(cfg.Database.DataSource+"-wal", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	written := time.Now().Add(365 * 24 * time.Hour)
	if err := os.Chtimes(cfg.Database.DataSource+"-wal", written, written); err != nil {
		t.Fatal(err)
	}
	after := ClockBound(cfg)
	if after.Of != "the store was written" || !after.Time.After(before.Time) {
		t.Errorf("bound = %+v, want that the store was written, after %v", after, before.Time)
	}
}
