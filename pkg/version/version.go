// Package version identifies the build. The linker sets the Makefile's values; other builds, such as by `go install`,
// use what the Go tools recorded.
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

// String returns the version with everything that distinguishes builds.
func String() string {
	info, _ := debug.ReadBuildInfo()
	v, c := choose(version, commit, info)
	return v + " (commit " + c + ", " + runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ")"
}

// choose prefers the linker's values to those of the Go tools; info may be nil.
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

// Built returns the time of the build's commit, as the Go tools recorded it; zero otherwise. It is certainly past,
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

// Kubernetes returns the Kubernetes API version that this binary was built with, such as "v1.37.2"; "" if unknown.
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
