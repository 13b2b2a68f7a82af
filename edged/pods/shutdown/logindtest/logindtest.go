// Package logindtest runs a D-Bus daemon for a test, with a fake logind on it that has what an inhibitor of shutdowns
// needs. Locks are real: a lock is held until the last copy of its file is closed.
package logindtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
	"golang.org/x/sys/unix"
)

const (
	login1  = "org.freedesktop.login1"
	manager = login1 + ".Manager"
	path    = dbus.ObjectPath("/org/freedesktop/login1")
)

// Logind is the played logind.
type Logind struct {
	// Address is that of the bus.
	Address string
	dir     string

	daemon *exec.Cmd
	conn   *dbus.Conn
	props  *prop.Properties

	mu       sync.Mutex
	locks    []*os.File // the ends of the pipes of which others hold the other ends
	reloads  int
	stubborn bool
	delay    time.Duration
}

// Start starts a bus, with a logind that waits for no longer than delay. Both end with the test.
func Start(t testing.TB, delay time.Duration) *Logind {
	t.Helper()
	l := &Logind{dir: t.TempDir(), delay: delay}
	l.Address = "unix:path=" + filepath.Join(l.dir, "bus")
	config :=
		fmt.Sprintf(
			`<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_type="method_call"/><allow send_type="signal"/><allow send_requested_reply="true"/><allow receive_type="method_call"/><allow receive_type="method_return"/><allow receive_type="error"/><allow receive_type="signal"/></policy>
</busconfig>`, l.Address)
	if err := os.WriteFile(filepath.Join(l.dir, "bus.conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	l.Restart(t)
	t.Cleanup(l.Stop)
	return l
}

// Restart starts the bus and logind after Stop.
func (l *Logind) Restart(t testing.TB) {
	t.Helper()
	l.daemon = exec.Command("dbus-daemon", "--config-file="+filepath.Join(l.dir, "bus.conf"), "--nofork", "--nopidfile",
		"--print-address")
	l.daemon.Stderr = os.Stderr
	l.daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := l.daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.daemon.Start(); err != nil {
		t.Fatalf("start dbus-daemon, of Debian's package dbus-daemon: %v", err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // the address: it listens
		t.Fatalf("dbus-daemon has ended: %v", err)
	}
	if l.conn, err = dbus.Connect(l.Address, dbus.WithIncomingInterceptor(replyByHand)); err != nil {
		t.Fatal(err)
	}
	if l.props, err = prop.Export(l.conn, path, prop.Map{manager: {
		"InhibitDelayMaxUSec":  {Value: uint64(l.delay / time.Microsecond)},
		"PreparingForShutdown": {Value: false},
	}}); err != nil {
		t.Fatal(err)
	}
	for name, export := range map[string]func() error{
		login1: func() error { return l.conn.Export(l, path, manager) },
		"org.freedesktop.systemd1": func() error {
			return l.conn.Export((*systemd)(l), "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
		},
	} {
		if err := export(); err != nil {
			t.Fatal(err)
		}
		if reply, err := l.conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil ||
			reply != dbus.RequestNameReplyPrimaryOwner {
			t.Fatal(name, reply, err)
		}
	}
}

// Stop stops both.
func (l *Logind) Stop() {
	if l.daemon == nil {
		return
	}
	_ = l.conn.Close()
	_ = l.daemon.Process.Kill()
	_ = l.daemon.Wait()
	l.daemon = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.locks {
		_ = f.Close()
	}
	l.locks = nil
}

// Stubborn has logind keep its limit whatever its configuration says.
func (l *Logind) Stubborn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stubborn = true
}

// inhibit is the method that gives out locks.
const inhibit = "Inhibit"

// replyByHand leaves the reply to the call of Inhibit to that method, which has to know when it is sent.
func replyByHand(msg *dbus.Message) {
	member, _ := msg.Headers[dbus.FieldMember].Value().(string)
	if msg.Type == dbus.TypeMethodCall && member == inhibit {
		msg.Flags |= dbus.FlagNoReplyExpected
	}
}

// Inhibit is the call of that name on the bus. It closes its own copy of the lock as soon as the reply is sent, so that
// the caller's release is the end of the lock.
func (l *Logind) Inhibit(call dbus.Message, what, who, why, mode string) *dbus.Error {
	if what != "shutdown" || mode != "delay" || who == "" || why == "" {
		return dbus.MakeFailedError(fmt.Errorf("inhibit %q %q %q %q", what, who, why, mode))
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return dbus.MakeFailedError(err)
	}
	defer func() { _ = unix.Close(fds[1]) }() // the message that is under way holds a copy
	l.mu.Lock()
	l.locks = append(l.locks, os.NewFile(uintptr(fds[0]), "lock"))
	l.mu.Unlock()
	lock := dbus.UnixFD(fds[1])
	l.conn.Send(&dbus.Message{
		Type: dbus.TypeMethodReply,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldDestination: call.Headers[dbus.FieldSender],
			dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()),
			dbus.FieldSignature:   dbus.MakeVariant(dbus.SignatureOf(lock)),
		},
		Body: []any{lock},
	}, nil)
	return nil
}

// Locks is how many locks are held.
func (l *Logind) Locks() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := 0
	for _, f := range l.locks {
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		for err == unix.EINTR {
			n, err = unix.Poll(fds, 0)
		}
		if err == nil && (n == 0 || fds[0].Revents&unix.POLLHUP == 0) {
			held++
		}
	}
	return held
}

// Reloads is how often logind was told to read its configuration again.
func (l *Logind) Reloads() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reloads
}

// Prepare tells all that a shutdown begins, or was called off.
func (l *Logind) Prepare(t testing.TB, begins bool) {
	t.Helper()
	l.props.SetMust(manager, "PreparingForShutdown", begins)
	if err := l.conn.Emit(path, manager+".PrepareForShutdown", begins); err != nil {
		t.Fatal(err)
	}
}

// systemd is what of systemd is played.
type systemd Logind

// KillUnit is the call of that name on the bus: logind waits for an hour from then on.
func (s *systemd) KillUnit(unit, whom string, signal int32) *dbus.Error {
	if !strings.HasPrefix(unit, "systemd-logind") || whom != "all" || signal != int32(syscall.SIGHUP) {
		return dbus.MakeFailedError(fmt.Errorf("kill %q %q %d", unit, whom, signal))
	}
	s.mu.Lock()
	s.reloads++
	stubborn := s.stubborn
	s.mu.Unlock()
	if !stubborn {
		s.props.SetMust(manager, "InhibitDelayMaxUSec", uint64(time.Hour/time.Microsecond))
	}
	return nil
}
