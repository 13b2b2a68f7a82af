package main

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// controls are kinds of work that have nothing to do with the device, for so many busy threads. The shell runs them.
var controls = []struct {
	name   string
	script func(threads int) string
}{
	{"that compute", func(threads int) string {
		return strings.Repeat("while :; do :; done & ", threads) + "wait"
	}},
	{"that pass data on", func(threads int) string {
		return "cat /dev/zero" + strings.Repeat(" | cat", max(threads-1, 1)) + " >/dev/null"
	}},
}

// probeWhile runs probe while unrelated processes run.
func (s *tunnelSite) probeWhile(ctx context.Context, script string) ([]time.Duration, error) {
	shell := exec.Command("sh", "-c", script)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := shell.Start(); err != nil {
		return nil, err
	}
	list, err := s.probe(ctx)
	err = errors.Join(err, syscall.Kill(-shell.Process.Pid, syscall.SIGKILL))
	_ = shell.Wait() // it was killed
	return list, err
}
