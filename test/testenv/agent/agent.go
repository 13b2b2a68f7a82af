// Package agent runs an edgecore of its own beside a private containerd: its own folders, port, cgroup root
// and node name. The tests, the benchmarks and make run share it.
package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// Options say which agent to run.
type Options struct {
	// Binary is the edgecore to run; see Build.
	Binary string
	// Dir is where everything of the agent lies: configuration, manifests, store, pods, logs.
	Dir string
	// NodeName is the name of the node; empty is "node1".
	NodeName string
	// Endpoint is the runtime's socket, CgroupRoot the cgroup of the pods.
	Endpoint, CgroupRoot string
	// CgroupDriver is the runtime's; empty is cgroupfs.
	CgroupDriver string
	// Port is the read-only port, KubeletPort that of the kubelet's API, which is opened where there is a link; 0 finds
	// a free one.
	Port, KubeletPort int
	// Kubelet are more keys of tailoredKubeletConfig.
	Kubelet map[string]any
	// Edged are more keys of modules.edged.
	Edged map[string]any
	// EdgeHub are keys of modules.edgeHub; nil is no link.
	EdgeHub map[string]any
	// EventBus are keys of modules.eventBus; nil is no MQTT.
	EventBus map[string]any
	// MetaServer are keys of modules.metaManager.metaServer; nil is no endpoint of the Kubernetes API.
	MetaServer map[string]any
	// EdgeStream are keys of modules.edgeStream; nil is none.
	EdgeStream map[string]any
	// Env is the environment; nil is that of this process.
	Env []string
	// Started, which may be nil, is called with each process as soon as it runs.
	Started func(daemon.Identity) error
	// Dial connects to the agent's ports; nil dials from this machine's own network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Agent is an edgecore with its files. Its methods must not be called at the same time.
type Agent struct {
	Options
	daemon.Program
}

// BinaryEnv names an edgecore that was built before: many test binaries need not build it each, and there are machines
// without Go.
const BinaryEnv = "EDGECORE_TEST_BINARY"

// Tags are the build tags of edgecore, which the Makefile has too.
const Tags = "osusergo,netgo,sqlite_omit_load_extension,grpcnotrace"

// Build builds edgecore into a folder and returns its path; BinaryEnv takes its place.
func Build(ctx context.Context, dir string) (string, error) {
	if built := os.Getenv(BinaryEnv); built != "" {
		return built, nil
	}
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	out := filepath.Join(dir, "edgecore")
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", Tags, "-o", out, "./cmd/edgecore")
	cmd.Dir = filepath.Dir(strings.TrimSpace(string(mod)))
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build edgecore: %w\n%s", err, text)
	}
	return out, nil
}

