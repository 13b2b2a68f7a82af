package adopt

import (
	"crypto/ecdsa"
	"crypto/x509"
	"database/sql"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver sqlite3
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/systemd"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// device is one of KubeEdge: everything of it lies in a folder, but for the containers.
type device struct {
	t    *testing.T
	root string
	ctrd *containerd.Instance
	cri  *cri.Client
	port int
}

// kubeEdge plays KubeEdge's agent: it has its store open and does nothing.
const kubeEdge = `#!/bin/sh
exec 9<%s
trap 'exit 0' TERM
while :; do sleep 0.2 & wait $!; done
`

// newDevice makes a device with a containerd of its own.
func newDevice(t *testing.T, runtime testenv.Options) *device {
	if filepath.Base(built.Edge) != "edgecore" {
		t.Fatalf("%s: want a program of the name edgecore", built.Edge)
	}
	d := &device{t: t, root: t.TempDir(), ctrd: testenv.StartContainerd(t, runtime)}
	d.cri = testenv.Dial(t, d.ctrd)
	t.Cleanup(func() {
		if err := d.systemctl("stop"); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the agent's log:\n%s", daemon.Tail(d.path("run/service.log"), 60))
		}
		if err := agent.Unmount(d.root); err != nil {
			t.Error(err)
		}
	})
	var err error
	d.port, err = daemon.FreePort()
	env.Must(t, err)
	env.Must(t, systemd.Play(d.root))
	d.write("usr/local/bin/edgecore", fmt.Sprintf(kubeEdge, d.path("var/lib/kubeedge/edgecore.db")), 0o755)
	env.Must(t, systemd.KubeEdge(d.root, d.path("usr/local/bin/edgecore")))
	d.certificates()
	d.configuration()
	return d
}

// certificates are those of a node that has joined.
func (d *device) certificates() {
	ca := wiretest.NewCA(d.t)
	node := ca.Node(d.t, "edge1", time.Now().Add(time.Hour))
	key, err := x509.MarshalECPrivateKey(node.PrivateKey.(*ecdsa.PrivateKey))
	env.Must(d.t, err)
	for name, block := range map[string]*pem.Block{
		"ca/rootCA.crt":    {Type: "CERTIFICATE", Bytes: ca.Cert.Raw},
		"certs/server.crt": {Type: "CERTIFICATE", Bytes: node.Certificate[0]},
		"certs/server.key": {Type: "EC PRIVATE KEY", Bytes: key},
	} {
		d.write("etc/kubeedge/"+name, string(pem.EncodeToMemory(block)), 0o622)
	}
}

// configuration is KubeEdge's, of 1.15 or so: with keys that are in other places today, and some that are nowhere.
func (d *device) configuration() {
	kubelet, err := daemon.FreePort()
	env.Must(d.t, err)
	d.write("etc/kubeedge/config/edgecore.yaml", fmt.Sprintf(`apiVersion: edgecore.config.kubeedge.io/v1alpha2
kind: EdgeCore
database:
  dataSource: %s
modules:
  edgeHub:
    enable: true
    heartbeat: 15
    httpServer: https://127.0.0.1:1
    token: spent.token
    tlsCaFile: %s
    tlsCertFile: %s
    tlsPrivateKeyFile: %s
    websocket: {enable: true, server: "127.0.0.1:1", handshakeTimeout: 30, readDeadline: 15, writeDeadline: 15}
  eventBus: {enable: true, mqttMode: 2, mqttServerExternal: "tcp://127.0.0.1:1"}
  serviceBus: {enable: true}
  deviceTwin: {enable: true, dmiSockPath: %s}
  metaManager:
    metaServer: {enable: false, autonomyWithoutAuthorization: true}
  edged:
    containerRuntime: remote
    remoteRuntimeEndpoint: %s
    hostnameOverride: edge1
    rootDirectory: %s
    tailoredKubeletConfig:
      address: 127.0.0.1
      readOnlyPort: %d
      port: %d
      podLogsDir: %s
      staticPodPath: %s
      cgroupRoot: %s
      cgroupDriver: cgroupfs
      evictionHard: {memory.available: 50Mi, nodefs.available: 200Mi, imagefs.available: 200Mi}
      crashLoopBackOff: {maxContainerRestartPeriod: 1s}
      imageGCHighThresholdPercent: 99
      imageGCLowThresholdPercent: 98
`, d.path("var/lib/kubeedge/edgecore.db"), d.path("etc/kubeedge/ca/rootCA.crt"),
		d.path("etc/kubeedge/certs/server.crt"), d.path("etc/kubeedge/certs/server.key"), d.path("run/dmi"),
		d.ctrd.Endpoint(), d.path("var/lib/edged"), d.port, kubelet, d.path("var/log/pods"),
		d.path("etc/kubeedge/manifests"), d.ctrd.CgroupRoot()), 0o644)
}

