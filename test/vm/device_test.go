package vm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
	"github.com/edgecore-io/edgecore/test/vm"
)

// configFile is where the package has it.
const configFile = "/etc/edgecore/edgecore.yaml"

// config is what an administrator makes of it; hub are the keys of the link.
func config(hub string) string {
	return `apiVersion: edgecore.config.kubeedge.io/v1alpha2
kind: EdgeCore
database: {dataSource: ` + storeFile + `}
modules:
  edgeHub: {` + hub + `}
  edged:
    hostnameOverride: edge
    rootDirectory: /var/lib/kubelet
    tailoredKubeletConfig:
      staticPodPath: /etc/edgecore/manifests
      cgroupDriver: systemd
`
}

const storeFile = "/var/lib/edgecore/edgecore.db"

// What an administrator writes on a device: Debian's own containerd, with systemd making the cgroups.
var runtimeFiles = map[string]string{
	"/etc/containerd/config.toml": `version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "edgecore.local/pause:1"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true
`,
	"/etc/cni/net.d/10-pods.conflist": `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`,
}

var deviceFiles = map[string]string{
	configFile: config("enable: false"),
	"/etc/edgecore/manifests/guaranteed.yaml": manifest("guaranteed", "limits: {cpu: 250m, memory: 32Mi}"),
	"/etc/edgecore/manifests/burstable.yaml": manifest("burstable",
		"requests: {cpu: 100m}, limits: {cpu: 500m, memory: 64Mi}"),
	"/etc/edgecore/manifests/besteffort.yaml": manifest("besteffort", ""),
}

func manifest(name, resources string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: edgecore.local/demo:1
    command: [sh, -c, "trap 'exit 0' TERM; while true; do sleep 1 & wait; done"]
    resources: {%s}
`, name, resources)
}

// assigned is a pod that the cloud once assigned, as the store has it. Like the others it ends when it is told
// to: systemd gives a container that does not 90 s before it lets the machine reboot.
const assigned = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"assigned","namespace":"default","uid":"0b2b1a52-7d2c-4b0e-8d19-bd0f1d5b3c11","resourceVersion":"10"},
"spec":{"nodeName":"edge","restartPolicy":"Always","terminationGracePeriodSeconds":1,"dnsPolicy":"Default","containers":[{"name":"main","image":"edgecore.local/demo:1",
"imagePullPolicy":"IfNotPresent","command":["sh","-c","trap \"exit 0\" TERM; while true; do sleep 1 & wait; done"],"resources":{"requests":{"cpu":"50m","memory":"8Mi"}}}]}}`

var devicePods = []string{"assigned", "besteffort-edge", "burstable-edge", "guaranteed-edge"}

// device is a machine with edgecore as a service on it.
type device struct {
	*vm.VM
	t *testing.T
}

// install makes a device out of the package: containerd with the images runs, and edgecore from the files given.
func install(t *testing.T, opts vm.Options, files map[string]string) *device {
	t.Helper()
	d := &device{boot(t, opts), t}
	t.Cleanup(func() {
		if t.Failed() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			out, err := d.Run(ctx, "journalctl", "--no-pager", "-o", "short-monotonic", "-n", "1000", "-u", "edgecore",
				"-u", "containerd")
			t.Logf("the end of the machine's journal: %v\n%s", err, out)
		}
	})
	began := time.Now()
	d.write(runtimeFiles)
	d.sh("systemctl daemon-reload; systemctl enable --now containerd; ctr -n k8s.io images import /payload/images.tar")
	d.sh("DEBIAN_FRONTEND=noninteractive dpkg -i /payload/edgecore.deb")
	if got := d.sh("systemctl is-enabled edgecore; systemctl is-active edgecore"); got != "enabled\nactive" {
		t.Errorf("the service after dpkg -i is %q, want enabled and active", got)
	}
	d.write(files)
	d.sh("systemctl restart edgecore; sync") // which returns when the agent says that it is there
	t.Logf("installed in %v", time.Since(began).Round(time.Second))
	return d
}

func (d *device) write(files map[string]string) {
	d.t.Helper()
	for name, content := range files {
		mode := os.FileMode(0o644)
		if strings.HasSuffix(name, ".key") {
			mode = 0o600
		}
		if err := d.WriteFile(d.t.Context(), name, content, mode); err != nil {
			d.t.Fatal(err)
		}
	}
}

