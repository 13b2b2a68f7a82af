package edge

import (
	"os"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// TestConfigurationSpoilt: whatever happens to the configuration file, after a power cut the agent starts with the last
// good configuration, its pods come back, and it says what is wrong with the file.
func TestConfigurationSpoilt(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	n.Manifest("good", env.Pod("good", env.Forever))
	n.Running("good")
	data, err := os.ReadFile(n.Config())
	env.Must(t, err)
	original := string(data)
	kubelet := func(more string) string {
		return strings.Replace(original, "tailoredKubeletConfig:", "tailoredKubeletConfig:\n"+more, 1)
	}
	for name, c := range map[string]struct {
		spoil func() error
		why   string
		cut   bool // a power cut, which removes all containers
		late  bool // only the start finds it
	}{
		"a misspelt key": {func() error {
			return n.write(strings.Replace(original, "modules:", "modulse: {}\nmodules:", 1))
		}, "did you mean", true, false},
		"not YAML":  {func() error { return n.write(original + "\n  a: [") }, "not YAML", false, false},
		"removed":   {func() error { return os.Remove(n.Config()) }, "does not exist", false, false},
		"truncated": {func() error { return os.Truncate(n.Config(), 0) }, "is empty", false, false},
		"more memory than there is": {func() error {
			return n.write(kubelet("      systemReserved: {memory: 900Gi}"))
		}, "memory for pods", true, true},
	} {
		before := n.RunningContainers()
		env.Must(t, c.spoil())
		if c.cut {
			reboot(t, n)
		} else {
			n.kill()
			n.start()
		}
		n.Running("good")
		n.Condition(health.ConfigurationBad, true)
		if !c.cut {
			n.untouched(before)
		}
		commands := [][]string{{"status"}, {"config", "print", "--effective"}}
		if c.late {
			commands = commands[:1]
		}
		for _, command := range commands {
			out, _ := n.Run(t.Context(), command...) // status fails while there are conditions
			if !strings.Contains(out, c.why) || !strings.Contains(out, n.Config()) {
				t.Errorf("%s: edgecore %s says %q, want %s and %q", name, strings.Join(command, " "), out, n.Config(),
					c.why)
			}
		}
		env.Must(t, n.write(original))
		n.Condition(health.ConfigurationBad, false)
	}
}

// write replaces the configuration file.
func (n *node) write(text string) error {
	if err := os.WriteFile(n.Config()+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(n.Config()+".new", n.Config())
}
