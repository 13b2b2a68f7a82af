package main

import (
	"os"
	"path/filepath"

	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// Where the Debian package has the configuration, and what it makes that from.
const (
	packagedConfig   = "/etc/edgecore/edgecore.yaml"
	packagedTemplate = "/usr/share/edgecore/edgecore.yaml"
)

// defaultConfig is the configuration that is used when nobody says which: the package's where that is installed, else
// the one that KubeEdge has. Everything is below root, which is / but for tests.
func defaultConfig(root string) string {
	for _, name := range []string{packagedConfig, packagedTemplate} {
		if _, err := os.Stat(filepath.Join(root, name)); err == nil {
			return packagedConfig
		}
	}
	return v1alpha2.DefaultConfigFile
}

// isDefaultConfig reports whether a device may lack that file: then it has the defaults.
func isDefaultConfig(file string) bool {
	return file == v1alpha2.DefaultConfigFile || file == packagedConfig
}

// freshConfig is what a configuration file contains where it is recreated; nil where it begins empty.
func freshConfig(root, file string) []byte {
	if file != packagedConfig {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(root, packagedTemplate))
	if err != nil {
		return nil
	}
	return data
}
