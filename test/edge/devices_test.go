package edge

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/deviceplugin"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// rejected is a check that a pod was refused.
func rejected(name, reason, text string) env.Check {
	return func(pods map[string]*v1.Pod) error {
		p := pods[name]
		if p == nil {
			return fmt.Errorf("there is no pod %s", name)
		}
		if p.Status.Phase != v1.PodFailed || p.Status.Reason != reason || !strings.Contains(p.Status.Message, text) {
			return fmt.Errorf("pod %s is %+v, want Failed with %s and %q", name, p.Status, reason, text)
		}
		return nil
	}
}

// TestDevices: a device plugin that is killed, comes back and sees the agent and the machine end; its devices stay
// with those who have them.
func TestDevices(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	ask := func(k int) string {
		return fmt.Sprintf("    resources: {limits: {example.com/edge: %d}}\n", k)
	}
	script := "echo has $DEVICES $(cat /plugin/devices); trap 'exit 0' TERM; while true; do sleep 1 & wait $!; done"
	n.Manifest("a", env.Pod("a", script)+ask(1))
	n.Until("no plugin has registered", rejected("a", "OutOfexample.com/edge", "requested: 1, used: 0, capacity: 0"))

	plugin := deviceplugin.Start(t, deviceplugin.Build(t), deviceplugin.Options{
		Resource: "example.com/edge",
		Root:     filepath.Join(n.Dir, "root"),
		Dir:      filepath.Join(t.TempDir(), "plugin"),
		Args:     []string{"-pre-start"},
	}, "x", "y")
	n.Running("a")
	n.Manifest("b", env.Pod("b", script)+ask(2))
	n.Until("one device is left", rejected("b", "UnexpectedAdmissionError", "Allocate failed due to "+
		"requested number of devices unavailable for example.com/edge. Requested: 2, Available: 1, which is "+
		"unexpected"))
	n.Manifest("b", env.Pod("b", script)+ask(1))
	pods := n.Running("a", "b")
	n.saysUntil(pods["a"], "has x x y")
	n.saysUntil(pods["b"], "has y x y")
	before := n.RunningContainers()

	// The plugin dies, the agent dies, and both come back: nothing is touched.
	healths := func(want v1.ResourceHealthStatus) func(map[string]*v1.Pod) error {
		return func(pods map[string]*v1.Pod) error {
			st := pods["a"].Status.ContainerStatuses[0].AllocatedResourcesStatus
			if len(st) != 1 || st[0].Name != "example.com/edge" || len(st[0].Resources) != 1 ||
				st[0].Resources[0].ResourceID != "x" || st[0].Resources[0].Health != want {
				return fmt.Errorf("%+v, want x %s", st, want)
			}
			return nil
		}
	}
	n.Until("its health is known", healths(v1.ResourceHealthStatusHealthy))
	plugin.Devices(t, "x!", "y")
	n.Until("it is ill", healths(v1.ResourceHealthStatusUnhealthy))
	plugin.Devices(t, "x", "y")
	env.Must(t, plugin.End(t.Context(), syscall.SIGKILL))
	n.Until("nobody knows how it is", healths(v1.ResourceHealthStatusUnknown))
	n.kill()
	n.start()
	n.Running("a", "b")
	plugin.Run(t)
	n.Until("the plugin has registered again", healths(v1.ResourceHealthStatusHealthy))
	n.untouched(before)

	// A container that starts again has its device again; a pod that ends gives it back.
	killMain(t, n)
	wait.Until(t, "a third PreStartContainer", func() error {
		if calls := plugin.Calls(t, "PreStartContainer"); len(calls) < 3 {
			return fmt.Errorf("%d calls", len(calls))
		}
		return nil
	})
	n.Running("a", "b")
	allocated := len(plugin.Calls(t, "Allocate"))
	reboot(t, n)
	pods = n.Running("a", "b")
	n.saysUntil(pods["a"], "has x")
	n.saysUntil(pods["b"], "has y")
	n.Remove("a")
	n.Gone("a")
	n.Manifest("c", env.Pod("c", script)+ask(1))
	n.Running("c")
	if calls := plugin.Calls(t, "Allocate"); len(calls) != allocated+1 || calls[len(calls)-1].IDs[0] != "x" {
		t.Errorf("Allocate was called with %v since the reboot, want x once", calls[allocated:])
	}
}

// TestPluginsRegistry: a device plugin that puts a socket into plugins_registry is registered, by this agent and by the
// next one, which finds the socket when it starts.
func TestPluginsRegistry(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	registry := filepath.Join(n.Dir, "root", "plugins_registry")
	wait.True(t, "the agent's folder of plugins", func() bool {
		_, err := os.Stat(registry)
		return err == nil
	})
	deviceplugin.Start(t, deviceplugin.Build(t), deviceplugin.Options{
		Resource: "example.com/edge",
		Root:     filepath.Join(n.Dir, "root"),
		Dir:      filepath.Join(t.TempDir(), "plugin"),
		Args:     []string{"-registry", registry},
	}, "x", "y")
	script := "echo has $DEVICES; " + env.Forever
	one := "    resources: {limits: {example.com/edge: 1}}\n"
	n.Manifest("a", env.Pod("a", script)+one)
	pods := n.Running("a")
	n.saysUntil(pods["a"], "has x")
	before := n.RunningContainers()

	n.kill()
	n.start()
	n.Manifest("b", env.Pod("b", script)+one)
	pods = n.Running("a", "b")
	n.saysUntil(pods["b"], "has y")
	n.untouched(before)
}
