package vm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
	"github.com/edgecore-io/edgecore/test/vm"
)

// TestJoin: where systemd runs, `edgecore join` makes the agent a service that runs now and after each boot, and
// `edgecore reset` takes it away again. The device has its certificate, so no cloud is needed for it.
func TestJoin(t *testing.T) {
	d := &device{boot(t, vm.Options{Payload: payload(t)}), t}
	d.sh("cp /payload/edgecore /usr/local/bin/edgecore")
	dir := t.TempDir()
	ca := wiretest.NewCA(t)
	files := ca.Write(t, dir, ca.Node(t, "edge", time.Now().Add(1000*time.Hour)))
	for name, file := range map[string]string{
		"/etc/kubeedge/ca/rootCA.crt": files.CA, "/etc/kubeedge/certs/server.crt": files.Cert,
		"/etc/kubeedge/certs/server.key": files.Key,
	} {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		d.sh("install -d -m 0700 " + filepath.Dir(name))
		if err := d.WriteFile(t.Context(), name, string(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := d.sh("edgecore join -e 192.0.2.1:10000 -i edge --cgroupdriver systemd --labels site=roof 2>&1")
	t.Logf("join says:\n%s", out)
	d.serves()
	if err := d.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.serves()
	t.Logf("reset says:\n%s", d.sh("edgecore reset --force 2>&1"))
	for command, want := range map[string]string{
		"systemctl is-enabled edgecore 2>/dev/null || true": "",
		"systemctl is-active edgecore || true":              "inactive",
		"ls /etc/systemd/system/edgecore.service /etc/kubeedge/config /var/lib/kubeedge/edgecore.db 2>/dev/null " +
			"|| true": "",
		"pgrep -x edgecore || true": "",
	} {
		if got := d.sh(command); got != want {
			t.Errorf("after reset, %s: %q, want %q", command, got, want)
		}
	}
}

// serves waits until the service runs and says what it is.
func (d *device) serves() {
	d.t.Helper()
	wait.Until(d.t, "the service to run", func() error { // after a boot it may still be on its way
		out, err := d.Shell(d.t.Context(), "systemctl is-enabled edgecore; systemctl is-active edgecore || true")
		if err == nil && strings.TrimSpace(out) != "enabled\nactive" {
			err = fmt.Errorf("the service is %q", out)
		}
		return err
	})
	wait.Until(d.t, "edgecore status to name the node", func() error {
		out, err := d.Shell(d.t.Context(), "edgecore status || test $? = 1")
		if err == nil &&
			(!strings.Contains(out, "Node:      edge\n") || !strings.Contains(out, "Cloud:     not connected")) {
			err = fmt.Errorf("status says %s", out)
		}
		return err
	})
}
