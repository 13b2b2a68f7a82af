package edge

import (
	"fmt"
	"maps"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
)

// TestContainerd2 is the main road on a runtime that tells of changes itself.
func TestContainerd2(t *testing.T) {
	n := newNode(t, testenv.Options{Containerd2: true}, agent.Options{})
	n.manifest("a.yaml", pod("a", forever))
	n.manifest("b.yaml", pod("b", "sleep 1; exit 2", "  restartPolicy: Never"))
	n.until("it runs", running("a"))
	n.until("the other fails", func(pods map[string]*v1.Pod) error {
		if p := pods["b"]; p == nil || p.Status.Phase != v1.PodFailed || p.Status.ContainerStatuses[0].State.Terminated.ExitCode != 2 {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	killMain(t, n)
	began := time.Now()
	n.until("it was restarted", func(pods map[string]*v1.Pod) error {
		c := pods["a"].Status.ContainerStatuses[0]
		if c.RestartCount != 1 || c.State.Running == nil {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("restarted after %v", took)
	}
	before := n.lives()
	if err := n.Kill9(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.until("adopted", running("a"))
	if err := n.ctrd.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.manifest("c.yaml", pod("c", forever))
	n.until("a new pod runs on the restarted runtime", running("a", "c"))
	after := n.lives()
	for id := range maps.Keys(before) {
		if after[id] != before[id] {
			t.Error("a container was touched")
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		n.remove(name + ".yaml")
	}
	n.until("all are gone", gone("a", "b", "c"))
	n.nothingLeft()
}
