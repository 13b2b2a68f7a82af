package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/configreload"
	"github.com/edgecore-io/edgecore/pkg/sdnotify"
)

// TestStartService: the service manager is told that the agent stops, unless it only starts again with another
// configuration: systemd would kill it a minute later.
func TestStartService(t *testing.T) {
	for name, c := range map[string]struct {
		why  error // of the end of the agent's context
		told bool
	}{
		"a module fails":       {nil, true},
		"goes back":            {fmt.Errorf("%w: no cloud", configreload.ErrGoBack), false},
		"tries the file again": {configreload.ErrTryAgain, false},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "notify")
			manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer manager.Close()
			n, err := sdnotify.FromEnv(func(name string) string {
				return map[string]string{"NOTIFY_SOCKET": socket}[name]
			}, 1)
			if err != nil {
				t.Fatal(err)
			}
			stopped, stop := context.WithCancel(t.Context())
			ctx, cancel := context.WithCancelCause(stopped)
			end := startService(stopped, ctx, n, func() error { return nil }, func() string { return "" })
			if c.why != nil {
				cancel(c.why)
			}
			end()
			const mark = "MARK=1" // comes after what end has said
			if err := n.Send(mark); err != nil {
				t.Fatal(err)
			}
			read := func() string {
				t.Helper()
				text := make([]byte, 100)
				got, err := manager.Read(text)
				if err != nil {
					t.Fatal(err)
				}
				return string(text[:got])
			}
			want := mark
			if c.told {
				want = sdnotify.Stopping
			}
			if got := read(); got != want {
				t.Errorf("the service manager hears %q, want %q", got, want)
			}
			stop()
			cancel(nil)
			read() // the mark, or the end of the goroutine
		})
	}
}

// TestInEnvironment: whatever the reason is, the environment of the next process can hold it.
func TestInEnvironment(t *testing.T) {
	for _, text := range []string{"plain", "a\x00b", strings.Repeat("é", 5000), errors.New("\xff").Error()} {
		got := inEnvironment(text)
		if strings.ContainsRune(got, 0) || len(got) > 4096 || strings.ToValidUTF8(got, "") != got {
			t.Errorf("%.10q becomes %.10q with %d bytes, want valid UTF-8 without NUL of at most 4096", text, got,
				len(got))
		}
	}
}
