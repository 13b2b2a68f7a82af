// Package version says which build this is. The linker sets what the Makefile knows; a build without it, such
// as one by `go install`, says what the Go tools noted.
package version

import (
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// Set by the linker (-X).
var (
	version string
	commit  string
)

const unset = "v0.0.0-dev"

// Version is the version of this build, such as v1.2.3.
func Version() string {
	info, _ := debug.ReadBuildInfo()
	v, _ := choose(version, commit, info)
	return v
}

// String is the version with all that tells builds apart.
func String() string {
	info, _ := debug.ReadBuildInfo()
	v, c := choose(version, commit, info)
	return v + " (commit " + c + ", " + runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ")"
}

// choose takes what the linker set before what the Go tools noted; info may be nil.
func choose(version, commit string, info *debug.BuildInfo) (string, string) {
	if info != nil {
		if v := info.Main.Version; version == "" && v != "(devel)" {
			version = v
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && commit == "" {
				commit = s.Value
			}
		}
	}
	if version == "" {
		version = unset
	}
	if commit == "" {
		commit = "unknown"
	}
	return version, commit
}

// Built is the time of the commit of which this build is, as the Go tools noted; zero where they did not. It is over,
// whatever a clock says.
func Built() time.Time {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return time.Time{}
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.time" {
			at, _ := time.Parse(time.RFC3339, s.Value) // zero where it is none
			return at
		}
	}
	return time.Time{}
}

// Kubernetes is the version of the Kubernetes API that this binary was built with, as "v1.37.2"; "" where the build
// does not tell.
func Kubernetes() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, dep := range info.Deps {
		if rest, ok := strings.CutPrefix(dep.Version, "v0."); ok && dep.Path == "k8s.io/api" {
			return "v1." + rest
		}
	}
	return ""
}
