// Package kubeedge shows that users of KubeEdge can move over one half at a time: KubeEdge's own edgecore at our
// cloudcore, our edgecore at KubeEdge's cloudcore, and a device of KubeEdge that is taken over and given back. What the
// wire looks like is the subject of test/wire; here both ends are real.
package kubeedge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/kubeedge"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// node is the edge's name.
const node = "edge-1"

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// fixture is a cluster with a machine at its edge; the two programs between them are the test's.
type fixture struct {
	t       *testing.T
	version string
	kube    *kube.Cluster
	api     kubernetes.Interface
	ctrd    *containerd.Instance
	cri     *cri.Client
	// made are the machine's own folders in which KubeEdge 1.12 writes whatever its configuration says.
	made map[string]bool
	// devices switches devices on at KubeEdge's edge.
	devices bool
	// stream is the cloud's port for the stream tunnel of KubeEdge's edge; 0 is none.
	stream int
	// workDir is where documented commands run.
	workDir string
	// theirEdge and theirCloud are KubeEdge's programs.
	theirEdge, theirCloud string
}

func newFixture(t *testing.T, version string) *fixture {
	t.Helper()
	f := &fixture{t: t, version: version, made: map[string]bool{}}
	for _, dir := range []string{"/var/lib/kubeedge", "/var/lib/kubelet"} {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			f.made[dir] = true
		}
	}
	t.Cleanup(func() {
		for dir := range f.made {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
	})
	var err error
	if f.theirEdge, f.theirCloud, err = kubeedge.Build(t.Context(), version, os.Stderr); err != nil {
		t.Fatal(err)
	}
	f.kube = kube.Start(t, kube.Options{
		ControllerManager: true, Scheduler: true,
		APIServerFlags: []string{"--kubelet-preferred-address-types=InternalIP"},
	})
	f.api = f.kube.Client()
	// each with a containerd of its time
	f.ctrd = testenv.StartContainerd(t, testenv.Options{Containerd2: version != "1.12"})
	f.cri = testenv.Dial(t, f.ctrd)
	wait.Until(f.t, "the default service account", func() error {
		_, err := f.api.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return f
}

// theirs makes KubeEdge's edge, which is to join a cloud.
func (f *fixture) theirs(dir, token string, link, bootstrap int) *kubeedge.Edge {
	f.t.Helper()
	e, err := kubeedge.NewEdge(f.t.Context(), kubeedge.EdgeOptions{
		Binary: f.theirEdge, Dir: dir, NodeName: node, Endpoint: f.ctrd.Endpoint(), CgroupRoot: f.ctrd.CgroupRoot(),
		Link: link, Bootstrap: bootstrap, Token: token, Devices: f.devices,
		Stream: f.stream,
	})
	env.Must(f.t, err)
	return e
}

// joinTheirs starts KubeEdge's edge at a cloud.
func (f *fixture) joinTheirs(token string, link, bootstrap int) *kubeedge.Edge {
	f.t.Helper()
	e := f.theirs(filepath.Join(f.t.TempDir(), "edge"), token, link, bootstrap)
	f.t.Cleanup(func() {
		if f.t.Failed() {
			f.t.Logf("the end of the log of KubeEdge's edgecore:\n%s", daemon.Tail(e.Log(), 40))
		}
		env.Must(f.t, e.Stop(context.Background()))
		env.Must(f.t, agent.Unmount(e.Dir))
	})
	env.Must(f.t, e.Start())
	return e
}

// startTheirCloud starts KubeEdge's cloud, and returns what nodes join with.
func (f *fixture) startTheirCloud() (c *kubeedge.Cloud, token string) {
	f.t.Helper()
	c, err := kubeedge.NewCloud(f.t.Context(), f.version, f.theirCloud, filepath.Join(f.t.TempDir(), "cloud"), f.kube)
	env.Must(f.t, err)
	f.t.Cleanup(func() {
		if f.t.Failed() {
			f.t.Logf("the end of the log of KubeEdge's cloudcore:\n%s", daemon.Tail(c.Log(), 40))
		}
		env.Must(f.t, c.Stop(context.Background()))
	})
	token, err = c.Start(f.t.Context())
	env.Must(f.t, err)
	return c, token
}

// startCloud starts our cloud; hub are more keys of its modules.cloudHub.
func (f *fixture) startCloud(hub map[string]any) (c *cloud.Cloud, token string) {
	f.t.Helper()
	c = cloud.Install(f.t, f.kube, cloud.InstallOptions{Binary: built.Cloud, Hub: hub})
	token, err := c.Token(f.t.Context())
	env.Must(f.t, err)
	return c, token
}

func (f *fixture) nodeReady() error {
	n, err := f.api.CoreV1().Nodes().Get(f.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return env.Ready(n)
}

func (f *fixture) apply(manifest string) {
	f.t.Helper()
	env.Must(f.t, f.kube.Apply(f.t.Context(), manifest))
}

// full are a pod that reads a configmap, a secret and a token, and what it reads.
func full(name string) string {
	return fmt.Sprintf(`
{apiVersion: v1, kind: ConfigMap, metadata: {name: conf}, data: {key: first}}
---
{apiVersion: v1, kind: Secret, metadata: {name: sec}, stringData: {key: hidden}}
---
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: conf, configMap: {name: conf}}
  - {name: sec, secret: {secretName: sec}}
  - {name: scratch, emptyDir: {}}
  containers:
  - name: main
    image: %s
    imagePullPolicy: IfNotPresent
    command: [sh, -c, %q]
    env:
    - {name: FROM, valueFrom: {configMapKeyRef: {name: conf, key: key}}}
    volumeMounts: [{name: conf, mountPath: /conf}, {name: sec, mountPath: /sec}, {name: scratch, mountPath: /scratch}]
    readinessProbe: {periodSeconds: 1, exec: {command: [test, '!', -e, /scratch/unready]}}
`, name, node, images.Demo, env.Forever)
}

func (f *fixture) pod(name string) (*v1.Pod, error) {
	return f.api.CoreV1().Pods("default").Get(f.t.Context(), name, metav1.GetOptions{})
}

// is checks that a pod runs, and is ready or not.
func (f *fixture) is(name string, ready bool) func() error {
	return func() error {
		p, err := f.pod(name)
		if err != nil {
			return err
		}
		f.made[filepath.Join("/var/log/pods", p.Namespace+"_"+name+"_"+string(p.UID))] = true
		got := env.IsReady(p)
		if p.Status.Phase != v1.PodRunning || got != ready {
			return fmt.Errorf("pod %s is %s, ready: %v, want %v: %+v", name, p.Status.Phase, got, ready,
				p.Status.ContainerStatuses)
		}
		return nil
	}
}

// gone waits until the API server has no such pod.
func (f *fixture) gone(name string) {
	f.t.Helper()
	(&env.Cluster{T: f.t, API: f.api}).PodsGone("default", name)
}

// containers are the running ones, by the names of their pods.
func (f *fixture) containers() map[string]string {
	f.t.Helper()
	list, err := f.cri.ListContainers(f.t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		},
	})
	env.Must(f.t, err)
	ids := map[string]string{}
	for _, c := range list.Containers {
		ids[c.Labels["io.kubernetes.pod.name"]] = c.Id
	}
	return ids
}

// sees checks what a pod's container prints.
func (f *fixture) sees(pod, command, want string) func() error {
	return func() error {
		id := f.containers()[pod]
		if id == "" {
			return fmt.Errorf("pod %s runs no container", pod)
		}
		out, err := f.cri.ExecSync(f.t.Context(), &runtimeapi.ExecSyncRequest{
			ContainerId: id, Cmd: []string{"sh", "-c", command}, Timeout: 10,
		})
		if err != nil {
			return err
		}
		if got := strings.TrimSpace(string(out.Stdout) + string(out.Stderr)); got != want {
			return fmt.Errorf("%s: %q, want %q", command, got, want)
		}
		return nil
	}
}

// each runs a test for every version of KubeEdge.
func each(t *testing.T, test func(t *testing.T, version string)) {
	for _, version := range kubeedge.Versions() {
		t.Run(version, func(t *testing.T) { test(t, version) })
	}
}
