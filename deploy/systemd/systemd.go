// Package systemd holds the unit of edgecore's service, and installs, starts and removes that service for
// `edgecore join` and `edgecore reset`.
package systemd

import (
	_ "embed"
	"strings"
)

// Name is the service's name.
const Name = "edgecore.service"

// packaged is how the agent is started in the unit as it lies in this folder, which is the package's.
const packaged = "/usr/bin/edgecore --config /etc/edgecore/edgecore.yaml"

//go:embed edgecore.service
var unit string

// Unit returns the unit for a program and a configuration.
func Unit(program, config string) string {
	return strings.Replace(unit, packaged, quote(program)+" --config "+quote(config), 1)
}

// IsOurs reports whether a unit was made from this one.
func IsOurs(text string) bool {
	first, _, _ := strings.Cut(unit, "\n")
	return strings.HasPrefix(text, first)
}

// quote writes a path as a unit wants it.
func quote(path string) string {
	path = strings.NewReplacer("%", "%%", "$", "$$").Replace(path)
	if strings.ContainsAny(path, " \t\"'\\;") {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(path) + `"`
	}
	return path
}
