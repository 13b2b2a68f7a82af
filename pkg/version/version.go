// Package version says which build this is. The linker sets the variables (see the Makefile).
package version

import "runtime"

// Set by the linker.
var (
	version = "v0.0.0-dev"
	commit  = "unknown"
)

// Version is the version of this build.
func Version() string { return version }

// String is the version with all that tells builds apart.
func String() string {
	return version + " (commit " + commit + ", " + runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ")"
}
