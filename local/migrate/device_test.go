package migrate

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/deploy/systemd"
	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/runtime/fakecri"
	"github.com/edgecore-io/edgecore/local/adopt"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const kubeEdgeUnit = `[Unit]
Description=edgecore.service

[Service]
Type=simple
ExecStart=%s
Restart=always
RestartSec=10

[Install]
WantedBy=multi-user.target
`

// device is one that KubeEdge runs, in a folder: its files are real, systemd and the runtime are fakes.
type device struct {
	t      *testing.T
	root   string
	cri    *fakecri.Runtime
	client *cri.Client
	port   int
	// crashAt is the event at which the power goes; events counts them.
	crashAt, events int
	// agent is which of the two agents runs: "", "KubeEdge" or "edgecore"; answers is what ours has for a port.
	agent   string
	answers *httptest.Server
	deaf    bool // ours starts, and does not answer
	wait    time.Duration
	// replaceSystemctl, which may be nil, goes first, and may fail.
	replaceSystemctl func(args []string) error
}

// power is what a test panics with where the power goes.
type power struct{}

func newDevice(t *testing.T) *device {
	d := &device{t: t, root: t.TempDir(), agent: "KubeEdge", wait: wait.Max()}
	d.cri, d.client = fakecri.Start(t)
	must(t, patient(t.Context(), func(ctx context.Context) error {
		_, err := d.client.Version(ctx, &runtimeapi.VersionRequest{})
		return err
	}))
	t.Cleanup(d.endOurs)
	port, err := daemon.FreePort()
	must(t, err)
	d.port = port
	d.write("usr/local/bin/edgecore", "KubeEdge's program", 0o755)
	d.write("usr/bin/edgecore", "this program", 0o755)
	d.write("etc/systemd/system/"+systemd.Name, fmt.Sprintf(kubeEdgeUnit, d.path("usr/local/bin/edgecore")), 0o644)
	d.write("etc/systemd/system/edgecore.service.d/10-proxy.conf", "[Service]\nEnvironment=HTTPS_PROXY=x\n", 0o644)
	must(t, os.MkdirAll(d.path("etc/systemd/system/multi-user.target.wants"), 0o755))
	must(t, os.Symlink("/etc/systemd/system/"+systemd.Name,
		d.path("etc/systemd/system/multi-user.target.wants/"+systemd.Name)))
	d.write("etc/kubeedge/config/edgecore.yaml", fmt.Sprintf(`apiVersion: edgecore.config.kubeedge.io/v1alpha2
kind: EdgeCore
database: {dataSource: %s}
modules:
  edgeHub:
    tlsCaFile: %s
    tlsCertFile: %s
    tlsPrivateKeyFile: %s
  edged:
    hostnameOverride: edge1
    rootDirectory: %s
    enableMetrics: true
    tailoredKubeletConfig:
      readOnlyPort: %d
      staticPodPath: %s
      podLogsDir: %s
      containerRuntimeEndpoint: %s
`, d.path("var/lib/kubeedge/edgecore.db"), d.path("etc/kubeedge/ca/rootCA.crt"),
		d.path("etc/kubeedge/certs/server.crt"), d.path("etc/kubeedge/certs/server.key"),
		d.path("var/lib/kubelet"), d.port, d.path("etc/kubeedge/manifests"), d.path("var/log/pods"), d.cri.Endpoint()),
		0o644)
	for _, name := range []string{"ca/rootCA.crt", "certs/server.crt", "certs/server.key"} {
		d.write("etc/kubeedge/"+name, "KubeEdge's "+name, 0o622)
	}
	d.write("etc/kubeedge/manifests/agent.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: agent}\nspec:\n  "+
		"containers: [{name: main, image: \"image:1\"}]\n", 0o644)
	d.database("var/lib/kubeedge/edgecore.db")
	return d
}

