// Package vm boots virtual machines for tests: a Debian with systemd as pid 1, cgroup v2 and containerd,
// under software emulation, so that it works wherever the tests do. A machine has no network unless
// asked, a disk of its own over a shared image, and a second disk with the files that the test gives it
// (the payload, at /payload). Commands reach it over a virtio-serial port. Nothing of it outlives the test.
package vm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/vm/guestapi"
)

const (
	// bootTimeout is many times what a boot takes on a machine of two idle cores.
	bootTimeout     = 8 * time.Minute
	shutdownTimeout = 3 * time.Minute
	attemptTimeout  = 5 * time.Second
)

// Options say what machine to make. The zero value is of amd64, and has 2 CPUs and 1 GB.
type Options struct {
	// Arch is AMD64 or ARM64.
	Arch           string
	CPUs, MemoryMB int
	// Packages of Debian are installed besides those that all machines have.
	Packages []string
	// Payload are files of the host, by the name that they get in /payload.
	Payload map[string]string
	// Network gives the machine one that leads outside, through qemu; else it has no card at all. This machine's
	// loopback is 10.0.2.2 there.
	Network bool
	// Append is added to the kernel's command line.
	Append string
}

// VM is a machine. Its methods must not be called at the same time.
type VM struct {
	opts      Options
	board     board
	image     Image
	dir       string
	owner     *os.File // see newFolder
	proc      *process
	client    *guestapi.Client
	unplugged bool
}

// New makes a machine that is off. Remove takes it away.
func New(ctx context.Context, opts Options) (*VM, error) {
	opts.Arch = cmp.Or(opts.Arch, AMD64)
	board, err := boardOf(opts.Arch)
	if err != nil {
		return nil, err
	}
	img, err := BuildImage(ctx, opts.Arch, opts.Packages...)
	if err != nil {
		return nil, err
	}
	if opts.CPUs == 0 {
		opts.CPUs = 2
	}
	if opts.MemoryMB == 0 {
		opts.MemoryMB = 1024
	}
	dir, owner, err := newFolder()
	if err != nil {
		return nil, err
	}
	m := &VM{opts: opts, board: board, image: img, dir: dir, owner: owner}
	if err := m.makeDisks(ctx); err != nil {
		return nil, errors.Join(err, m.Remove())
	}
	return m, nil
}

func (m *VM) makeDisks(ctx context.Context) error {
	if err := command(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", m.image.Disk,
		m.overlay()); err != nil {
		return err
	}
	folder := filepath.Join(m.dir, "payload")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := goCommand(ctx, []string{"CGO_ENABLED=0", "GOARCH=" + m.opts.Arch}, "build", "-o",
		filepath.Join(folder, "guest"), "./test/vm/guest"); err != nil {
		return err
	}
	var size int64 = 64 << 20
	for name, source := range m.opts.Payload {
		target := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := command(ctx, "cp", "--sparse=always", source, target); err != nil {
			return err
		}
		st, err := os.Stat(target)
		if err != nil {
			return err
		}
		size += st.Size() + st.Size()/8
	}
	if err := makeDisk(ctx, m.payload(), folder, strconv.FormatInt(size>>10, 10)+"k"); err != nil {
		return err
	}
	return os.RemoveAll(folder)
}

func (m *VM) overlay() string { return filepath.Join(m.dir, "disk.qcow2") }
func (m *VM) payload() string { return filepath.Join(m.dir, "payload.raw") }
func (m *VM) socket() string  { return filepath.Join(m.dir, "agent.sock") }
func (m *VM) monitor() string { return filepath.Join(m.dir, "monitor.sock") }
func (m *VM) log() string     { return filepath.Join(m.dir, "qemu.log") }

// Console is the file with all that the machine wrote to its serial console.
func (m *VM) Console() string { return filepath.Join(m.dir, "console.log") }

// SetNetwork says whether the next boot has a network card.
func (m *VM) SetNetwork(on bool) { m.opts.Network = on }

// Plug puts the network's cable in or takes it out, now or, for a machine that is off, before its next boot.
func (m *VM) Plug(ctx context.Context, in bool) error {
	m.unplugged = !in
	if !m.proc.running() {
		return nil
	}
	return m.qmp(ctx, cable(in))
}

