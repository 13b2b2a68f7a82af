// Package wrongconfig is a list of changes of a device's configuration file that are wrong, each with what the device
// says of it. Whatever it is, the agent runs after the next start, its pods run, it is connected, and its Node says
// why. Tests make the changes on this machine and on booted ones.
package wrongconfig

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/health"
)

// Place is what changes need to know of a device.
type Place struct {
	// Empty is a folder of the device with nothing in it. Taken is an address of its loopback on which another program
	// listens, and Socket a Unix socket of another program.
	Empty, Taken, Socket string
}

// Row is a wrong change of a configuration.
type Row struct {
	Name string
	// Text returns the wrong content of the file from its good one; nil: the content stays.
	Text func(good string, p Place) (string, error)
	// Script is run by a shell after that, with the file's path as CONFIG.
	Script string
	// Code is the condition that the Node has then, and Says is part of its message. "" is that nothing is wrong.
	Code health.Code
	Says string
	// Trial: the device does not reach its cloud or its container runtime with it, and the condition comes when it has
	// tried for a while.
	Trial bool
	// Defaults: the agent runs with defaults for a while: folders and ports of the machine, which tests own only where
	// they own the machine.
	Defaults bool
}

// Rows returns all changes. The seed makes what is random in them.
func Rows(seed uint64) []Row {
	const bad = health.ConfigurationBad
	return []Row{
		// Not a file that can be read.
		{Name: "removed", Script: `rm "$CONFIG"`, Code: bad, Says: "does not exist"},
		{Name: "a folder", Script: `rm "$CONFIG"; mkdir "$CONFIG"`, Code: bad, Says: "is a directory"},
		{
			Name: "a loop of links", Script: `rm "$CONFIG"; ln -s "$CONFIG" "$CONFIG"`, Code: bad,
			Says: "too many levels",
		},
		{Name: "a link to nowhere", Script: `ln -sfn /none/edgecore.yaml "$CONFIG"`, Code: bad, Says: "does not exist"},
		{Name: "a pipe", Script: `rm "$CONFIG"; mkfifo "$CONFIG"`, Code: bad, Says: "is not a regular file"},
		{Name: "an endless file", Script: `ln -sfn /dev/zero "$CONFIG"`, Code: bad, Says: "is not a regular file"},
		{Name: "no permission", Script: `chmod 0 "$CONFIG"`}, // root reads it
		// Not YAML, or not this kind of file.
		{Name: "empty", Text: content(""), Code: bad, Says: "is empty"},
		{Name: "comments only", Text: content("# modules:\n"), Code: bad, Says: "is empty"},
		{Name: "zeroes", Text: content(strings.Repeat("\x00", 4096)), Code: bad, Says: "not YAML"},
		{Name: "garbage", Text: content(garbage(seed)), Code: bad, Says: "not YAML"},
		{Name: "cut off in a key", Text: cutInKey, Code: bad, Says: ""},
		{Name: "cut off between keys", Text: cutBetween, Code: bad, Says: "", Defaults: true, Trial: true},
		{Name: "unclosed bracket", Text: appended("\n  a: ["), Code: bad, Says: "not YAML"},
		{Name: "tabs", Text: appended("\tb: 1\n"), Code: bad, Says: "not YAML"},
		{Name: "two documents", Text: appended("---\nkind: EdgeCore\n"), Code: bad, Says: ""},
		{Name: "a key twice", Text: appended("kind: EdgeCore\n"), Code: bad, Says: "kind"},
		{Name: "huge", Text: appended(strings.Repeat("# note\n", 1<<20)), Code: bad, Says: "KiB"},
		{Name: "nested deeply", Text: appended("x: " + strings.Repeat("[", 100_000)), Code: bad, Says: "not YAML"},
		{Name: "aliases that multiply", Text: content(aliases()), Code: bad, Says: ""},
		{
			Name: "aliases of a long text", Code: bad, Says: "aliases (*name) stand for too much",
			Text: content("x: &x " + strings.Repeat("x", 64<<10) + "\ny: [" + strings.Repeat("*x,", 300_000) + "]\n"),
		},
		{Name: "a list", Text: content("- kind: EdgeCore\n"), Code: bad, Says: ""},
		{Name: "another kind", Text: set("kind", "CloudCore"), Code: bad, Says: "this file is for cloudcore"},
		{Name: "another version", Text: set("apiVersion", "edgecore.config.kubeedge.io/v1alpha1"), Code: bad,
			Says: "apiVersion"},
		// Keys and values.
		{Name: "a misspelt key", Text: set("modulse", map[string]any{}), Code: bad, Says: "did you mean"},
		{Name: "a misspelt key of a module", Text: set("modules.edgeHub.hartbeat", "soon"), Code: bad,
			Says: "did you mean"},
		{Name: "text for a number", Text: set("modules.edgeHub.heartbeat", "soon"), Code: bad, Says: "heartbeat"},
		{Name: "a list for a map", Text: set("modules", []any{}), Code: bad, Says: "modules"},
		{Name: "text for a switch", Text: set("modules.edged.enable", "perhaps"), Code: bad, Says: "enable"},
		{Name: "a negative number", Text: set("modules.edgeHub.heartbeat", -5), Code: bad, Says: "heartbeat"},
		{Name: "a port that is none", Text: set("modules.edgeHub.websocket.server", "127.0.0.1:99999"), Code: bad,
			Says: "websocket.server"},
		{Name: "an address of many", Text: set("modules.edged.nodeIP", "224.0.0.1")}, // it is ignored
		{Name: "a threshold that is none", Text: kubelet("evictionHard", map[string]any{"memory.available": "some"}),
			Code: bad, Says: "evictionHard"},
		{Name: "more memory than there is", Text: kubelet("systemReserved", map[string]any{"memory": "900Gi"}),
			Code: bad, Says: "memory for pods"},
		{Name: "zero values", Text: zeroes}, // as kubeadm writes them: they are the defaults
		// A part that cannot work.
		{Name: "a store that cannot be", Text: set("database.dataSource", "/proc/edgecore/edgecore.db"), Code: bad,
			Says: "dataSource"},
		{Name: "a folder of pods that cannot be", Text: set("modules.edged.rootDirectory", "/proc/edgecore"),
			Code: bad, Says: "rootDirectory"},
		{Name: "no client CA", Code: health.ClientCABad, Says: "/none/ca.crt",
			Text: kubelet("authentication", map[string]any{"x509": map[string]any{"clientCAFile": "/none/ca.crt"}})},
		{Name: "no such group", Text: set("modules.deviceTwin.dmiSockGroup", "no-such-group"),
			Code: health.SocketFailing, Says: "no-such-group"},
		{Name: "no password file", Code: health.ModuleFailing, Says: "/none/users",
			Text: broker(map[string]any{"mqttPasswordFile": "/none/users"})},
		{Name: "a broker port that is taken", Text: broker(nil), Code: health.SocketFailing,
			Says: "address already in use"},
		{Name: "a read-only port that is taken", Text: taken, Code: health.ReadOnlyServerStopped,
			Says: "address already in use", Defaults: true},
		// A cloud that is not there.
		{Name: "the address of another cloud", Text: set("modules.edgeHub.websocket.server", "127.0.0.1:1"),
			Code: bad, Says: "was not reached", Trial: true},
		{Name: "a cloud without an address", Text: set("modules.edgeHub.websocket.server", "cloud.invalid:10000"),
			Code: bad, Says: "was not reached", Trial: true},
		{Name: "no CA of the cloud", Text: set("modules.edgeHub.tlsCaFile", "/none/ca.crt"), Code: bad,
			Says: "was not reached", Trial: true},
		// A container runtime that is not there.
		{Name: "a runtime that is not there", Text: kubelet("containerRuntimeEndpoint", "unix:///none/cri.sock"),
			Code: bad, Says: "containerRuntimeEndpoint: there is no runtime at /none/cri.sock", Trial: true},
		{Name: "the socket of another program", Text: socket, Code: bad, Says: "containerRuntimeEndpoint: the runtime",
			Trial: true},
		{Name: "an image service that is not there", Text: kubelet("imageServiceEndpoint", "unix:///none/images.sock"),
			Code: bad, Says: "imageServiceEndpoint: there is no image service at /none/images.sock", Trial: true},
		{Name: "another cgroup driver", Text: driver, Code: bad, Says: "cgroupDriver is", Trial: true},
		{Name: "another name of the node", Text: set("modules.edged.hostnameOverride", "another"), Code: bad,
			Says: "is that of node"},
	}
}

