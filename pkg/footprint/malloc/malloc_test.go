package malloc

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/footprint"
)

// TestTrim: a program returns memory and goes on, also if the package is switched off. The test runs itself for that.
func TestTrim(t *testing.T) {
	const ask = "MALLOC_TEST_TRIM"
	if os.Getenv(ask) != "" {
		Trim()
		return
	}
	for _, set := range []string{"", "off"} {
		program := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTrim$", "-test.v")
		program.Env = append(os.Environ(), ask+"=1", footprint.Switch+"="+set)
		if out, err := program.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: TestTrim") {
			t.Errorf("%s=%q: %v\n%s", footprint.Switch, set, err, out)
		}
	}
}
