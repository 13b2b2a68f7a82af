package shutdown

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
	"k8s.io/klog/v2"
)

// The names of logind and systemd on the bus.
const (
	login1        = "org.freedesktop.login1"
	login1Path    = "/org/freedesktop/login1"
	login1Manager = login1 + ".Manager"
	prepare       = "PrepareForShutdown"

	systemd1        = "org.freedesktop.systemd1"
	systemd1Path    = "/org/freedesktop/systemd1"
	systemd1Manager = systemd1 + ".Manager"
	logindUnit      = "systemd-logind.service"

	// systemBus is where the system's bus is, unless the environment says otherwise.
	systemBus    = "unix:path=/run/dbus/system_bus_socket"
	systemBusEnv = "DBUS_SYSTEM_BUS_ADDRESS"
)

// callWithin bounds each question.
const callWithin = 10 * time.Second

// logind is logind over one connection to the bus.
type logind struct {
	conn *dbus.Conn
	ctx  context.Context
}

// connect connects to the bus. What is asked over the connection ends with ctx.
func connect(ctx context.Context, address string) (*logind, error) {
	if address == "" {
		if address = os.Getenv(systemBusEnv); address == "" {
			address = systemBus
		}
	}
	// The connection is closed by close, not by ctx: until then a lock of it holds.
	conn, err := dbus.Connect(address)
	if err != nil {
		return nil, fmt.Errorf("connect to the system's D-Bus: %w", err)
	}
	return &logind{conn, ctx}, nil
}

func (l *logind) close() {
	if err := l.conn.Close(); err != nil {
		klog.V(2).InfoS("Connection to the system's D-Bus not closed", "err", err)
	}
}

// call asks something, and stores the answer.
func (l *logind) call(name, path, method string, answer []any, args ...any) error {
	ctx, cancel := context.WithTimeout(l.ctx, callWithin)
	defer cancel()
	if err := l.conn.Object(name, dbus.ObjectPath(path)).CallWithContext(ctx, method, 0, args...).
		Store(answer...); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return nil
}

// delay is how long logind waits for anyone who inhibits a shutdown.
func (l *logind) delay() (time.Duration, error) {
	var value dbus.Variant
	if err := l.call(login1, login1Path, "org.freedesktop.DBus.Properties.Get", []any{&value}, login1Manager,
		"InhibitDelayMaxUSec"); err != nil {
		return 0, err
	}
	usec, ok := value.Value().(uint64)
	if !ok {
		return 0, fmt.Errorf("logind's InhibitDelayMaxUSec is %v, want a number", value)
	}
	return time.Duration(min(usec, uint64(1<<62/time.Microsecond))) * time.Microsecond, nil
}

// preparing reports whether a shutdown is under way.
func (l *logind) preparing() (bool, error) {
	var value dbus.Variant
	if err := l.call(login1, login1Path, "org.freedesktop.DBus.Properties.Get", []any{&value}, login1Manager,
		"PreparingForShutdown"); err != nil {
		return false, err
	}
	preparing, ok := value.Value().(bool)
	if !ok {
		return false, fmt.Errorf("logind's PreparingForShutdown is %v, want true or false", value)
	}
	return preparing, nil
}

// reload has logind read its configuration again.
func (l *logind) reload() error {
	return l.call(systemd1, systemd1Path, systemd1Manager+".KillUnit", nil, logindUnit, "all", int32(syscall.SIGHUP))
}

// lock is what has logind wait, until it is released.
type lock struct{ file *os.File }

func (l *lock) release() {
	if l == nil || l.file == nil {
		return
	}
	if err := l.file.Close(); err != nil {
		klog.ErrorS(err, "Shutdown inhibitor lock not released")
	}
	l.file = nil
}

// inhibit takes a delay lock: logind starts no shutdown until it is released, or InhibitDelayMaxSec is over.
func (l *logind) inhibit() (*lock, error) {
	var fd dbus.UnixFD
	if err := l.call(login1, login1Path, login1Manager+".Inhibit", []any{&fd}, "shutdown", "edgecore",
		"Pods terminate gracefully", "delay"); err != nil {
		return nil, err
	}
	syscall.CloseOnExec(int(fd))
	return &lock{os.NewFile(uintptr(fd), "logind inhibitor")}, nil
}

// shutdowns tells that a shutdown begins, with true, and that it was called off, with false. The channel is closed with
// the connection.
func (l *logind) shutdowns() (<-chan bool, error) {
	match := []dbus.MatchOption{
		dbus.WithMatchInterface(login1Manager), dbus.WithMatchMember(prepare), dbus.WithMatchObjectPath(login1Path),
	}
	if err := l.conn.AddMatchSignalContext(l.ctx, match...); err != nil {
		return nil, fmt.Errorf("listen for %s: %w", prepare, err)
	}
	raw := make(chan *dbus.Signal, 8)
	l.conn.Signal(raw)
	out := make(chan bool, 8)
	go func() { // ends when the connection does, which closes raw
		defer close(out)
		for s := range raw {
			begins, ok := preparation(s)
			if !ok {
				continue
			}
			select {
			case out <- begins:
			case <-l.ctx.Done():
			}
		}
	}()
	return out, nil
}

// preparation reads a signal; ok is false for one that says nothing of a shutdown.
func preparation(s *dbus.Signal) (begins, ok bool) {
	if s.Name != login1Manager+"."+prepare || len(s.Body) != 1 {
		return false, false
	}
	begins, ok = s.Body[0].(bool)
	return begins, ok
}