func content(text string) func(string, Place) (string, error) {
	return func(string, Place) (string, error) { return text, nil }
}

func appended(text string) func(string, Place) (string, error) {
	return func(good string, _ Place) (string, error) { return good + text, nil }
}

// garbage is bytes that are not text.
func garbage(seed uint64) string {
	random := rand.New(rand.NewPCG(seed, 0))
	data := make([]byte, 3000)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	data[0] = 0x7f // whatever the rest is
	return string(data)
}

// cutInKey leaves the half of the file that ends within a key.
func cutInKey(good string, _ Place) (string, error) {
	at := strings.Index(good, "edgeHub")
	if at < 0 {
		return "", fmt.Errorf("the configuration has no edgeHub: %s", good)
	}
	return good[:at+4], nil
}

// cutBetween leaves the beginning of a file that has the time of its trial first. It is valid by itself.
func cutBetween(good string, _ Place) (string, error) {
	before, _, found := strings.Cut(good, "modules:")
	var tree struct {
		Modules struct {
			EdgeHub struct {
				ConfigTrialSeconds int `json:"configTrialSeconds"`
			} `json:"edgeHub"`
		} `json:"modules"`
	}
	if err := yaml.Unmarshal([]byte(good), &tree); err != nil || !found {
		return "", fmt.Errorf("the configuration has no modules, or is not YAML (%w): %s", err, good)
	}
	return fmt.Sprintf("%smodules:\n  edgeHub:\n    configTrialSeconds: %d\n", before,
		tree.Modules.EdgeHub.ConfigTrialSeconds), nil
}

