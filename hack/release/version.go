package main

import (
	"regexp"
	"strings"
	"time"
)

// described is what `git describe --tags --dirty` says of a release, or of a commit after one.
var described = regexp.MustCompile(
	`^v?(\d+\.\d+\.\d+)(?:-((?:alpha|beta|rc)[.0-9a-z]*))?(?:-(\d+)-g([0-9a-f]+))?(-dirty)?$`)

// debianVersion is a version as Debian orders them: v1.2.0-rc.1 before v1.2.0, that before the commits after it, and
// builds of commits that have no release before them by their time.
func debianVersion(version string, made time.Time) string {
	m := described.FindStringSubmatch(version)
	if m == nil {
		rest, dirty := strings.CutSuffix(version, "-dirty")
		rest = strings.Map(func(c rune) rune {
			if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' {
				return c
			}
			return '.'
		}, rest)
		v := "0.0.0+git" + made.UTC().Format("20060102150405") + "." + rest
		if dirty {
			v += "+dirty"
		}
		return v
	}
	v := m[1]
	if m[2] != "" {
		v += "~" + m[2]
	}
	if m[3] != "" {
		v += "+" + m[3] + ".g" + m[4]
	}
	if m[5] != "" {
		v += "+dirty"
	}
	return v
}
