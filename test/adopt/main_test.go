// Package adopt shows on a real containerd that a device of KubeEdge is taken over with its containers running on, and given
// back. The containers, the volumes and the store are made the way a kubelet of Kubernetes before 1.31 and KubeEdge make
// them; systemd is played by a script, which starts and stops real processes.
package adopt

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
)

// patience bounds every wait: these machines are shared.
const patience = 2 * time.Minute

var binary struct {
	path string
	err  error
}

// TestMain builds the agent once for all tests.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "edgecore-test-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary.path, binary.err = agent.Build(context.Background(), dir)
	if binary.err == nil && filepath.Base(binary.path) != "edgecore" {
		binary.err = fmt.Errorf("%s: want a program of the name edgecore", binary.path)
	}
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
