package noprofile

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// TestRate: allocations are not recorded, unless GODEBUG says so. It asks this program again, with the environment of
// each case.
func TestRate(t *testing.T) {
	const ask = "NOPROFILE_TEST_PRINT_RATE"
	if os.Getenv(ask) != "" {
		fmt.Print("rate ", runtime.MemProfileRate)
		os.Exit(0)
	}
	for debug, want := range map[string]string{"": "rate 0", "memprofilerate=1024": "rate 1024"} {
		again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRate$")
		again.Env = append(os.Environ(), ask+"=1", "GODEBUG="+debug)
		if got, err := again.Output(); err != nil || string(got) != want {
			t.Errorf("GODEBUG=%s: %q, %v; want %q", debug, got, err, want)
		}
	}
}
