package kubeedge

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// EdgeOptions say which edge to run, and whom it joins.
type EdgeOptions struct {
	Binary string
	// Dir is where everything of it lies, in the folders of a device: etc/kubeedge, var/lib/kubeedge, var/lib/kubelet.
	Dir string
	// NodeName is the name of the node.
	NodeName string
	// Endpoint is the runtime's socket, CgroupRoot the cgroup of the pods.
	Endpoint, CgroupRoot string
	// Link and Bootstrap are the cloud's ports at 127.0.0.1, Token is what it lets nodes join with.
	Link, Bootstrap int
	Token           string
	// Devices switches devices on: mappers register at DMI.
	Devices bool
	// Stream is the cloud's port for stream tunnels; 0 is none. The kubelet's API is at the port that clouds ask for
	// then.
	Stream int
}

// Edge is KubeEdge's edgecore with its files.
type Edge struct {
	EdgeOptions
	// Port is that of the kubelet's API, which is open to everybody.
	Port int

	proc *daemon.Process
}

// streamKubelet is the port of the kubelet's API that clouds ask for, at 127.0.0.1.
const streamKubelet = 10350

// environment: the check would find the kubelets of others on this machine.
var environment = []string{"CHECK_EDGECORE_ENVIRONMENT=false"}

// NewEdge makes the files of an edge.
func NewEdge(ctx context.Context, opts EdgeOptions) (*Edge, error) {
	e := &Edge{EdgeOptions: opts}
	var err error
	if e.Port, err = daemon.FreePort(); err != nil {
		return nil, err
	}
	if e.Stream != 0 {
		e.Port = streamKubelet
	}
	if err := containerd.MakeCgroup(e.CgroupRoot); err != nil {
		return nil, err
	}
	for _, dir := range []string{"etc/kubeedge/config", "etc/kubeedge/manifests", "var/lib/kubeedge", "var/lib/kubelet",
		"var/log/pods", "plugins"} {
		if err := os.MkdirAll(e.Path(dir), 0o755); err != nil {
			return nil, err
		}
	}
	local := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	const kubelet = "modules.edged.tailoredKubeletConfig."
	certificates := map[string]any{
		"CaFile": e.Path("etc/kubeedge/ca/rootCA.crt"), "CertFile": e.Path("etc/kubeedge/certs/server.crt"),
		"PrivateKeyFile": e.Path("etc/kubeedge/certs/server.key"),
	}
	s := settings{
		"database.dataSource":                   e.Path("var/lib/kubeedge/edgecore.db"),
		"modules.edgeHub.httpServer":            "https://" + local(e.Bootstrap),
		"modules.edgeHub.token":                 e.Token,
		"modules.edgeHub.websocket.server":      local(e.Link),
		"modules.edgeStream.enable":             e.Stream != 0,
		"modules.edgeStream.server":             local(e.Stream),
		"modules.eventBus.enable":               false,
		"modules.deviceTwin.enable":             e.Devices,
		"modules.edged.hostnameOverride":        e.NodeName,
		"modules.edged.reportEvent":             true,
		"modules.edged.rootDirectory":           e.Path("var/lib/kubelet"),
		"modules.edged.remoteRuntimeEndpoint":   e.Endpoint,
		"modules.edged.remoteImageEndpoint":     e.Endpoint,
		"modules.edged.containerRuntime":        "remote",
		kubelet + "containerRuntimeEndpoint":    e.Endpoint,
		kubelet + "imageServiceEndpoint":        e.Endpoint,
		kubelet + "cgroupRoot":                  e.CgroupRoot,
		kubelet + "cgroupDriver":                "cgroupfs",
		kubelet + "readOnlyPort":                e.Port,
		kubelet + "port":                        e.Port,
		kubelet + "podLogsDir":                  e.Path("var/log/pods"),
		kubelet + "staticPodPath":               e.Path("etc/kubeedge/manifests"),
		kubelet + "volumePluginDir":             e.Path("plugins"),
		kubelet + "oomScoreAdj":                 0,
		kubelet + "maxOpenFiles":                1024,
		kubelet + "makeIPTablesUtilChains":      false,
		kubelet + "imageGCHighThresholdPercent": 99,
		kubelet + "imageGCLowThresholdPercent":  98,
		kubelet + "evictionHard": map[string]any{"memory.available": "50Mi", "nodefs.available": "200Mi",
			"imagefs.available": "200Mi"},
		kubelet + "nodeStatusUpdateFrequency":   "5s",
		kubelet + "syncFrequency":               "10s",
		"modules.deviceTwin.dmiSockPath":        e.Path("etc/kubeedge") + "/",
		"modules.metaManager.metaServer.enable": false,
	}
	for suffix, path := range certificates {
		for _, prefix := range []string{
			"modules.edgeHub.tls", "modules.edgeStream.tlsTunnel", "modules.metaManager.metaServer.tls",
		} {
			s[prefix+suffix] = path
		}
	}
	// The keys of the hub are written tlsCaFile, those of the tunnel tlsTunnelCAFile.
	s["modules.edgeStream.tlsTunnelCAFile"] = certificates["CaFile"]
	delete(s, "modules.edgeStream.tlsTunnelCaFile")
	return e, s.write(ctx, e.Binary, e.Config())
}

// Path is a file of the device.
func (e *Edge) Path(name string) string { return filepath.Join(e.Dir, name) }

// Config is the configuration file.
func (e *Edge) Config() string { return e.Path("etc/kubeedge/config/edgecore.yaml") }

// DMI is the socket on which mappers register.
func (e *Edge) DMI() string { return e.Path("etc/kubeedge/dmi.sock") }

// Log is what the edge writes.
func (e *Edge) Log() string { return e.Path("edgecore.log") }

// Start starts the edge and does not wait for it.
func (e *Edge) Start() error {
	if e.proc.Running() {
		return errors.New("the edge runs")
	}
	var err error
	// Its kubelet writes a certificate where it is started.
	e.proc, err = daemon.Start(e.Log(), environment, "sh", "-c", `cd "$0" && exec "$@"`, e.Dir, e.Binary, "--config",
		e.Config())
	return err
}

// Stop ends the edge; its pods run on.
func (e *Edge) Stop(ctx context.Context) error {
	if !e.proc.Running() {
		return nil
	}
	return e.proc.End(ctx, syscall.SIGTERM)
}

// Kill9 kills the edge the hard way.
func (e *Edge) Kill9(ctx context.Context) error {
	if !e.proc.Running() {
		return nil
	}
	return e.proc.End(ctx, syscall.SIGKILL)
}
