package noprofile

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/footprint"
)

// TestRate: allocations are not recorded, unless GODEBUG or the switch says so. It asks this program again, with the
// environment of each case.
func TestRate(t *testing.T) {
	const ask = "NOPROFILE_TEST_PRINT_RATE"
	if os.Getenv(ask) != "" {
		fmt.Print("rate ", runtime.MemProfileRate)
		os.Exit(0)
	}
	for set, want := range map[string]string{
		"GODEBUG=": "rate 0", "GODEBUG=memprofilerate=1024": "rate 1024",
		footprint.Switch + "=off": "rate 524288", footprint.Switch + "=on": "rate 0",
	} {
		again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRate$")
		again.Env = append(os.Environ(), ask+"=1", set)
		if got, err := again.Output(); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", set, got, err, want)
		}
	}
}
