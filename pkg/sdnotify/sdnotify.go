// Package sdnotify reports the process's state to the service manager, in systemd's words (sd_notify(3)): ready, alive,
// stopping, and a status line. Without a service manager it does nothing.
package sdnotify

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// The states of systemd.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	watchdog = "WATCHDOG=1"
)

// Notifier notifies the service manager. A nil one does nothing.
type Notifier struct {
	socket string
	// limit is how long the process may be silent before it is stopped; zero is forever.
	limit time.Duration
}

// FromEnv reads the notifier from the environment of the process with the given id; nil if there is none.
func FromEnv(getenv func(string) string, pid int) (*Notifier, error) {
	socket := getenv("NOTIFY_SOCKET")
	if socket == "" {
		return nil, nil
	}
	if socket[0] != '/' && socket[0] != '@' {
		return nil, fmt.Errorf("NOTIFY_SOCKET %q: want a path, or a name after @", socket)
	}
	n := &Notifier{socket: socket}
	text, of := getenv("WATCHDOG_USEC"), getenv("WATCHDOG_PID")
	if text == "" || of != "" && of != strconv.Itoa(pid) {
		return n, nil
	}
	usec, err := strconv.ParseInt(text, 10, 64)
	if err != nil || usec <= 0 || usec > int64(time.Duration(1<<63-1)/time.Microsecond) {
		return nil, fmt.Errorf("WATCHDOG_USEC %q: want a number of microseconds", text)
	}
	n.limit = time.Duration(usec) * time.Microsecond
	return n, nil
}

// TakeFromEnv returns the notifier of this process, and removes its variables from the environment, so that child
// processes do not notify in its place. It logs invalid variables and returns nil.
func TakeFromEnv() *Notifier {
	n, err := FromEnv(os.Getenv, os.Getpid())
	if err != nil {
		klog.ErrorS(err, "The service manager does not get the agent's state")
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if err := os.Unsetenv(name); err != nil {
			klog.V(2).InfoS("Environment not changed", "variable", name, "err", err)
		}
	}
	return n
}

// Ready reports that the process is ready; it handles errors like Start.
func (n *Notifier) Ready() { n.send(Ready) }

// send sends states and logs errors: the process continues without its service manager.
func (n *Notifier) send(lines ...string) {
	if err := n.Send(lines...); err != nil {
		klog.ErrorS(err, "Service manager not notified", "what", lines)
	}
}

// Start keeps the service manager informed in a goroutine until ctx ends, and says then that the process is stopping;
// see Keep for alive and status. wait returns when that is done. What cannot be sent is logged.
func (n *Notifier) Start(ctx context.Context, alive func() error, status func() string) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		n.Keep(ctx, alive, status)
		<-ctx.Done()
		n.send(Stopping)
	})
	return wg.Wait
}

// Watched reports whether the service manager stops a process that does not report that it is alive.
func (n *Notifier) Watched() bool { return n != nil && n.limit > 0 }

// Send sends states, or lines of other variables.
func (n *Notifier) Send(lines ...string) error {
	if n == nil {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// Status is the line that `systemctl status` shows.
func Status(text string) string { return "STATUS=" + strings.ReplaceAll(text, "\n", "; ") }

// Keep reports that the process is alive while alive returns nil, and its status when that changes, until ctx ends. It
// reports three times per limit of the service manager, so that one delay does no harm. When alive returns an error,
// reports stop, and the service manager restarts the process.
func (n *Notifier) Keep(ctx context.Context, alive func() error, status func() string) {
	if !n.Watched() {
		return
	}
	ticker := time.NewTicker(n.limit / 3)
	defer ticker.Stop()
	var said, dead string
	for {
		lines := []string{watchdog}
		if err := alive(); err != nil {
			lines = nil
			if err.Error() != dead {
				klog.ErrorS(err, "The process is stuck; the service manager restarts it", "within", n.limit)
			}
			dead = err.Error()
		}
		if text := status(); text != said {
			said, lines = text, append(lines, Status(text))
		}
		if len(lines) > 0 {
			if err := n.Send(lines...); err != nil {
				klog.ErrorS(err, "Service manager not notified that the process is alive")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
