package vm_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
	"github.com/edgecore-io/edgecore/test/vm"
)

// TestShutdown: under the product's own unit a real systemd is told that the agent is there, starts it again when it
// says no more that it lives, and waits with a reboot until the pods have ended in good order.
func TestShutdown(t *testing.T) {
	d := newDevice(t, vm.AMD64)
	first := d.running("first start", 0, func(string) bool { return true })
	same := func(id string) bool { return slices.Contains(containers(first), id) }
	d.write(map[string]string{
		"/etc/systemd/system/edgecore.service.d/watchdog.conf": "[Service]\nWatchdogSec=30\n",
		configFile: deviceFiles[configFile] +
			"      shutdownGracePeriod: 40s\n      shutdownGracePeriodCriticalPods: 20s\n",
	})
	d.sh("systemctl daemon-reload; systemctl restart edgecore") // which returns when the agent says that it is there
	if state := d.sh("systemctl show -P SubState edgecore; systemctl show -P StatusText edgecore"); !strings.HasPrefix(
		state, "running") {
		t.Errorf("state of the service = %q, want running", state)
	}
	d.running("with a grace period", 0, same)
	wait.Until(t, "edgecore to hold a lock on the shutdown", func() error {
		if out := d.sh("systemd-inhibit --list --no-pager | grep edgecore || true"); !strings.Contains(out,
			"shutdown") || !strings.Contains(out, "delay") {
			return fmt.Errorf("no lock is held: %q", out)
		}
		return nil
	})
	// Logind's own limit is 5 s.
	if out := d.sh("busctl get-property org.freedesktop.login1 /org/freedesktop/login1 " +
		"org.freedesktop.login1.Manager InhibitDelayMaxUSec"); out != "t 40000000" {
		t.Errorf("InhibitDelayMaxUSec of logind = %q, want \"t 40000000\"", out)
	}

	before := d.sh("systemctl show -P MainPID edgecore")
	d.sh("kill -STOP " + before)
	wait.Until(t, "edgecore to be started again", func() error {
		if now := d.sh("systemctl show -P MainPID edgecore"); now == "0" || now == before {
			return errors.New("edgecore is stuck and is not started again")
		}
		return nil
	})
	d.running("edgecore was stuck", 0, same)

	if err := d.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.running("reboot in good order", 1, func(id string) bool { return !same(id) })
	log := d.sh("journalctl --no-pager -b -1 -u edgecore -o cat")
	for _, want := range []string{
		"The device is shutting down; terminating the pods", "The pods have terminated; the device can shut down",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log of the boot before does not say %q:\n%s", want, log)
		}
	}
}
