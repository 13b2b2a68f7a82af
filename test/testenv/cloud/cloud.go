// Package cloud runs a cloudcore of its own beside a private cluster: its own folder and ports of 127.0.0.1. The
// tests of the link, the load program and the demonstration share it.
package cloud

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// Options say which cloudcore to run.
type Options struct {
	// Binary is the cloudcore to run; see Build.
	Binary string
	// Dir is where everything of it lies.
	Dir string
	// Kubeconfig is the way to the cluster.
	Kubeconfig string
	// Address is where nodes reach it; empty is 127.0.0.1.
	Address string
	// Hub are more keys of modules.cloudHub.
	Hub map[string]any
	// Modules are more keys of modules.
	Modules map[string]any
	// Profiling lets Get ask for /debug/pprof.
	Profiling bool
	// Started, which may be nil, is called with each process as soon as it runs.
	Started func(daemon.Identity) error
}

// Cloud is a cloudcore with its files. Its methods must not be called at the same time.
type Cloud struct {
	Options
	// Link, Bootstrap, QUIC, Stream and Monitor are its ports: of WebSockets, of certificates, of QUIC, of the stream
	// tunnels of KubeEdge's nodes and of metrics.
	Link, Bootstrap, QUIC, Stream, Monitor int

	daemon.Program
}

// BinaryEnv names a cloudcore that was built before, so that many test binaries need not build it each.
const BinaryEnv = "EDGECORE_TEST_CLOUDCORE"

// Build builds cloudcore into a folder and returns its path; BinaryEnv takes its place.
func Build(ctx context.Context, dir string) (string, error) {
	if built := os.Getenv(BinaryEnv); built != "" {
		return built, nil
	}
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	out := filepath.Join(dir, "cloudcore")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, "./cmd/cloudcore")
	cmd.Dir = filepath.Dir(strings.TrimSpace(string(mod)))
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build cloudcore: %w\n%s", err, text)
	}
	return out, nil
}

// New makes the files of a cloudcore.
func New(opts Options) (*Cloud, error) {
	c := &Cloud{Options: opts}
	if c.Address == "" {
		c.Address = "127.0.0.1"
	}
	for _, port := range []*int{&c.Link, &c.Bootstrap, &c.QUIC, &c.Stream, &c.Monitor} {
		var err error
		if *port, err = daemon.FreePort(); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	return c, c.writeConfig()
}

func (c *Cloud) writeConfig() error {
	listen := func(port int) map[string]any {
		return map[string]any{"enable": true, "address": c.Address, "port": port}
	}
	file := func(name string) string { return filepath.Join(c.Dir, name) }
	hub := map[string]any{
		"advertiseAddress": []string{c.Address}, "dnsNames": []string{"localhost"},
		"websocket": listen(c.Link), "https": listen(c.Bootstrap), "quic": listen(c.QUIC),
		"unixsocket": map[string]any{"enable": true, "address": "unix://" + file("csi.sock")},
		"tlsCAFile":  file("ca.crt"), "tlsCAKeyFile": file("ca.key"), "tlsCertFile": file("server.crt"),
		"tlsPrivateKeyFile": file("server.key"),
	}
	for k, v := range c.Hub {
		hub[k] = v
	}
	// The ports of nodes are none of those that FreePort returns.
	stream := map[string]any{"tunnelPort": c.Stream, "firstPort": 12000, "lastPort": 19999}
	modules := map[string]any{"cloudHub": hub, "cloudStream": stream}
	for k, v := range c.Modules {
		if more, ok := v.(map[string]any); ok && k == "cloudStream" {
			maps.Copy(stream, more)
			continue
		}
		modules[k] = v
	}
	data, err := yaml.Marshal(map[string]any{
		"apiVersion": "cloudcore.config.kubeedge.io/v1alpha1", "kind": "CloudCore",
		"kubeAPIConfig": map[string]any{"kubeConfig": c.Kubeconfig},
		"commonConfig": map[string]any{"monitorServer": map[string]any{
			"bindAddress": "127.0.0.1:" + strconv.Itoa(c.Monitor), "enableProfiling": c.Profiling,
		}},
		"modules": modules,
	})
	if err != nil {
		return err
	}
	return os.WriteFile(c.Config(), data, 0o600)
}

// Config is the configuration file.
func (c *Cloud) Config() string { return filepath.Join(c.Dir, "cloudcore.yaml") }

// Log is what cloudcore writes.
func (c *Cloud) Log() string { return filepath.Join(c.Dir, "cloudcore.log") }

// Start starts cloudcore and waits until it is ready.
func (c *Cloud) Start(ctx context.Context) error {
	return c.Launch(ctx, daemon.Launch{
		Name:    "cloudcore",
		Log:     c.Log(),
		Command: []string{c.Binary, "--config", c.Config(), "-v", "2"},
		Started: c.Started,
		Ready: func(ctx context.Context) error {
			_, err := c.Get(ctx, "/readyz")
			return err
		},
	})
}

// Get asks cloudcore's monitor for a path.
func (c *Cloud) Get(ctx context.Context, path string) (string, error) {
	ctx, cancel := daemon.Within(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(c.Monitor)+path, nil)
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, body)
	}
	return string(body), err
}

// Token asks cloudcore for a token to join with, as an administrator does.
func (c *Cloud) Token(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, c.Binary, "gettoken", "--config", c.Config()).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cloudcore gettoken: %w\n%s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