// database makes a store as KubeEdge 1.22 and older do, with the pod web.
func (d *device) database(name string) {
	must(d.t, os.MkdirAll(filepath.Dir(d.path(name)), 0o755))
	db, err := sql.Open("sqlite3", d.path(name))
	must(d.t, err)
	defer func() { must(d.t, db.Close()) }()
	_, err = db.ExecContext(d.t.Context(),
		`CREATE TABLE IF NOT EXISTS "meta" ("key" varchar(256) NOT NULL PRIMARY KEY, "type" varchar(32) NOT NULL DEFAULT '', "value" text);
		CREATE TABLE IF NOT EXISTS "device" ("id" varchar(64) NOT NULL PRIMARY KEY)`)
	must(d.t, err)
	web := d.pod("web", "u-web")
	text, err := json.Marshal(web)
	must(d.t, err)
	_, err = db.ExecContext(d.t.Context(), "INSERT INTO meta(key, type, value) VALUES ('default/pod/web', 'pod', ?)",
		string(text))
	must(d.t, err)
	d.run(web, adopt.SpecHash(&web.Spec.Containers[0]))
	static := d.pod("agent-edge1", "0123456789abcdef0123456789abcdef")
	d.run(static, 0xabc)
	d.cri.SetImage(&runtimeapi.Image{Id: "sha256:image", RepoTags: []string{"image:1"}, Uid: &runtimeapi.Int64Value{}})
}

func (d *device) pod(name, uid string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(uid)},
		Spec: v1.PodSpec{
			NodeName: "edge1", RestartPolicy: v1.RestartPolicyAlways,
			Containers: []v1.Container{{Name: "main", Image: "image:1"}},
		},
		Status: v1.PodStatus{Phase: v1.PodRunning},
	}
}

// run starts a pod the way a kubelet does, whose hash of the container is given.
func (d *device) run(pod *v1.Pod, hash uint64) {
	labels := map[string]string{"io.kubernetes.pod.name": pod.Name, "io.kubernetes.pod.namespace": pod.Namespace,
		"io.kubernetes.pod.uid": string(pod.UID)}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)},
		Labels:   labels,
	}
	box, err := d.client.RunPodSandbox(d.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	must(d.t, err)
	labels = maps.Clone(labels)
	labels["io.kubernetes.container.name"] = "main"
	made, err := d.client.CreateContainer(d.t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: box.PodSandboxId, SandboxConfig: config, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Image:    &runtimeapi.ImageSpec{Image: "sha256:image"},
			Labels:   labels,
			Annotations: map[string]string{
				"io.kubernetes.container.hash":         strconv.FormatUint(hash, 16),
				"io.kubernetes.container.restartCount": "3",
			},
		},
	})
	must(d.t, err)
	_, err = d.client.StartContainer(d.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: made.ContainerId})
	must(d.t, err)
	must(d.t, os.MkdirAll(d.path("var/lib/kubelet/pods/"+string(pod.UID)), 0o750))
}

func (d *device) path(name string) string { return filepath.Join(d.root, name) }

func (d *device) write(name, text string, mode fs.FileMode) {
	must(d.t, os.MkdirAll(filepath.Dir(d.path(name)), 0o755))
	must(d.t, os.WriteFile(d.path(name), []byte(text), mode))
	must(d.t, os.Chmod(d.path(name), mode))
}

// takeover is one of this device; what it says counts as events.
func (d *device) takeover() (*Migration, *bytes.Buffer) {
	output := &bytes.Buffer{}
	return New(Options{
		From:   d.path("etc/kubeedge/config/edgecore.yaml"),
		Config: d.path("etc/edgecore/edgecore.yaml"),
		Store:  d.path("var/lib/edgecore/edgecore.db"),
		Wait:   d.wait,
		Out:    &teller{d, output},
		Service: Service{
			Root:      d.root,
			Present:   true,
			Program:   d.path("usr/bin/edgecore"),
			Packaged:  d.packaged,
			Systemctl: d.systemctl,
		},
	}), output
}

type teller struct {
	d  *device
	to *bytes.Buffer
}

