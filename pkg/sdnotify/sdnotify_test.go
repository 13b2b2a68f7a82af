package sdnotify

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func env(vars map[string]string) func(string) string { return func(k string) string { return vars[k] } }

func TestFromEnv(t *testing.T) {
	for name, c := range map[string]struct {
		vars  map[string]string
		none  bool
		limit time.Duration
		bad   string
	}{
		"nobody":          {vars: nil, none: true},
		"only a watchdog": {vars: map[string]string{"WATCHDOG_USEC": "1000"}, none: true},
		"told":            {vars: map[string]string{"NOTIFY_SOCKET": "/run/x"}},
		"watched": {
			vars:  map[string]string{"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"},
			limit: 3 * time.Second,
		},
		"another process": {
			vars: map[string]string{"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"},
		},
		"no path": {vars: map[string]string{"NOTIFY_SOCKET": "x"}, bad: `NOTIFY_SOCKET "x"`},
		"no number": {
			vars: map[string]string{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1s"}, bad: `WATCHDOG_USEC "1s"`,
		},
		"too large": {
			vars: map[string]string{"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": strconv.FormatInt(1<<62, 10)},
			bad:  "WATCHDOG_USEC",
		},
	} {
		n, err := FromEnv(env(c.vars), 7)
		switch {
		case c.bad != "":
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%s: err = %v, want %q in it", name, err, c.bad)
			}
		case err != nil || (n == nil) != c.none:
			t.Errorf("%s: %+v, %v; want nil: %v", name, n, err, c.none)
		case n != nil && n.limit != c.limit:
			t.Errorf("%s: limit %v, want %v", name, n.limit, c.limit)
		}
	}
}

// manager is the socket of a service manager.
func manager(t *testing.T, name string) (*net.UnixConn, string) {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, name
}

// hears returns the next message.
func hears(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	buffer := make([]byte, 4096)
	if err := conn.SetReadDeadline(time.Now().Add(wait.Max())); err != nil {
		t.Fatal(err)
	}
	n, err := conn.Read(buffer)
	if err != nil {
		t.Fatalf("waiting for a message: %v", err)
	}
	return string(buffer[:n])
}

func TestKeep(t *testing.T) {
	for _, name := range []string{
		filepath.Join(t.TempDir(), "s"), "@edgecore-test-" + strconv.FormatInt(time.Now().UnixNano(), 36),
	} {
		conn, socket := manager(t, name)
		n, err := FromEnv(env(map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "30000"}), 1)
		if err != nil || !n.Watched() {
			t.Fatalf("FromEnv: %+v, %v; want a watched notifier", n, err)
		}
		if err := n.Send(Ready); err != nil {
			t.Fatal(err)
		}
		if got := hears(t, conn); got != "READY=1" {
			t.Fatalf("heard %q, want READY=1", got)
		}
		var stuck atomic.Bool
		var asked atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			n.Keep(ctx, func() error {
				if stuck.Load() {
					asked.Add(1)
					return errors.New("stuck")
				}
				return nil
			}, func() string { return "all\nwell" })
		}()
		if got := hears(t, conn); got != "WATCHDOG=1\nSTATUS=all; well" {
			t.Errorf("heard %q, want WATCHDOG=1 and the status", got)
		}
		for range 3 {
			if got := hears(t, conn); got != "WATCHDOG=1" {
				t.Errorf("heard %q, want WATCHDOG=1", got)
			}
		}
		stuck.Store(true)
		// What was said before it was found stuck comes before the first mark.
		for i, mark := range []string{"X_MARK=1", "X_MARK=2"} {
			found := asked.Load()
			wait.True(t, "the process to be found stuck", func() bool { return asked.Load() > found+1 })
			if err := n.Send(mark); err != nil {
				t.Fatal(err)
			}
			for got := ""; got != mark; {
				if got = hears(t, conn); got != mark && i > 0 {
					t.Errorf("a stuck process says %q, want nothing", got)
				}
			}
		}
		cancel()
		<-ended
	}
}

func TestNobody(t *testing.T) {
	var n *Notifier
	if err := n.Send(Ready); err != nil || n.Watched() {
		t.Errorf("Send = %v, Watched = %v; want no error, false", err, n.Watched())
	}
	n.Keep(t.Context(), func() error { t.Error("asked, want no question"); return nil }, func() string { return "" })
	gone := &Notifier{socket: filepath.Join(t.TempDir(), "none")}
	if err := gone.Send(Ready); err == nil {
		t.Error("Send to a missing socket = nil, want an error")
	}
}

// TestTakeFromEnv: programs that the process starts do not see who is notified, whether the variables are right or not.
func TestTakeFromEnv(t *testing.T) {
	for name, c := range map[string]struct {
		socket string
		none   bool
	}{
		"asked":  {"/run/x", false},
		"wrong":  {"x", true},
		"nobody": {"", true},
	} {
		t.Setenv("NOTIFY_SOCKET", c.socket)
		t.Setenv("WATCHDOG_USEC", "3000000")
		t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
		n := TakeFromEnv()
		if (n == nil) != c.none || n.Watched() == c.none {
			t.Errorf("%s: TakeFromEnv = %+v, want nil: %v", name, n, c.none)
		}
		for _, variable := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
			if value, ok := os.LookupEnv(variable); ok {
				t.Errorf("%s: %s = %q, want it removed", name, variable, value)
			}
		}
	}
}

// TestStart: the service manager hears that the process is ready, that it lives, and at the end that it stops. A socket
// that has gone is no reason to stop.
func TestStart(t *testing.T) {
	conn, socket := manager(t, filepath.Join(t.TempDir(), "s"))
	n := &Notifier{socket: socket, limit: time.Hour}
	n.Ready()
	ctx, cancel := context.WithCancel(t.Context())
	wait := n.Start(ctx, func() error { return nil }, func() string { return "Running" })
	for _, want := range []string{"READY=1", "WATCHDOG=1\nSTATUS=Running"} {
		if got := hears(t, conn); got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	}
	cancel()
	wait()
	if got := hears(t, conn); got != "STOPPING=1" {
		t.Errorf("heard %q, want STOPPING=1", got)
	}
	var nobody *Notifier
	for _, n := range []*Notifier{nobody, {socket: filepath.Join(t.TempDir(), "none"), limit: time.Hour}} {
		ctx, cancel := context.WithCancel(t.Context())
		n.Ready()
		wait := n.Start(ctx, func() error { return nil }, func() string { return "" })
		cancel()
		wait()
	}
}