// aliases is a small file of 10^9 values.
func aliases() string {
	var text strings.Builder
	text.WriteString("a0: &a0 x\n")
	for i := 1; i < 10; i++ {
		before := strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10)
		fmt.Fprintf(&text, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(before, ","))
	}
	return text.String()
}

// set sets a key, whose parts dots separate.
func set(path string, value any) func(string, Place) (string, error) {
	return func(good string, _ Place) (string, error) { return change(good, path, value) }
}

func kubelet(key string, value any) func(string, Place) (string, error) {
	return set("modules.edged.tailoredKubeletConfig."+key, value)
}

// broker switches an MQTT broker on, at an address that is taken.
func broker(more map[string]any) func(string, Place) (string, error) {
	return func(good string, p Place) (string, error) {
		keys := map[string]any{"enable": true, "mqttMode": 0, "mqttServerInternal": "tcp://" + p.Taken}
		for k, v := range more {
			keys[k] = v
		}
		return change(good, "modules.eventBus", keys)
	}
}

// socket names what is not a container runtime.
func socket(good string, p Place) (string, error) {
	return change(good, "modules.edged.tailoredKubeletConfig.containerRuntimeEndpoint", "unix://"+p.Socket)
}

// driver names the cgroup driver that the container runtime does not have.
func driver(good string, _ Place) (string, error) {
	other := "systemd"
	if strings.Contains(good, "cgroupDriver: systemd") || strings.Contains(good, `"cgroupDriver": "systemd"`) {
		other = "cgroupfs"
	}
	return change(good, "modules.edged.tailoredKubeletConfig.cgroupDriver", other)
}

func taken(good string, p Place) (string, error) {
	_, port, _ := strings.Cut(p.Taken, ":")
	return change(good, "modules.edged.tailoredKubeletConfig.readOnlyPort", yamlNumber(port))
}

// yamlNumber returns a number as YAML has it.
func yamlNumber(text string) (number any) {
	if err := yaml.Unmarshal([]byte(text), &number); err != nil {
		return text
	}
	return number
}

func zeroes(good string, _ Place) (string, error) {
	for _, key := range []string{
		"cpuManagerReconcilePeriod", "evictionPressureTransitionPeriod", "fileCheckFrequency", "imageMaximumGCAge",
		"imageMinimumGCAge", "runtimeRequestTimeout", "streamingConnectionIdleTimeout", "volumeStatsAggPeriod",
	} {
		var err error
		if good, err = change(good, "modules.edged.tailoredKubeletConfig."+key, "0s"); err != nil {
			return "", err
		}
	}
	return good, nil
}

// change sets a key of a configuration.
func change(good, path string, value any) (string, error) {
	tree := map[string]any{}
	if err := yaml.Unmarshal([]byte(good), &tree); err != nil {
		return "", err
	}
	at, keys := tree, strings.Split(path, ".")
	for _, key := range keys[:len(keys)-1] {
		next, ok := at[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[key] = next
		}
		at = next
	}
	at[keys[len(keys)-1]] = value
	text, err := yaml.Marshal(tree)
	return string(text), err
}