// store makes KubeEdge's store of rows: key, type, value.
func (d *device) store(rows [][3]string) {
	env.Must(d.t, os.MkdirAll(d.path("var/lib/kubeedge"), 0o755))
	db, err := sql.Open("sqlite3", d.path("var/lib/kubeedge/edgecore.db"))
	env.Must(d.t, err)
	defer func() { env.Must(d.t, db.Close()) }()
	_, err = db.ExecContext(d.t.Context(),
		`CREATE TABLE IF NOT EXISTS "meta" ("key" varchar(256) NOT NULL PRIMARY KEY, "type" varchar(32) NOT NULL DEFAULT '', "value" text);
		CREATE TABLE IF NOT EXISTS "meta_v2" ("key" varchar(256) NOT NULL PRIMARY KEY, "groupversionresource" varchar(256), "namespace" varchar(256), "name" varchar(256), "resourceversion" integer, "value" text);
		CREATE TABLE IF NOT EXISTS "device" ("id" varchar(64) NOT NULL PRIMARY KEY, "name" varchar(64))`)
	env.Must(d.t, err)
	for _, row := range rows {
		_, err := db.ExecContext(d.t.Context(), "INSERT OR REPLACE INTO meta (key, type, value) VALUES (?,?,?)", row[0],
			row[1], row[2])
		env.Must(d.t, err)
	}
}

func (d *device) path(name string) string { return filepath.Join(d.root, name) }

func (d *device) write(name, text string, mode fs.FileMode) {
	env.Must(d.t, os.MkdirAll(filepath.Dir(d.path(name)), 0o755))
	env.Must(d.t, os.WriteFile(d.path(name), []byte(text), mode))
	env.Must(d.t, os.Chmod(d.path(name), mode))
}

func (d *device) systemctl(args ...string) error { return systemd.Run(d.root, args...) }

// edgecore runs a command of the program that takes over.
func (d *device) edgecore(args ...string) (string, error) {
	out, err := d.command(args...).CombinedOutput()
	return string(out), err
}

// pid is that of the service's process.
func (d *device) pid() int {
	pid, err := systemd.PID(d.root)
	env.Must(d.t, err)
	return pid
}

// program is what the service's process runs.
func (d *device) program() string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", d.pid()))
	if err != nil {
		return "nothing"
	}
	return strings.ReplaceAll(string(line), "\x00", " ")
}

// pods asks the agent for its pods, by name.
func (d *device) pods() (map[string]*v1.Pod, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait.Max()}
	resp, err := client.Get("http://127.0.0.1:" + strconv.Itoa(d.port) + "/pods")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var list v1.PodList
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return nil, err
	}
	pods := map[string]*v1.Pod{}
	for i := range list.Items {
		pods[list.Items[i].Name] = &list.Items[i]
	}
	return pods, nil
}

// containers are the running containers of the device, by their pods' names.
func (d *device) containers() map[string]string {
	list, err := d.cri.ListContainers(d.t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		},
	})
	env.Must(d.t, err)
	ids := map[string]string{}
	for _, c := range list.Containers {
		ids[c.Labels["io.kubernetes.pod.name"]] = c.Id
	}
	return ids
}

// runs checks which program the service's process runs.
func (d *device) runs(program string) {
	d.t.Helper()
	if got := d.program(); !strings.Contains(got, program) {
		d.t.Fatalf("the service runs %q, want %s", got, program)
	}
}

// isReady waits until the agent shows a pod as ready, and its container with so many restarts.
func (d *device) isReady(name string, restarts int32) {
	d.t.Helper()
	wait.Until(d.t, "pod "+name+" to be ready", func() error { return d.ready(name, restarts) })
}

// ends waits until no container of a pod runs.
func (d *device) ends(name string) {
	d.t.Helper()
	wait.Until(d.t, "pod "+name+" to end", func() error {
		if id, ok := d.containers()[name]; ok {
			return fmt.Errorf("container %s runs", id)
		}
		return nil
	})
}

// files are those of KubeEdge, with modes, times and contents.
func (d *device) files() map[string]string {
	out := map[string]string{}
	for _, dir := range []string{"etc/kubeedge", "etc/systemd", "var/lib/kubeedge", "usr/local"} {
		env.Must(d.t, filepath.WalkDir(d.path(dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			info, err := os.Lstat(path)
			if err != nil {
				return err
			}
			if info.Mode()&fs.ModeSymlink != 0 {
				to, err := os.Readlink(path)
				out[path] = "-> " + to
				return err
			}
			data, err := os.ReadFile(path)
			out[path] = info.Mode().String() + info.ModTime().String() + string(data)
			return err
		}))
	}
	return out
}

// ready checks that the agent shows a pod as ready, and its container with so many restarts.
func (d *device) ready(name string, restarts int32) error {
	pods, err := d.pods()
	if err != nil {
		return err
	}
	pod := pods[name]
	if pod == nil || len(pod.Status.ContainerStatuses) != 1 {
		return fmt.Errorf("pod %s is %+v, want one container", name, pod)
	}
	if got := pod.Status.ContainerStatuses[0].RestartCount; got != restarts {
		return fmt.Errorf("pod %s: %d restarts, want %d", name, got, restarts)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("pod %s is not ready: %+v", name, pod.Status)
}
