package daemon

import (
	"context"
	"fmt"
	"syscall"
)

// Program is a program that is started and ended again and again. The zero value was not started yet. Its methods must
// not be called at the same time.
type Program struct{ proc *Process }

// Launch says how a program is started.
type Launch struct {
	// Name is what errors call the program.
	Name string
	// Log is the file that its output is appended to.
	Log string
	// Env are variables beside those of this process.
	Env []string
	// Command is the program and its arguments.
	Command []string
	// Started, which may be nil, is called with the process as soon as it runs.
	Started func(Identity) error
	// Ready returns nil once the program does its work.
	Ready func(context.Context) error
}

// Launch starts the program and waits until it is ready.
func (p *Program) Launch(ctx context.Context, l Launch) error {
	proc, err := Start(l.Log, l.Env, l.Command[0], l.Command[1:]...)
	if err != nil {
		return err
	}
	p.proc = proc
	if l.Started != nil {
		if err := l.Started(proc.Identity); err != nil {
			return err
		}
	}
	ctx, cancel := Within(ctx)
	defer cancel()
	err = Poll(ctx, func() error {
		if !proc.Running() {
			return Fatal(fmt.Errorf("%s has ended", l.Name))
		}
		return l.Ready(ctx)
	})
	if err != nil {
		return fmt.Errorf("start %s: %w\n%s", l.Name, err, Tail(l.Log, 20))
	}
	return nil
}

// PID returns the ID of the process, 0 if there is none.
func (p *Program) PID() int {
	if !p.proc.Running() {
		return 0
	}
	return p.proc.PID
}

// Attach takes over a program that another process started.
func (p *Program) Attach(id Identity) { p.proc = Known(id) }

// Identity tells another process which one this is.
func (p *Program) Identity() Identity {
	if p.proc == nil {
		return Identity{}
	}
	return p.proc.Identity
}

// Stop ends the program in its own way. The pods of a node's agent run on.
func (p *Program) Stop(ctx context.Context) error { return p.proc.End(ctx, syscall.SIGTERM) }

// Kill9 kills the program the hard way.
func (p *Program) Kill9(ctx context.Context) error { return p.proc.End(ctx, syscall.SIGKILL) }

// Pause makes the program hang: its connections stay, and it falls behind what changes.
func (p *Program) Pause(ctx context.Context) error { return p.proc.Pause(ctx) }

// Resume ends what Pause began.
func (p *Program) Resume() error { return p.proc.Resume() }
