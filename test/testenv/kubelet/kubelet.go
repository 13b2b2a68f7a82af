// Package kubelet runs a real kubelet beside a private containerd, as a node of a private cluster. Tests compare
// edgecore with it. Everything it keeps is in one folder, except the links in /var/log/containers, which RemoveLogLinks
// removes.
package kubelet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// Options say which kubelet to run.
type Options struct {
	// Binary is the kubelet; see Build.
	Binary string
	// Dir is where everything of the kubelet is: configuration, root folder, certificates, pod logs, its own log.
	Dir string
	// NodeName is the name of the node.
	NodeName string
	// Endpoint is the runtime's socket, CgroupRoot the cgroup of the pods, which New creates.
	Endpoint, CgroupRoot string
	// Containerd is the socket of containerd itself, from which cAdvisor learns which cgroup is which container; "" is
	// the usual one.
	Containerd string
	// Server is the address at which the kubelet reaches kube-apiserver, such as a proxy; "" means the cluster's own.
	Server string
	// Config are more keys of its KubeletConfiguration.
	Config map[string]any
	// Started, which may be nil, is called with each process as soon as it runs.
	Started func(daemon.Identity) error
}

// Kubelet is a kubelet with its files. Its methods must not be called at the same time.
type Kubelet struct {
	Options
	// Port is the port of its API on 127.0.0.1, ReadOnlyPort that of the part of it that needs no rights.
	Port, ReadOnlyPort int

	kubeconfig  string
	healthzPort int

	daemon.Program
}

// deviceCheckpoint has the devices of the kubelet that ran last: its folder is the same for every kubelet, whatever its
// root.
const deviceCheckpoint = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"

// New makes the files of a kubelet and its user in the cluster. The new kubelet knows no device of another one.
func New(cluster *kube.Cluster, opts Options) (*Kubelet, error) {
	k := &Kubelet{Options: opts}
	for _, port := range []*int{&k.Port, &k.ReadOnlyPort, &k.healthzPort} {
		var err error
		if *port, err = daemon.FreePort(); err != nil {
			return nil, err
		}
	}
	for _, dir := range []string{k.PodLogs(), k.Manifests(), k.Root()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := containerd.MakeCgroup(opts.CgroupRoot); err != nil {
		return nil, err
	}
	if err := os.Remove(deviceCheckpoint); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var err error
	if k.kubeconfig, err = cluster.AddUser("system:node:"+opts.NodeName, "system:nodes"); err != nil {
		return nil, err
	}
	if opts.Server != "" {
		if err := k.redirect(); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(k.file("ca.crt"), cluster.CA(), 0o644); err != nil {
		return nil, err
	}
	return k, k.writeConfig()
}

// redirect gives the kubelet a kubeconfig of its own that names another server.
func (k *Kubelet) redirect() error {
	config, err := clientcmd.LoadFromFile(k.kubeconfig)
	if err != nil {
		return err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = k.Server
	}
	k.kubeconfig = k.file("kubeconfig")
	return clientcmd.WriteToFile(*config, k.kubeconfig)
}

func (k *Kubelet) writeConfig() error {
	config := map[string]any{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"staticPodPath":            k.Manifests(),
		"podLogsDir":               k.PodLogs(),
		"containerRuntimeEndpoint": k.Endpoint,
		"cgroupRoot":               k.CgroupRoot,
		"cgroupDriver":             "cgroupfs",
		"address":                  "127.0.0.1",
		"port":                     k.Port,
		"readOnlyPort":             k.ReadOnlyPort,
		"healthzPort":              k.healthzPort,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": k.file("ca.crt")},
		},
		"authorization": map[string]any{"mode": "Webhook"},
		// The machine's disk may be nearly full: no pod or image is lost to that.
		"evictionHard": map[string]any{
			"memory.available": "50Mi", "nodefs.available": "200Mi", "imagefs.available": "200Mi",
		},
		"imageGCHighThresholdPercent": 99,
		"imageGCLowThresholdPercent":  98,
		// This machine may have cgroup v1, which the kubelet refuses otherwise.
		"failCgroupV1": false,
		"failSwapOn":   false,
		// Two kubelets of two tests would write the same chains.
		"makeIPTablesUtilChains": false,
	}
	maps.Copy(config, k.Config)
	data, err := yaml.Marshal(config)
	if err != nil {
		return err
	}
	return os.WriteFile(k.file("kubelet.yaml"), data, 0o644)
}

func (k *Kubelet) file(name string) string { return filepath.Join(k.Dir, name) }

// Root is the folder of its pods and plugins.
func (k *Kubelet) Root() string { return k.file("root") }

// PodLogs is the folder of pod logs.
func (k *Kubelet) PodLogs() string { return k.file("logs") }

// Manifests is the folder of static pods.
func (k *Kubelet) Manifests() string { return k.file("manifests") }

// Log is what the kubelet writes.
func (k *Kubelet) Log() string { return k.file("kubelet.log") }

// Start starts the kubelet and waits until it is healthy.
func (k *Kubelet) Start(ctx context.Context) error {
	args := []string{
		"--config=" + k.file("kubelet.yaml"),
		"--kubeconfig=" + k.kubeconfig,
		"--hostname-override=" + k.NodeName,
		"--root-dir=" + k.Root(),
		"--cert-dir=" + k.file("pki"),
		"--v=2",
	}
	if k.Containerd != "" {
		args = append(args, "--containerd="+k.Containerd)
	}
	return k.Launch(ctx, daemon.Launch{
		Name:    "the kubelet of " + k.NodeName,
		Log:     k.Log(),
		Command: append([]string{k.Binary}, args...),
		Started: k.Started,
		Ready:   k.healthy,
	})
}

func (k *Kubelet) healthy(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(k.healthzPort))+"/healthz", nil)
	if err != nil {
		return err
	}
	client := http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}},
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1024))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("/healthz: %s: %s", resp.Status, body)
	}
	return err
}

// RemoveLogLinks removes the links to the logs of its pods in the machine's folder of such links.
func (k *Kubelet) RemoveLogLinks() error { return agent.RemoveLogLinks(k.PodLogs()) }
