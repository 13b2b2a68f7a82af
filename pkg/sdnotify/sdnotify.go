// Package sdnotify tells the service manager how the process is, in systemd's words (sd_notify(3)): that it is ready,
// that it lives, that it ends, and in a line of text what is wrong. Where nobody wants to know it does nothing.
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

// The states that systemd knows.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	watchdog = "WATCHDOG=1"
)

// Notifier tells the service manager. A nil one tells nobody.
type Notifier struct {
	socket string
	// limit is how long the process may say nothing before it is ended; zero is for ever.
	limit time.Duration
}

// FromEnv reads from the environment of a process of the given id who wants to know; nil where nobody does.
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

// TakeFromEnv returns the notifier of this process, and removes its variables from the environment, so that programs
// that this process starts do not notify in its place. Variables that are wrong are logged; nobody is notified then.
func TakeFromEnv() *Notifier {
	n, err := FromEnv(os.Getenv, os.Getpid())
	if err != nil {
		klog.ErrorS(err, "Service manager is not told how the agent is")
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if err := os.Unsetenv(name); err != nil {
			klog.V(2).InfoS("Environment not changed", "variable", name, "err", err)
		}
	}
	return n
}

// Ready says that the process is ready; see Start for errors.
func (n *Notifier) Ready() { n.tell(Ready) }

// tell sends states, and logs what cannot be sent: the process goes on without its service manager.
func (n *Notifier) tell(lines ...string) {
	if err := n.Send(lines...); err != nil {
		klog.ErrorS(err, "Service manager not told", "what", lines)
	}
}

// Start keeps the service manager informed in a goroutine until ctx ends, and says then that the process is stopping;
// see Keep for alive and status. wait returns when that is done. What cannot be sent is logged.
func (n *Notifier) Start(ctx context.Context, alive func() error, status func() string) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		n.Keep(ctx, alive, status)
		<-ctx.Done()
		n.tell(Stopping)
	})
	return wg.Wait
}

// Watched reports whether the service manager ends a process that does not say that it lives.
func (n *Notifier) Watched() bool { return n != nil && n.limit > 0 }

// Send tells states, or lines of other variables.
func (n *Notifier) Send(lines ...string) error {
	if n == nil {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}

// Status is the line that `systemctl status` shows.
func Status(text string) string { return "STATUS=" + strings.ReplaceAll(text, "\n", "; ") }

// Keep says that the process lives, as long as alive says so, and what its status is when that changes; until ctx ends.
// It does so three times within the limit of the service manager, so that one late time ends nothing. When alive
// returns an error nothing is said any more, and the service manager ends and starts the process.
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
				klog.ErrorS(err, "Service manager not told that the process lives")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
