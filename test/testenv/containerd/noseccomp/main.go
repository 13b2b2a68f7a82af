// Noseccomp runs the runc beside it without a seccomp profile: a runc that was built without a C library refuses one,
// and every sandbox has one. Its arguments are runc's.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "noseccomp:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if at := slices.Index(args, "--bundle"); at >= 0 && at+1 < len(args) {
		if err := strip(filepath.Join(args[at+1], "config.json")); err != nil {
			return err
		}
	}
	return syscall.Exec(filepath.Join(filepath.Dir(self), "runc"), args, os.Environ())
}

// strip removes linux.seccomp from a container's configuration.
func strip(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var config, linux map[string]json.RawMessage
	if err := json.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := json.Unmarshal(config["linux"], &linux); err != nil {
		return fmt.Errorf("%s: linux: %w", file, err)
	}
	delete(linux, "seccomp")
	if config["linux"], err = json.Marshal(linux); err != nil {
		return err
	}
	if data, err = json.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}
