package kube

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// Component is one program of a cluster: running, paused or ended. Its methods must not be called
// at the same time.
type Component struct {
	Name    string
	cluster *Cluster
	flags   func() []string
	// ready returns nil when the program does its work.
	ready func(context.Context) error
	proc  *daemon.Process
	port  *daemon.Port // nil: it listens on no port
}

// Log is the file that the program writes to, over all its starts.
func (p *Component) Log() string { return p.cluster.file(p.Name + ".log") }

// PID is the program's process; 0 when it has not been started.
func (p *Component) PID() int {
	if p.proc == nil {
		return 0
	}
	return p.proc.PID
}

// Running reports whether the program's process is there, paused or not.
func (p *Component) Running() bool { return p.proc.Running() }

// Start starts the program, where it was and with the data that it had, and waits until it is ready.
func (p *Component) Start(ctx context.Context) error {
	if p.Running() {
		return fmt.Errorf("%s of cluster %s runs already", p.Name, p.cluster.name)
	}
	if err := p.launch(); err != nil {
		return err
	}
	return p.wait(ctx)
}

func (p *Component) launch() error {
	program := filepath.Join(p.cluster.binaries, p.Name)
	proc, err := daemon.Start(p.Log(), nil, program, p.flags()...)
	if err != nil {
		return fmt.Errorf("start %s of cluster %s: %w", p.Name, p.cluster.name, err)
	}
	p.proc = proc
	return p.cluster.save()
}

func (p *Component) wait(ctx context.Context) error {
	ctx, cancel := daemon.Within(ctx)
	defer cancel()
	err := daemon.Poll(ctx, func() error {
		if !p.Running() {
			return daemon.Fatal(fmt.Errorf("it has ended"))
		}
		return p.ready(ctx)
	})
	if err != nil {
		return fmt.Errorf("%s of cluster %s does not become ready: %w\nthe end of its log:\n%s", p.Name, p.cluster.name,
			err, daemon.Tail(p.Log(), 20))
	}
	return nil
}

// Stop ends the program in its own way.
func (p *Component) Stop(ctx context.Context) error { return p.proc.End(ctx, syscall.SIGTERM) }

// Kill9 ends the program at once.
func (p *Component) Kill9(ctx context.Context) error { return p.proc.End(ctx, syscall.SIGKILL) }

// Restart ends the program in its own way and starts it again.
func (p *Component) Restart(ctx context.Context) error {
	if err := p.Stop(ctx); err != nil {
		return err
	}
	return p.Start(ctx)
}

// Pause makes the program hang: connections stay, and nothing answers.
func (p *Component) Pause(ctx context.Context) error {
	if !p.Running() {
		return fmt.Errorf("%s of cluster %s does not run", p.Name, p.cluster.name)
	}
	return p.proc.Pause(ctx)
}

// Resume ends what Pause began.
func (p *Component) Resume() error {
	if !p.Running() {
		return fmt.Errorf("%s of cluster %s does not run", p.Name, p.cluster.name)
	}
	return p.proc.Resume()
}
