package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

// Service installs, starts and removes the agent's service.
type Service struct {
	// Root is the folder that holds etc, run and usr: / except in tests.
	Root string
	// Program is the path of the executable that the unit starts.
	Program string
	// Systemctl runs systemctl with arguments.
	Systemctl func(ctx context.Context, args ...string) error
}

// NewService returns the service that runs this executable on this machine.
func NewService() (*Service, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return &Service{Root: "/", Program: program, Systemctl: systemctl}, nil
}

func systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Present reports whether systemd is the running init system.
func (s *Service) Present() bool {
	info, err := os.Stat(filepath.Join(s.Root, "run/systemd/system"))
	return err == nil && info.IsDir()
}

// UnitFile returns the path of the administrator's unit, which takes precedence over the one that a package installs.
func (s *Service) UnitFile() string { return filepath.Join(s.Root, "etc/systemd/system", Name) }

// Packaged reports whether a package has installed a unit that starts this program with the given configuration.
func (s *Service) Packaged(config string) bool {
	for _, dir := range []string{"usr/lib/systemd/system", "lib/systemd/system"} {
		text, err := os.ReadFile(filepath.Join(s.Root, dir, Name))
		if err == nil && starts(string(text), s.Program, config) {
			return true
		}
	}
	return false
}

// starts reports whether a unit starts a program with a configuration.
func starts(unit, program, config string) bool {
	for line := range strings.Lines(unit) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="); ok {
			return strings.HasPrefix(command, program+" ") && strings.Contains(command+" ", config+" ")
		}
	}
	return false
}

// Install writes the unit unless one that starts the agent exists, and returns what it did.
func (s *Service) Install(config string) (string, error) {
	want := Unit(s.Program, config)
	old, err := os.ReadFile(s.UnitFile())
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err
	case err != nil && s.Packaged(config):
		return "Service " + Name + " is the package's", nil
	case err == nil && IsOurs(string(old)) && s.Packaged(config):
		// An earlier join wrote this unit, and it would hide the package's for good.
		return "Removed " + s.UnitFile() + ": service " + Name + " is the package's", os.Remove(s.UnitFile())
	case err == nil && string(old) == want:
		return "Service " + Name + " is installed", nil
	}
	did := "Wrote service " + s.UnitFile()
	if err == nil && !IsOurs(string(old)) {
		if err := certs.WriteFile(s.UnitFile()+".bak", old); err != nil {
			return "", err
		}
		did += " (the one before is " + s.UnitFile() + ".bak)"
	}
	if err := certs.WriteFile(s.UnitFile(), []byte(want)); err != nil {
		return "", err
	}
	return did, os.Chmod(s.UnitFile(), 0o644)
}

// Start enables the service at boot and starts it now; a running one is restarted.
func (s *Service) Start(ctx context.Context) error {
	for _, args := range [][]string{{"daemon-reload"}, {"enable", Name}, {"restart", Name}} {
		if err := s.Systemctl(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// Remove stops the agent, disables the service and removes the unit that Install wrote. A package's unit stays.
func (s *Service) Remove(ctx context.Context) (string, error) {
	if !s.Present() {
		return "systemd does not run here: there is no service to stop", nil
	}
	text, err := os.ReadFile(s.UnitFile())
	ours := err == nil && IsOurs(string(text))
	if err := s.Systemctl(ctx, "disable", "--now", Name); err != nil {
		if strings.Contains(err.Error(), "does not exist") || strings.Contains(err.Error(), "not loaded") {
			return "There is no service " + Name, nil
		}
		return "", err
	}
	if !ours {
		return "Stopped and disabled " + Name, nil
	}
	if err := os.Remove(s.UnitFile()); err != nil {
		return "", err
	}
	return "Stopped and removed " + Name, s.Systemctl(ctx, "daemon-reload")
}