// Boot switches the machine on and waits until it does what it is asked for.
func (m *VM) Boot(ctx context.Context) error {
	if m.proc.running() {
		return errors.New("the machine is on already")
	}
	// A qemu that was killed leaves its sockets.
	for _, left := range []string{m.socket(), m.monitor()} {
		if err := os.Remove(left); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	proc, err := start(m.board.qemu, m.args(), m.log())
	if err != nil {
		return err
	}
	m.proc = proc
	if m.opts.Network {
		if err := m.qmp(ctx, cable(!m.unplugged), qmpCommand{Execute: "cont"}); err != nil {
			return err
		}
	}
	return m.waitUp(ctx, "")
}

// waitUp waits until the machine answers from another boot than the one given.
func (m *VM) waitUp(ctx context.Context, not string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("the machine is not up after %v", bootTimeout))
	defer cancel()
	err := daemon.Poll(ctx, func() error {
		if !m.proc.running() {
			return daemon.Fatal(fmt.Errorf("qemu has ended:\n%s", daemon.Tail(m.log(), 10)))
		}
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		defer cancel()
		id, err := m.bootID(attempt)
		if err == nil && id == not {
			err = errors.New("it has not stopped yet")
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("boot the machine: %w\nthe end of its console:\n%s", err, daemon.Tail(m.Console(), 20))
	}
	return nil
}

func (m *VM) bootID(ctx context.Context) (string, error) {
	data, err := m.ReadFile(ctx, "/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// do sends a request over a connection that is made when there is none.
func (m *VM) do(ctx context.Context, r guestapi.Request, out io.Writer) (int, error) {
	if !m.proc.running() {
		return 0, errors.New("the machine is off")
	}
	if m.client == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", m.socket())
		if err != nil {
			return 0, err
		}
		m.client = guestapi.NewClient(conn)
	}
	code, err := m.client.Do(ctx, r, out)
	if guest := guestapi.GuestError(""); err != nil && !errors.As(err, &guest) {
		m.disconnect()
	}
	return code, err
}

func (m *VM) disconnect() {
	if m.client != nil {
		_ = m.client.Close() // what matters was said by the call that failed
		m.client = nil
	}
}

// ExitError is a command in the machine that ended with another code than 0.
type ExitError struct {
	Args   []string
	Code   int
	Output string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("in the machine: %s: exit code %d\n%s", strings.Join(e.Args, " "), e.Code, e.Output)
}

// Stream runs a command and copies what it writes to out as it comes.
func (m *VM) Stream(ctx context.Context, out io.Writer, env []string, args ...string) error {
	code, err := m.do(ctx, guestapi.Request{Op: guestapi.Run, Args: args, Env: env}, out)
	if err == nil && code != 0 {
		err = &ExitError{Args: args, Code: code}
	}
	return err
}

// Run runs a command and returns what it writes.
func (m *VM) Run(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	err := m.Stream(ctx, &out, nil, args...)
	if exit := (*ExitError)(nil); errors.As(err, &exit) {
		exit.Output = out.String()
	}
	return out.String(), err
}

// Shell runs a script that ends at its first failing command.
func (m *VM) Shell(ctx context.Context, script string) (string, error) {
	return m.Run(ctx, "sh", "-ec", script)
}

// ReadFile reads a file of the machine.
func (m *VM) ReadFile(ctx context.Context, path string) ([]byte, error) {
	var out bytes.Buffer
	_, err := m.do(ctx, guestapi.Request{Op: guestapi.Read, Path: path}, &out)
	return out.Bytes(), err
}

// WriteFile writes a file of the machine, which is on its disk when this returns.
func (m *VM) WriteFile(ctx context.Context, path, content string, mode os.FileMode) error {
	_, err := m.do(ctx, guestapi.Request{Op: guestapi.Write, Path: path, Data: []byte(content), Mode: mode}, io.Discard)
	return err
}

// Reboot restarts the machine the way its own systemd does, and waits until it is back.
func (m *VM) Reboot(ctx context.Context) error {
	before, err := m.bootID(ctx)
	if err != nil {
		return err
	}
	if err := m.systemctl(ctx, "reboot"); err != nil {
		return err
	}
	return m.waitUp(ctx, before)
}

// systemctl asks for the end of this boot, which may come before the answer.
func (m *VM) systemctl(ctx context.Context, verb string) error {
	_, err := m.Run(ctx, "systemctl", "--no-block", verb)
	if errors.Is(err, guestapi.ErrEnded) {
		return nil
	}
	return err
}

// Shutdown switches the machine off the way its own systemd does.
func (m *VM) Shutdown(ctx context.Context) error {
	if err := m.systemctl(ctx, "poweroff"); err != nil {
		return err
	}
	m.disconnect()
	ctx, cancel := context.WithTimeoutCause(ctx, shutdownTimeout,
		fmt.Errorf("the machine is still on after %v", shutdownTimeout))
	defer cancel()
	select {
	case <-m.proc.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("shut the machine down: %w\nthe end of its console:\n%s", context.Cause(ctx),
			daemon.Tail(m.Console(), 20))
	}
}

// Cut takes the machine's power away.
func (m *VM) Cut() error {
	m.disconnect()
	return m.proc.kill()
}

// Remove ends the machine and deletes its disk.
func (m *VM) Remove() error {
	return errors.Join(m.Cut(), os.RemoveAll(m.dir), m.owner.Close())
}
