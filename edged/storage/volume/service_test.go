package volume

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/deploy/systemd"
)

// TestTeardownInTheService runs the tests of teardown again with the capabilities that the packaged service has, and
// with which a pod's end depends on nothing that only root in a shell may do.
func TestTeardownInTheService(t *testing.T) {
	const key = "\nCapabilityBoundingSet=~"
	_, rest, found := strings.Cut(systemd.Unit("/usr/bin/edgecore", "/etc/edgecore/edgecore.yaml"), key)
	list, _, _ := strings.Cut(rest, "\n")
	if !found {
		t.Fatalf("the unit has no line that begins with %q, want it to say what the service may not", key[1:])
	}
	var taken []string
	for _, name := range strings.Fields(list) {
		taken = append(taken, "-"+strings.ToLower(strings.TrimPrefix(name, "CAP_")))
	}
	cmd := exec.CommandContext(t.Context(), "setpriv", "--bounding-set="+strings.Join(taken, ","), "--no-new-privs",
		os.Args[0], "-test.run=^(TestTeardown|TestTeardownOf.*|TestKilledTeardown|TestSetOwnership|"+
			"TestLocalBlockDevice|TestBlankDeviceIsFormatted)$")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("with the capabilities of the service: %v, want the same tests to pass:\n%s", err, out)
	}
}