// New makes the files of an agent.
func New(opts Options) (*Agent, error) {
	if opts.NodeName == "" {
		opts.NodeName = "node1"
	}
	for _, port := range []*int{&opts.Port, &opts.KubeletPort} {
		if *port != 0 {
			continue
		}
		var err error
		if *port, err = daemon.FreePort(); err != nil {
			return nil, err
		}
	}
	a := &Agent{Options: opts}
	for _, dir := range []string{a.Manifests(), a.PodLogs()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	return a, a.writeConfig()
}

func (a *Agent) writeConfig() error {
	kubelet := map[string]any{
		"staticPodPath": a.Manifests(), "podLogsDir": a.PodLogs(), "containerRuntimeEndpoint": a.Endpoint,
		"cgroupRoot": a.CgroupRoot, "cgroupDriver": cmp.Or(a.CgroupDriver, "cgroupfs"), "address": "127.0.0.1",
		"readOnlyPort": a.Port, "port": a.KubeletPort,
		// The disk is the machine's, and may well be nearly full: nobody loses an image or a pod for that.
		"evictionHard": map[string]any{
			"memory.available": "50Mi", "nodefs.available": "200Mi", "imagefs.available": "200Mi",
		},
		"imageGCHighThresholdPercent": 99, "imageGCLowThresholdPercent": 98,
	}
	for k, v := range a.Kubelet {
		kubelet[k] = v
	}
	hub := map[string]any{"enable": false}
	if a.EdgeHub != nil {
		hub = map[string]any{
			"tlsCaFile": a.file("ca.crt"), "tlsCertFile": a.file("edge.crt"), "tlsPrivateKeyFile": a.file("edge.key"),
		}
		maps.Copy(hub, a.EdgeHub)
	}
	edged := map[string]any{
		"hostnameOverride": a.NodeName, "rootDirectory": filepath.Join(a.Dir, "root"), "tailoredKubeletConfig": kubelet,
	}
	maps.Copy(edged, a.Edged)
	eventBus := map[string]any{"enable": false}
	if a.EventBus != nil {
		eventBus = a.EventBus
	}
	modules := map[string]any{
		"edgeHub": hub, "edged": edged, "deviceTwin": map[string]any{"dmiSockPath": filepath.Dir(a.DMISocket())},
		"eventBus": eventBus,
	}
	if a.MetaServer != nil {
		modules["metaManager"] = map[string]any{"metaServer": a.MetaServer}
	}
	if a.EdgeStream != nil {
		modules["edgeStream"] = a.EdgeStream
	}
	data, err := yaml.Marshal(map[string]any{
		"apiVersion": "edgecore.config.kubeedge.io/v1alpha2", "kind": "EdgeCore",
		"database": map[string]any{"dataSource": a.Store()},
		"modules":  modules,
	})
	if err != nil {
		return err
	}
	return os.WriteFile(a.Config(), data, 0o644)
}

// Where the files are.

func (a *Agent) file(name string) string { return filepath.Join(a.Dir, name) }

// Config is the configuration file.
func (a *Agent) Config() string { return filepath.Join(a.Dir, "edgecore.yaml") }

// Manifests is the folder of static pods.
func (a *Agent) Manifests() string { return filepath.Join(a.Dir, "manifests") }

// PodLogs is the folder of pod logs.
func (a *Agent) PodLogs() string { return filepath.Join(a.Dir, "logs") }

// Store is the SQLite file.
func (a *Agent) Store() string { return filepath.Join(a.Dir, "db", "edgecore.db") }

// DMISocket is the socket on which mappers register.
func (a *Agent) DMISocket() string { return filepath.Join(a.Dir, "dmi", "dmi.sock") }

// Log is what the agent writes.
func (a *Agent) Log() string { return filepath.Join(a.Dir, "edgecore.log") }

// Start starts the agent and waits until its port answers.
func (a *Agent) Start(ctx context.Context) error {
	return a.Launch(ctx, daemon.Launch{
		Name:    "edgecore",
		Log:     a.Log(),
		Env:     a.Env,
		Command: []string{a.Binary, "--config", a.Config(), "-v", "2"},
		Started: a.Started,
		Ready: func(ctx context.Context) error {
			_, err := a.get(ctx, "/healthz/ping")
			return err
		},
	})
}

// RemoveLogLinks removes the links to the logs of the agent's pods; see RemoveLogLinks.
func (a *Agent) RemoveLogLinks() error { return RemoveLogLinks(a.PodLogs()) }

// WriteManifest puts a manifest into the folder, whole from the first moment.
func (a *Agent) WriteManifest(name, content string) error {
	tmp := filepath.Join(a.Dir, ".manifest")
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(a.Manifests(), name))
}

// RemoveManifest takes a manifest away.
func (a *Agent) RemoveManifest(name string) error {
	return os.Remove(filepath.Join(a.Manifests(), name))
}

// Pods asks the agent for its pods.
func (a *Agent) Pods(ctx context.Context) (map[string]*v1.Pod, error) {
	resp, err := a.get(ctx, "/pods")
	if err != nil {
		return nil, err
	}
	var list v1.PodList
	if err := json.Unmarshal(resp, &list); err != nil {
		return nil, err
	}
	pods := map[string]*v1.Pod{}
	for i := range list.Items {
		pods[strings.TrimSuffix(list.Items[i].Name, "-"+a.NodeName)] = &list.Items[i]
	}
	return pods, nil
}

// Get asks the agent's port for a path.
func (a *Agent) Get(ctx context.Context, path string) (string, error) {
	data, err := a.get(ctx, path)
	return string(data), err
}

func (a *Agent) get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := daemon.Within(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(a.Port)+path, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: a.Dial}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, body)
	}
	return body, err
}

// Run runs another command of the binary with this agent's configuration, and returns what it prints.
func (a *Agent) Run(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, a.Binary, append(args, "--config", a.Config())...).CombinedOutput()
	return string(out), err
}
