package edge

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// TestContainerd2 is the main road on a runtime that tells of changes itself.
func TestContainerd2(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{Runtime: testenv.Options{Containerd2: true}})
	n.Manifest("a", env.Pod("a", env.Forever))
	n.Manifest("b", env.Pod("b", "sleep 1; exit 2", "  restartPolicy: Never"))
	n.Running("a")
	n.Until("the other fails", func(pods map[string]*v1.Pod) error {
		if p := pods["b"]; p == nil || p.Status.Phase != v1.PodFailed ||
			p.Status.ContainerStatuses[0].State.Terminated.ExitCode != 2 {
			return fmt.Errorf("pod b is %+v, want Failed with exit code 2", p)
		}
		return nil
	})
	killMain(t, n)
	n.Until("the restart", restarted("a", 137))
	before := n.RunningContainers()
	n.kill()
	n.start()
	n.Running("a")
	env.Must(t, n.Containerd.Restart(t.Context()))
	n.Manifest("c", env.Pod("c", env.Forever))
	n.Running("a", "c")
	n.untouched(before)
	for _, name := range []string{"a", "b", "c"} {
		n.Remove(name)
	}
	n.Gone("a", "b", "c")
	n.NothingLeft()
}
