// Package footprint has what both programs do to need less memory and processor time than Go gives them by default.
// docs/footprint.md says what each part gains. None of it changes what a program does, so a person who debugs one can
// switch all of it off: see Switch.
//
// Two packages are below it: noprofile has to be initialised before others, and imports almost nothing for that reason;
// malloc needs cgo.
package footprint

import (
	"os"
	"runtime"
	"runtime/debug"
)

// Switch is the environment variable that turns the whole package off, and noprofile with it, if it is "off".
const Switch = "EDGECORE_FOOTPRINT"

// Off reports whether the environment turns the package off.
func Off() bool { return os.Getenv(Switch) == "off" }

// Tuning is how Go's runtime is set up.
type Tuning struct {
	// GCPercent is how far the heap may grow before garbage is collected. GOGC in the environment overrides it.
	GCPercent int
	// Processors is how many threads may run Go code at once; 0 is as many as Go chooses. GOMAXPROCS overrides it.
	Processors int
}

// Tune sets up Go's runtime, unless the environment does.
func Tune(t Tuning) {
	if Off() {
		return
	}
	if t.Processors > 0 && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(t.Processors, runtime.GOMAXPROCS(0)))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(t.GCPercent)
	}
}
