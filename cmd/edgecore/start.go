package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/configfile"
)

// envNotStarted tells an agent that has replaced itself why it could not start with the configuration file.
const envNotStarted = "EDGECORE_CONFIG_NOT_STARTED"

// agentStart is a start of the agent: with the configuration of its file, or with the copy of the last good one.
type agentStart struct {
	inForce *configfile.InForce
	// environ is the environment before parts of it are taken, such as the socket of the service manager.
	environ []string
}

// newAgentStart chooses the configuration. The error is that of the file, if there is no copy either.
func newAgentStart(file string) (*agentStart, error) {
	why := os.Getenv(envNotStarted)
	if err := os.Unsetenv(envNotStarted); err != nil {
		return nil, err
	}
	s := &agentStart{environ: os.Environ()}
	var err error
	if s.inForce, err = configfile.Choose(file); err != nil {
		return nil, err
	}
	if why != "" && s.inForce.Bad == nil {
		s.inForce, err = s.inForce.Instead(errors.New(why))
	}
	return s, err
}

// run runs the agent until ctx ends. If it cannot start with the file, or goes back to the configuration before, the
// process replaces itself: its parts are made once in a process.
func (s *agentStart) run(ctx context.Context) error {
	var running atomic.Bool
	err := runAgent(ctx, s.inForce, func() { running.Store(true) })
	_, ofConfig := errors.AsType[unusable](err)
	switch {
	case ctx.Err() != nil:
		return err
	case againWith(err):
		return s.reexec(err, s.environ)
	case !ofConfig || running.Load(): // the next start may be better
		return err
	}
	if _, none := s.inForce.Instead(err); none != nil {
		return err
	}
	return s.reexec(err, append(s.environ, envNotStarted+"="+inEnvironment(err.Error())))
}

// inEnvironment returns a text that the environment of a process can hold.
func inEnvironment(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text[:min(len(text), 4096)], ""), "\x00", "")
}

// reexec replaces the process by a new one of the same program. It returns only if that fails.
func (s *agentStart) reexec(why error, environ []string) error {
	klog.InfoS("Starting again with another configuration", "why", why)
	program, err := os.Executable()
	if err == nil {
		err = syscall.Exec(program, os.Args, environ)
	}
	return fmt.Errorf("%w (and the program does not start again: %w)", why, err)
}
