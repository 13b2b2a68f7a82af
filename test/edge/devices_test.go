package edge

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/deviceplugin"
)

// rejected is a check that a pod was refused.
func rejected(name, reason, text string) func(map[string]*v1.Pod) error {
	return func(pods map[string]*v1.Pod) error {
		if p := pods[name]; p == nil || p.Status.Phase != v1.PodFailed || p.Status.Reason != reason || !strings.Contains(p.Status.Message, text) {
			return fmt.Errorf("%+v", p)
		}
		return nil
	}
}

// TestDevices: a device plugin that is killed, comes back and sees the agent and the machine end; its devices stay
// with those who have them.
func TestDevices(t *testing.T) {
	n := newNode(t, testenv.Options{}, agent.Options{})
	ask := func(k int) string {
		return fmt.Sprintf("    resources: {limits: {example.com/edge: %d}}\n", k)
	}
	script := "echo has $DEVICES $(cat /plugin/devices); trap 'exit 0' TERM; while true; do sleep 1 & wait $!; done"
	n.manifest("a.yaml", pod("a", script)+ask(1))
	n.until("no plugin has registered", rejected("a", "OutOfexample.com/edge", "requested: 1, used: 0, capacity: 0"))

	plugin := deviceplugin.Start(t, deviceplugin.Build(t), deviceplugin.Options{
		Resource: "example.com/edge", Root: filepath.Join(n.Dir, "root"), Dir: filepath.Join(t.TempDir(), "plugin"), Args: []string{"-pre-start"},
	}, "x", "y")
	n.until("it runs when the plugin is there", running("a"))
	n.manifest("b.yaml", pod("b", script)+ask(2))
	n.until("one device is left", rejected("b", "UnexpectedAdmissionError", "Allocate failed due to requested number of devices unavailable for example.com/edge. Requested: 2, Available: 1, which is unexpected"))
	n.manifest("b.yaml", pod("b", script)+ask(1))
	pods := n.until("both run", running("a", "b"))
	say := func(a, b string) {
		t.Helper()
		testenv.Poll(t, patience, func() error {
			if got := n.logged(pods["a"], "main") + n.logged(pods["b"], "main"); !strings.Contains(got, a) || !strings.Contains(got, b) {
				return fmt.Errorf("logs: %s", got)
			}
			return nil
		})
	}
	say("has x x y", "has y x y")
	before := n.lives()

	// The plugin dies, the agent dies, and both come back: nothing is touched.
	healths := func(want v1.ResourceHealthStatus) func(map[string]*v1.Pod) error {
		return func(pods map[string]*v1.Pod) error {
			st := pods["a"].Status.ContainerStatuses[0].AllocatedResourcesStatus
			if len(st) != 1 || st[0].Name != "example.com/edge" || len(st[0].Resources) != 1 || st[0].Resources[0].ResourceID != "x" || st[0].Resources[0].Health != want {
				return fmt.Errorf("%+v, want x %s", st, want)
			}
			return nil
		}
	}
	n.until("its health is known", healths(v1.ResourceHealthStatusHealthy))
	plugin.Devices(t, "x!", "y")
	n.until("it is ill", healths(v1.ResourceHealthStatusUnhealthy))
	plugin.Devices(t, "x", "y")
	if err := plugin.End(t.Context(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.until("nobody knows how it is", healths(v1.ResourceHealthStatusUnknown))
	if err := n.Kill9(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.until("they run without the plugin", running("a", "b"))
	plugin.Run(t)
	n.until("the plugin has registered again", healths(v1.ResourceHealthStatusHealthy))
	for id := range before {
		if n.lives()[id] == 0 {
			t.Error("a container was touched")
		}
	}

	// A container that starts again has its device again; a pod that ends gives it back.
	killMain(t, n)
	testenv.Poll(t, patience, func() error {
		if calls := plugin.Calls(t, "PreStartContainer"); len(calls) < 3 {
			return fmt.Errorf("%d starts", len(calls))
		}
		return nil
	})
	n.until("they run", running("a", "b"))
	allocated := len(plugin.Calls(t, "Allocate"))
	reboot(t, n)
	pods = n.until("they run after a reboot", running("a", "b"))
	say("has x", "has y")
	n.remove("a.yaml")
	n.until("a is gone", gone("a"))
	n.manifest("c.yaml", pod("c", script)+ask(1))
	n.until("its device is free", running("c"))
	if calls := plugin.Calls(t, "Allocate"); len(calls) != allocated+1 || calls[len(calls)-1].IDs[0] != "x" {
		t.Errorf("allocated %v", calls[allocated:])
	}
}
