package edge

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/edged/agentconfig"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/configfile"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
)

var (
	configs     = flag.Int("configs", 12, "how many configurations TestValidateAgrees makes; the long form is 1000")
	configsSeed = flag.Uint64("seed", 1, "the seed of TestValidateAgrees")
)

// kept are parts of the keys that TestValidateAgrees does not change: folders, sockets, ports and cgroups of this
// machine, and the port by which it sees that the agent has started.
var kept = []string{
	"port", "address", "directory", "datasource", "dir", "path", "cgroup", "endpoint", "server", "socket", "kind",
	"apiversion", "edgehub", "edgestream", "healthz", "edged.enable",
}

// TestValidateAgrees: on random configurations, config validate and the start agree. The agent starts with a
// configuration that is valid, with no complaint about it. With one that is not it does not start, or a part of it says
// why it does not run.
func TestValidateAgrees(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	env.Must(t, n.Stop(t.Context()))
	data, err := os.ReadFile(n.Config())
	env.Must(t, err)
	address, err := daemon.FreeAddress()
	env.Must(t, err)
	dir := t.TempDir()
	present := filepath.Join(dir, "present")
	env.Must(t, os.WriteFile(present, []byte(sensorsPassword), 0o600))
	values := []any{
		-1.0, 0.0, 1.0, 17.0, 65536.0, float64(1 << 40), true, false, nil,
		"", "x", "0s", "90s", "-5m", "64Mi", "900Gi", "5%", "::", "10.0.0.7", filepath.Join(dir, "missing"), present,
		[]any{}, []any{"x"},
		map[string]any{}, map[string]any{"memory": "900Gi"}, map[string]any{"memory": "16Mi"},
	}
	defaults := changeable(t)
	keys := slices.Sorted(maps.Keys(defaults))
	random := rand.New(rand.NewPCG(*configsSeed, 0))
	var valid, invalid, offline int
	for i := range *configs {
		var config map[string]any
		env.Must(t, yaml.Unmarshal(data, &config))
		set(config, "modules.eventBus", map[string]any{
			"enable": true, "mqttMode": 0, "mqttServerInternal": "tcp://" + address,
		})
		var changes []string
		for range 1 + random.IntN(3) {
			key := keys[random.IntN(len(keys))]
			value := values[random.IntN(len(values))]
			for tries := 0; tries < 50 && random.IntN(10) > 0 && !alike(value, defaults[key]); tries++ {
				value = values[random.IntN(len(values))]
			}
			set(config, key, value)
			changes = append(changes, fmt.Sprintf("%s: %v", key, value))
		}
		text, err := yaml.Marshal(config)
		env.Must(t, err)
		env.Must(t, n.write(string(text)))
		for _, path := range configfile.CopiesOf(n.Config(), n.Store()).Paths() {
			_ = os.Remove(path) // or the agent starts with the last one
		}
		cfg, _, problems := v1alpha2.Parse(text)
		if problems == nil {
			problems = agentconfig.CheckDevice(cfg)
			offline++
		}
		env.Must(t, os.Truncate(n.Log(), 0))
		started := n.Start(t.Context()) == nil
		log, err := os.ReadFile(n.Log())
		env.Must(t, err)
		complains := complaint(t, n, started)
		switch {
		case problems == nil && (!started || complains != ""):
			t.Errorf("configuration %d (%q) is valid; the agent started: %v, and says %s\n%s", i, changes, started,
				complains, tailOf(log))
		case problems != nil && started && complains == "":
			t.Errorf("configuration %d (%q) is not valid (%v), and the agent starts without a complaint", i, changes,
				problems)
		}
		if problems == nil {
			valid++
		} else {
			invalid++
		}
		if started {
			env.Must(t, n.Kill9(t.Context()))
		}
	}
	t.Logf("%d configurations were valid, %d were not, %d of these only on this device", valid, invalid, offline-valid)
	if *configs >= 10 && (valid == 0 || invalid == 0) {
		t.Error("all of them were the same, so this shows nothing")
	}
	env.Must(t, n.write(string(data)))
	env.Must(t, n.Start(t.Context()))
}

// complaint returns what the agent says of its configuration.
func complaint(t *testing.T, n *node, started bool) string {
	t.Helper()
	if !started {
		return "that it does not start"
	}
	log, err := os.ReadFile(n.Log())
	env.Must(t, err)
	for _, code := range []health.Code{
		health.ConfigurationBad, health.ModuleFailing, health.ClientCABad, health.SocketFailing,
	} {
		if strings.Contains(string(log), fmt.Sprintf("condition=%q", code)) {
			return string(code)
		}
	}
	return ""
}

func tailOf(log []byte) string {
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// alike reports whether two values have the same form: a default without a value is like everything.
func alike(a, b any) bool {
	text, ok := a.(string)
	other, is := b.(string)
	if ok && is {
		return isDuration(text) == isDuration(other)
	}
	return b == nil || reflect.TypeOf(a) == reflect.TypeOf(b)
}

func isDuration(text string) bool {
	_, err := time.ParseDuration(text)
	return err == nil
}

// changeable returns the keys of a configuration that may be changed, with their defaults.
func changeable(t *testing.T) map[string]any {
	t.Helper()
	keys := map[string]any{}
	text, err := json.Marshal(v1alpha2.Default())
	env.Must(t, err)
	var tree map[string]any
	env.Must(t, json.Unmarshal(text, &tree))
	var walk func(path string, value any)
	walk = func(path string, value any) {
		lower := strings.ToLower(path)
		if slices.ContainsFunc(kept, func(k string) bool { return strings.Contains(lower, k) }) {
			return
		}
		if m, ok := value.(map[string]any); ok && len(m) > 0 {
			for key, v := range m {
				walk(strings.TrimPrefix(path+"."+key, "."), v)
			}
			return
		}
		keys[path] = value
	}
	walk("", tree)
	const kubelet = "modules.edged.tailoredKubeletConfig."
	keys[kubelet+"systemReserved"], keys[kubelet+"kubeReserved"] = map[string]any{}, map[string]any{}
	keys[kubelet+"authentication.x509.clientCAFile"], keys["modules.eventBus.mqttPasswordFile"] = "", ""
	keys["modules.deviceTwin.dmiSockGroup"], keys["modules.edged.noSuchKey"] = "", nil
	return keys
}

// set sets a key of a tree.
func set(tree map[string]any, path string, value any) {
	keys := strings.Split(path, ".")
	for _, key := range keys[:len(keys)-1] {
		next, ok := tree[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			tree[key] = next
		}
		tree = next
	}
	tree[keys[len(keys)-1]] = value
}
