// Package configfile finds and reads edgecore's configuration file: which file is used when no flag names one, and what
// is in force while there is none, or while it cannot be used.
//
// It promises:
//   - Load takes a missing file for the defaults only where nobody named the file: a file that was named must exist.
//   - Once the agent has run, it starts again whatever happens to the file: with the copy of the configuration with
//     which it ran last (Choose).
package configfile

import (
	"os"
	"path/filepath"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

const (
	// Packaged is the configuration file of the Debian package.
	Packaged = "/etc/edgecore/edgecore.yaml"
	// PackagedTemplate is the file that the package makes Packaged from.
	PackagedTemplate = "/usr/share/edgecore/edgecore.yaml"
)

// Default returns the file that is used when no flag names one: the package's where that is installed, else KubeEdge's.
// It looks below root, which is / except in tests.
func Default(root string) string {
	for _, name := range []string{Packaged, PackagedTemplate} {
		if _, err := os.Stat(filepath.Join(root, name)); err == nil {
			return Packaged
		}
	}
	return v1alpha2.DefaultConfigFile
}

// Optional reports whether a device may lack the file. It has the defaults then.
func Optional(file string) bool {
	return file == v1alpha2.DefaultConfigFile || file == Packaged
}

// Load returns the configuration in force: that of the file, or the defaults where the device lacks an optional file.
func Load(file string) (*v1alpha2.EdgeCore, error) {
	if _, err := os.Stat(file); err != nil && Optional(file) {
		return v1alpha2.Default(), nil
	}
	cfg, _, err := v1alpha2.Load(file)
	return cfg, err
}

// Running returns the configuration that the agent uses, for the commands that talk to it: that of Load, or, if the
// file cannot be used, that of Choose.
func Running(file string) (*v1alpha2.EdgeCore, error) {
	f, err := Choose(file)
	if err == nil {
		return f.Config, nil
	}
	if cfg, loaded := Load(file); loaded == nil { // there is none, and need not be
		return cfg, nil
	}
	return nil, err
}

// Fresh returns what a configuration file contains when it is made again, and nil if it begins empty. The package's
// template is looked for below root.
func Fresh(root, file string) []byte {
	if file != Packaged {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(root, PackagedTemplate))
	if err != nil {
		return nil
	}
	return data
}
