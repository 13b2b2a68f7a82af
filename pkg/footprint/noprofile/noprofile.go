// Package noprofile turns off the recording of allocations, whose table takes up to 1.5 MB of memory. It imports almost
// nothing, so that it is initialised before what allocates while it is initialised. GODEBUG=memprofilerate=524288 turns
// the recording on again, and so does footprint.Switch.
package noprofile

import (
	"runtime"
	"strings"
	"syscall"
)

func init() {
	footprint, _ := syscall.Getenv("EDGECORE_FOOTPRINT")
	if debug, _ := syscall.Getenv("GODEBUG"); footprint != "off" && !strings.Contains(debug, "memprofilerate=") {
		runtime.MemProfileRate = 0
	}
}
