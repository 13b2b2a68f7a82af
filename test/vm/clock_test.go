package vm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
	"github.com/edgecore-io/edgecore/test/vm"
)

// TestClock: a device starts its agent in 1970, learns the time decades later, and goes back again. No container is
// started again for it, and the agent says what is wrong as long as it is.
func TestClock(t *testing.T) {
	d := newDevice(t, vm.AMD64)
	first := d.running("first start", 0, func(string) bool { return true })
	same := func(id string) bool { return slices.Contains(containers(first), id) }
	const status = "edgecore status || true"

	// The kernel takes no time that is before its own boot.
	d.sh("systemctl stop systemd-timesyncd 2>/dev/null || true; sync; systemctl stop edgecore; date -s @86400; " +
		"systemctl start edgecore")
	d.running("the clock is in 1970", 0, same)
	if out := d.sh(status); !strings.Contains(out, "ClockNotSet") || !strings.Contains(out, "it says 1970-01-02T") {
		t.Errorf("status in 1970 = %s\nwant ClockNotSet and the date", out)
	}

	told := 0
	for _, date := range []string{"2055-01-01", "2030-01-01"} {
		what := "the clock was set to " + date
		d.sh("date -s " + date)
		told++
		wait.Until(t, "the agent to notice the clock", func() error {
			if n := d.sh("journalctl --no-pager -u edgecore | grep -c 'The clock was set' || true"); n != fmt.Sprint(
				told) {
				return fmt.Errorf("%s: the agent noticed %s times, want %d", what, n, told)
			}
			return nil
		})
		d.running(what, 0, same)
		if out := d.sh(status); strings.Contains(out, "ClockNotSet") || !strings.Contains(out, "Agent:") {
			t.Errorf("%s: status = %s\nwant Agent: and no ClockNotSet", what, out)
		}
	}
	d.sh("systemctl restart edgecore")
	d.running("an agent of another time", 0, same)
	if out := d.sh("edgecore preflight || true"); !strings.Contains(out, "[ok]      container runtime: containerd") ||
		strings.Contains(out, "[error]") {
		t.Errorf("preflight = %s\nwant containerd as ok, and no error", out)
	}
}