func (s *teller) Write(p []byte) (int, error) {
	s.d.event()
	return s.to.Write(p)
}

func (d *device) packaged(config string) bool {
	text, err := os.ReadFile(d.path("usr/lib/systemd/system/" + systemd.Name))
	return err == nil && strings.Contains(string(text), config)
}

// event is a moment at which the power may go.
func (d *device) event() {
	if d.events++; d.events == d.crashAt {
		panic(power{})
	}
}

// effective is which agent a start of the service starts.
func (d *device) effective() string {
	for _, dir := range unitDirs() {
		text, err := os.ReadFile(filepath.Join(d.root, dir, systemd.Name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		must(d.t, err)
		if systemd.IsOurs(string(text)) {
			return "edgecore"
		}
		return "KubeEdge"
	}
	return ""
}

func (d *device) systemctl(_ context.Context, args ...string) error {
	d.event()
	if d.replaceSystemctl != nil {
		if err := d.replaceSystemctl(args); err != nil {
			return err
		}
	}
	switch args[0] {
	case "is-active":
		if d.agent == "" {
			return errors.New("inactive")
		}
		return nil
	case "stop":
		d.stop()
	case "enable":
		link := d.path("etc/systemd/system/multi-user.target.wants/" + systemd.Name)
		if err := os.Symlink("/etc/systemd/system/"+systemd.Name, link); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case "start", "restart":
		d.stop()
		if err := d.startEffective(); err != nil {
			return err
		}
	}
	d.event()
	return nil
}

func (d *device) stop() {
	d.endOurs()
	d.agent = ""
}

func (d *device) endOurs() {
	if d.answers != nil {
		d.answers.Close()
		d.answers = nil
	}
}

// startEffective starts the agent whose unit is in force, which needs its files.
func (d *device) startEffective() error {
	switch d.agent = d.effective(); d.agent {
	case "":
		return errors.New("Unit edgecore.service not found")
	case "edgecore":
		for _, name := range []string{
			"etc/edgecore/edgecore.yaml", "etc/edgecore/certs/server.key", "var/lib/edgecore/edgecore.db",
		} {
			if _, err := os.Stat(d.path(name)); err != nil {
				d.t.Errorf("Stat of %s at the start of edgecore: %v, want it to exist", name, err)
			}
		}
		if !d.deaf {
			d.serve()
		}
	}
	return nil
}

// serve answers as edgecore does, with all containers that run.
func (d *device) serve() {
	listener, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(d.port))
	must(d.t, err)
	d.answers = &httptest.Server{
		Listener: listener, Config: &http.Server{
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				list, err := d.client.ListContainers(context.Background(), &runtimeapi.ListContainersRequest{})
				if err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
					return
				}
				var pods v1.PodList
				for _, c := range list.Containers {
					pods.Items = append(pods.Items, v1.Pod{
						Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{
							ContainerID: "containerd://" + c.Id, State: v1.ContainerState{
								Running: &v1.ContainerStateRunning{},
							},
						}}},
					})
				}
				if err := json.NewEncoder(w).Encode(pods); err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
				}
			}),
		},
	}
	d.answers.Start()
}

// files are all files below the device's root, with their modes and contents.
func (d *device) files(below ...string) map[string]string {
	d.t.Helper()
	out := map[string]string{}
	for _, dir := range below {
		err := filepath.WalkDir(d.path(dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			name, err := filepath.Rel(d.root, path)
			if err != nil {
				return err
			}
			info, err := os.Lstat(path)
			if err != nil {
				return err
			}
			if info.Mode()&fs.ModeSymlink != 0 {
				to, err := os.Readlink(path)
				out[name] = "-> " + to
				return err
			}
			data, err := os.ReadFile(path)
			out[name] = info.Mode().String() + " " + info.ModTime().Format(time.RFC3339Nano) + " " + string(data)
			return err
		})
		if !errors.Is(err, fs.ErrNotExist) {
			must(d.t, err)
		}
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
