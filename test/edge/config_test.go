package edge

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
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

// sensorsPassword is a file of mosquitto_passwd.
const sensorsPassword = "sensor:$7$101$MDEyMzQ1Njc4OWFi$" +
	"EO/lLlkeUgIiBaS8G8UK0ZMP1u508TA7Tl+AdJ1cEsml" +
	"bGyEPAERErpfq84j1kepISs0UzmcdL4ucgZ2uodxfQ==\n"

// TestPartsThatCannotStart: a part of the agent that cannot start, since a file or a group is missing, stops only
// itself: pods run, a condition says why, and it starts when what it needs is there. edgecore config validate names all
// of it before.
func TestPartsThatCannotStart(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	address, err := daemon.FreeAddress()
	env.Must(t, err)
	dir := t.TempDir()
	users, ca := filepath.Join(dir, "users"), filepath.Join(dir, "ca.crt")
	data, err := os.ReadFile(n.Config())
	env.Must(t, err)
	var config map[string]any
	env.Must(t, yaml.Unmarshal(data, &config))
	modules := config["modules"].(map[string]any)
	modules["eventBus"] = map[string]any{
		"enable": true, "mqttMode": 0, "mqttServerInternal": "tcp://" + address, "mqttPasswordFile": users,
	}
	kubelet := modules["edged"].(map[string]any)["tailoredKubeletConfig"].(map[string]any)
	kubelet["authentication"] = map[string]any{"x509": map[string]any{"clientCAFile": ca}}
	twin, _ := modules["deviceTwin"].(map[string]any)
	twin["dmiSockGroup"] = "no-such-group"
	data, err = yaml.Marshal(config)
	env.Must(t, err)
	n.Manifest("good", env.Pod("good", env.Forever))
	n.Running("good")
	before := n.RunningContainers()
	n.kill()
	env.Must(t, n.write(string(data)))
	out, err := n.Run(t.Context(), "config", "validate")
	for _, want := range []string{"does not work on this device", users, ca, "no-such-group"} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("config validate says %q, %v; want an error with %q", out, err, want)
		}
	}
	if out, err := n.Run(t.Context(), "config", "validate", "--offline"); err != nil {
		t.Errorf("config validate --offline = %v, want that it is valid: %s", err, out)
	}
	n.start()
	n.Manifest("new", env.Pod("new", env.Forever))
	n.Running("good", "new")
	n.untouched(before)
	for _, code := range []health.Code{health.ModuleFailing, health.ClientCABad, health.SocketFailing} {
		n.Condition(code, true)
	}
	n.Condition(health.ConfigurationBad, false)
	env.Must(t, os.WriteFile(users, []byte(sensorsPassword), 0o600))
	env.Must(t, os.WriteFile(ca, certs.EncodeCertPEM(wiretest.NewCA(t).Cert.Raw), 0o600))
	for _, code := range []health.Code{health.ModuleFailing, health.ClientCABad} {
		n.Condition(code, false)
	}
}