// packages are built once for all tests, by architecture.
var packages struct {
	sync.Mutex
	built map[string]string
}

func debianPackage(t *testing.T, arch string) string {
	t.Helper()
	packages.Lock()
	defer packages.Unlock()
	if packages.built[arch] == "" {
		path, err := vm.BuildPackage(t.Context(), arch)
		if err != nil {
			t.Fatal(err)
		}
		if packages.built == nil {
			packages.built = map[string]string{}
		}
		packages.built[arch] = path
		t.Logf("%s", filepath.Base(path))
	}
	return packages.built[arch]
}

// packaged is the payload of a device.
func packaged(t *testing.T, arch string) map[string]string {
	t.Helper()
	archive, err := vm.Archive(t.Context(), arch, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"edgecore.deb": debianPackage(t, arch), "images.tar": archive}
}

// newDevice has pods of each class, and one that the cloud once assigned.
func newDevice(t *testing.T, arch string) *device {
	t.Helper()
	d := install(t, vm.Options{Arch: arch, Payload: packaged(t, arch), Network: true}, deviceFiles)
	// The store is there; now the pod is, as the cloud would have brought it.
	d.write(map[string]string{
		"/root/assigned.sql": "INSERT INTO meta VALUES ('default/pod/assigned', 'pod', '" + assigned + "');\n",
	})
	d.sh("systemctl stop edgecore; sqlite3 " + storeFile + " < /root/assigned.sql; systemctl start edgecore")
	return d
}

func (d *device) sh(script string) string {
	d.t.Helper()
	return sh(d.t, d.VM, script)
}

// running waits until all pods are ready with that restart count, in containers for which keep is true.
func (d *device) running(what string, restarts int32, keep func(id string) bool) map[string]*v1.Pod {
	d.t.Helper()
	began := time.Now()
	var pods map[string]*v1.Pod
	wait.Until(d.t, what+": the pods", func() error {
		out, err := d.Run(d.t.Context(), "busybox", "wget", "-q", "-O", "-", "http://127.0.0.1:10255/pods")
		if err != nil {
			return err
		}
		var list v1.PodList
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return err
		}
		pods = map[string]*v1.Pod{}
		for _, p := range list.Items {
			pods[p.Name] = &p
		}
		if got := slices.Sorted(maps.Keys(pods)); !cmp.Equal(got, devicePods) {
			return fmt.Errorf("%s: pods %v, want %v", what, got, devicePods)
		}
		for _, p := range pods {
			if err := runs(p, restarts, keep); err != nil {
				return fmt.Errorf("%s: pod %s: %w", what, p.Name, err)
			}
		}
		return nil
	})
	d.t.Logf("%s: %d pods run, after %v", what, len(pods), time.Since(began).Round(100*time.Millisecond))
	return pods
}

func runs(p *v1.Pod, restarts int32, keep func(id string) bool) error {
	if p.Status.Phase != v1.PodRunning || len(p.Status.ContainerStatuses) != 1 {
		return fmt.Errorf("%s, %+v", p.Status.Phase, p.Status.ContainerStatuses)
	}
	c := p.Status.ContainerStatuses[0]
	if !c.Ready || c.State.Running == nil || c.RestartCount != restarts {
		return fmt.Errorf("ready %t, restarts %d, state %+v", c.Ready, c.RestartCount, c.State)
	}
	if !keep(c.ContainerID) {
		return fmt.Errorf("container %s is another than it has to be", c.ContainerID)
	}
	return nil
}

func containers(pods map[string]*v1.Pod) (ids []string) {
	for _, p := range pods {
		ids = append(ids, p.Status.ContainerStatuses[0].ContainerID)
	}
	return ids
}

// slice is where systemd has a pod's cgroup.
func slice(p *v1.Pod) string {
	class := map[v1.PodQOSClass]string{
		v1.PodQOSBurstable: "burstable", v1.PodQOSBestEffort: "besteffort",
	}[p.Status.QOSClass]
	dir, prefix := "/sys/fs/cgroup/kubepods.slice", "kubepods"
	if class != "" {
		prefix += "-" + class
		dir += "/" + prefix + ".slice"
	}
	return dir + "/" + prefix + "-pod" + strings.ReplaceAll(string(p.UID), "-", "_") + ".slice"
}

