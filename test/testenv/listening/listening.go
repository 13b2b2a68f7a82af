// Package listening checks how parts report on their sockets.
package listening

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// Part makes a part whose socket is in a folder, and which calls report. It returns the part's Run and its socket.
type Part func(dir string, report func(socket string, err error)) (run func(context.Context) error, socket string)

// Reported checks that a part whose socket cannot be opened reports the error, and reports the socket without an error
// once it is open. A file is in the place of the folder until then.
func Reported(t *testing.T, part Part) {
	t.Helper()
	obstacle := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(obstacle, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	type report struct {
		socket string
		err    error
	}
	reports := make(chan report, 10)
	run, socket := part(obstacle, func(socket string, err error) { reports <- report{socket, err} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	if r := wait.Receive(t, "a report", reports); r.err == nil || r.socket != socket {
		t.Errorf("report %+v, want why the folder of %s cannot be made", r, socket)
	}
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	for r := wait.Receive(t, "a report", reports); r.err != nil; {
		r = wait.Receive(t, "a report without an error", reports)
	}
}
