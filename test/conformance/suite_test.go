package conformance

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

var built = programs.Flags()

var manifests = flag.String("manifests", filepath.Join("..", "..", "deploy", "cloudcore"),
	"the folder of cloudcore's manifests")

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// TestPods runs every row on each runtime. -run selects a runtime and rows by name: -run
// 'TestPods/containerd1/^(probe|sidecar)-' starts one node and runs the rows of probes and of sidecars.
func TestPods(t *testing.T) {
	f := start(t)
	for _, name := range []string{containerd1, containerd2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var bad failures
			t.Cleanup(func() { bad.tell(t) }) // the last that the test says
			n := f.startNode(t, name)
			t.Cleanup(n.NothingLeft) // when all rows have ended
			for _, r := range allRows() {
				t.Run(r.name, func(t *testing.T) {
					t.Parallel()
					defer func() { bad.note(t) }()
					n.run(t, r)
				})
			}
		})
	}
}

// failures are the rows that failed: among the logs of all they would be hard to find.
type failures struct {
	mu   sync.Mutex
	rows []string
}

func (f *failures) note(t *testing.T) {
	if t.Failed() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.rows = append(f.rows, t.Name())
	}
}

func (f *failures) tell(t *testing.T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.rows) > 0 {
		t.Logf("rows that failed: %s", strings.Join(f.rows, ", "))
	}
}