// checkCgroups looks at the cgroup that each container's process is in, and at those above it.
func (d *device) checkCgroups(pods map[string]*v1.Pod) {
	d.t.Helper()
	values := func(dir string) string {
		out, err := d.Run(d.t.Context(), "sh", "-c",
			"cd "+dir+" && cat cpu.weight cpu.max memory.max memory.swap.max memory.oom.group | tr '\\n' ';'")
		if err != nil {
			return err.Error()
		}
		return strings.TrimSuffix(strings.ReplaceAll(out, ";", "; "), "; ")
	}
	check := func(dir, want string) {
		d.t.Helper()
		got := values(dir)
		d.t.Logf("  %-40s %s", got, strings.TrimPrefix(dir, "/sys/fs/cgroup"))
		if got != want {
			d.t.Errorf("%s: weight; quota; memory; swap; killed together = %s, want %s", dir, got, want)
		}
	}
	// All pods may have what the node can give them: two processors, and its memory, of which nothing is reserved.
	memory := strings.TrimSpace(d.sh("awk '/^MemTotal:/ {printf \"%d\", $2 * 1024}' /proc/meminfo"))
	check("/sys/fs/cgroup/kubepods.slice", "79; max 100000; "+memory+"; max; 0")
	check("/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice", "6; max 100000; max; max; 0")
	check("/sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice", "1; max 100000; max; max; 0")
	for _, c := range []struct{ name, values string }{
		{"guaranteed-edge", "10; 25000 100000; 33554432"},
		{"burstable-edge", "4; 50000 100000; 67108864"},
		{"assigned", "2; max 100000; max"},
		{"besteffort-edge", "1; max 100000; max"},
	} {
		p := pods[c.name]
		check(slice(p), c.values+"; max; 0")
		id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
		scope := path.Join(slice(p), "cri-containerd-"+id+".scope")
		// No container swaps, and one whose memory runs out ends as a whole.
		check(scope, c.values+"; 0; 1")
		if procs := d.sh("cat " + scope + "/cgroup.procs"); procs == "" {
			d.t.Errorf("%s: processes in %s = %q, want some", c.name, scope, procs)
		}
	}
}

// TestDevice: edgecore as a service beside Debian's containerd, with systemd's cgroups. It is killed, its
// machine loses its power and its network, and starts again: the pods are there, no matter who had brought them.
func TestDevice(t *testing.T) {
	d := newDevice(t, vm.AMD64)
	anything := func(string) bool { return true }
	first := d.running("first start", 0, anything)
	d.checkCgroups(first)

	pid := d.sh("systemctl show -P MainPID edgecore")
	d.sh("systemctl kill -s KILL edgecore")
	wait.Until(t, "edgecore to be started again", func() error {
		if now := d.sh("systemctl show -P MainPID edgecore"); now == "0" || now == pid {
			return errors.New("edgecore was killed and is not started again")
		}
		return nil
	})
	adopted := d.running("edgecore was killed", 0, func(id string) bool {
		return slices.Contains(containers(first), id)
	})

	d.sh("sync") // what was not on the disk is another test's subject
	if err := d.Cut(); err != nil {
		t.Fatal(err)
	}
	d.SetNetwork(false)
	if err := d.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if links := d.sh("ls /sys/class/net | grep -v -e lo -e cni0 -e veth || true"); links != "" {
		t.Errorf("network links = %q, want none", links)
	}
	cut := d.running("power cut, and no network", 1, func(id string) bool {
		return !slices.Contains(containers(adopted), id)
	})

	if err := d.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := d.running("reboot with no network", 2, func(id string) bool {
		return !slices.Contains(containers(cut), id)
	})
	d.checkCgroups(back)
	t.Logf("edgecore status:\n%s", d.sh("edgecore status || true"))

	// What is no longer wanted goes, with its cgroup.
	gone := slice(back["guaranteed-edge"])
	d.sh("rm /etc/edgecore/manifests/guaranteed.yaml")
	wait.Until(t, "the cgroup of a removed pod to be gone", func() error {
		if out, err := d.Run(t.Context(), "test", "!", "-e", gone); err != nil {
			return fmt.Errorf("%s is still there: %w %s", gone, err, out)
		}
		return nil
	})
	if out := d.sh("systemctl list-units --all --plain --no-legend 'kubepods*' | grep -c failed || true"); out != "0" {
		t.Errorf("%s units of pods have failed, want 0", out)
	}
}
