package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/edgecore-io/edgecore/deploy/systemd"
	"github.com/edgecore-io/edgecore/pkg/certs"
)

// service is the agent as a service of systemd. Everything is below root, which is / but for tests.
type service struct {
	root string
	// program is this executable.
	program string
	// systemctl runs it with arguments.
	systemctl func(ctx context.Context, args ...string) error
}

func newService() (*service, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return &service{root: "/", program: program, systemctl: systemctl}, nil
}

func systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// present tells whether systemd runs here.
func (s *service) present() bool {
	info, err := os.Stat(filepath.Join(s.root, "run/systemd/system"))
	return err == nil && info.IsDir()
}

// unit is where an administrator's unit lies, which goes before that of a package.
func (s *service) unit() string { return filepath.Join(s.root, "etc/systemd/system", systemd.Name) }

// packaged tells whether a package has brought a unit that starts this program with this configuration.
func (s *service) packaged(config string) bool {
	for _, dir := range []string{"usr/lib/systemd/system", "lib/systemd/system"} {
		text, err := os.ReadFile(filepath.Join(s.root, dir, systemd.Name))
		if err == nil && starts(string(text), s.program, config) {
			return true
		}
	}
	return false
}

// starts tells whether a unit starts a program with a configuration.
func starts(unit, program, config string) bool {
	for line := range strings.Lines(unit) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="); ok {
			return strings.HasPrefix(command, program+" ") && strings.Contains(command+" ", config+" ")
		}
	}
	return false
}

// install writes the unit if there is none that does it, and returns what it did.
func (s *service) install(config string) (string, error) {
	want := systemd.Unit(s.program, config)
	old, err := os.ReadFile(s.unit())
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err
	case err != nil && s.packaged(config):
		return "Service " + systemd.Name + " is the package's", nil
	case err == nil && systemd.IsOurs(string(old)) && s.packaged(config):
		// An earlier join wrote it, and it would go before the package's for ever.
		return "Removed " + s.unit() + ": service " + systemd.Name + " is the package's", os.Remove(s.unit())
	case err == nil && string(old) == want:
		return "Service " + systemd.Name + " is installed", nil
	}
	did := "Wrote service " + s.unit()
	if err == nil && !systemd.IsOurs(string(old)) {
		if err := certs.WriteFile(s.unit()+".bak", old); err != nil {
			return "", err
		}
		did += " (the one before is " + s.unit() + ".bak)"
	}
	if err := certs.WriteFile(s.unit(), []byte(want)); err != nil {
		return "", err
	}
	return did, os.Chmod(s.unit(), 0o644)
}

// start has systemd run the agent now, anew if it runs, and at every boot.
func (s *service) start(ctx context.Context) error {
	for _, args := range [][]string{{"daemon-reload"}, {"enable", systemd.Name}, {"restart", systemd.Name}} {
		if err := s.systemctl(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// remove stops the agent and takes back what install did; a package's unit stays, switched off.
func (s *service) remove(ctx context.Context) (string, error) {
	if !s.present() {
		return "systemd does not run here: there is no service to stop", nil
	}
	text, err := os.ReadFile(s.unit())
	ours := err == nil && systemd.IsOurs(string(text))
	if err := s.systemctl(ctx, "disable", "--now", systemd.Name); err != nil {
		if strings.Contains(err.Error(), "does not exist") || strings.Contains(err.Error(), "not loaded") {
			return "There is no service " + systemd.Name, nil
		}
		return "", err
	}
	if !ours {
		return "Stopped and disabled " + systemd.Name, nil
	}
	if err := os.Remove(s.unit()); err != nil {
		return "", err
	}
	return "Stopped and removed " + systemd.Name, s.systemctl(ctx, "daemon-reload")
}
