// Package kubeedge shows that users of KubeEdge can move over one half at a time: KubeEdge's own edgecore at our cloudcore, our
// edgecore at KubeEdge's cloudcore, and a device of KubeEdge that is taken over and given back. What the wire looks like is the
// subject of test/wire; here both ends are real.
package kubeedge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/kubeedge"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

// patience bounds every wait. KubeEdge's edge looks at a changed configmap once a minute or so.
const patience = 3 * time.Minute

// node is the edge's name.
const node = "edge-1"

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// site is a cluster with a machine at its edge; the two programs between them are the test's.
type site struct {
	t       *testing.T
	version string
	kube    *kube.Cluster
	api     kubernetes.Interface
	ctrd    *containerd.Instance
	cri     *cri.Client
	// made are the machine's own folders in which KubeEdge 1.12 writes whatever its configuration says.
	made map[string]bool
	// theirEdge and theirCloud are KubeEdge's programs.
	theirEdge, theirCloud string
}

func newSite(t *testing.T, version string) *site {
	t.Helper()
	s := &site{t: t, version: version, made: map[string]bool{}}
	for _, dir := range []string{"/var/lib/kubeedge", "/var/lib/kubelet"} {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			s.made[dir] = true
		}
	}
	t.Cleanup(func() {
		for dir := range s.made {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
	})
	var err error
	if s.theirEdge, s.theirCloud, err = kubeedge.Build(t.Context(), version, os.Stderr); err != nil {
		t.Fatal(err)
	}
	s.kube = kube.Start(t, kube.Options{ControllerManager: true, Scheduler: true})
	s.api = s.kube.Client()
	s.ctrd = testenv.StartContainerd(t, testenv.Options{Containerd2: version != "1.12"}) // each with a containerd of its time
	s.cri = testenv.Dial(t, s.ctrd)
	s.until("the default service account", func() error {
		_, err := s.api.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return s
}

// theirs makes KubeEdge's edge, which is to join a cloud.
func (s *site) theirs(dir, token string, link, bootstrap int) *kubeedge.Edge {
	s.t.Helper()
	e, err := kubeedge.NewEdge(s.t.Context(), kubeedge.EdgeOptions{
		Binary: s.theirEdge, Dir: dir, NodeName: node, Endpoint: s.ctrd.Endpoint(), CgroupRoot: s.ctrd.CgroupRoot(),
		Link: link, Bootstrap: bootstrap, Token: token,
	})
	s.must(err)
	return e
}

// joinTheirs starts KubeEdge's edge at a cloud.
func (s *site) joinTheirs(token string, link, bootstrap int) *kubeedge.Edge {
	s.t.Helper()
	e := s.theirs(filepath.Join(s.t.TempDir(), "edge"), token, link, bootstrap)
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("the end of the log of KubeEdge's edgecore:\n%s", daemon.Tail(e.Log(), 40))
		}
		s.must(e.Stop(context.Background()))
		s.must(agent.Unmount(e.Dir))
	})
	s.must(e.Start())
	return e
}

// startTheirCloud starts KubeEdge's cloud, and returns what nodes join with.
func (s *site) startTheirCloud() (c *kubeedge.Cloud, token string) {
	s.t.Helper()
	c, err := kubeedge.NewCloud(s.t.Context(), s.version, s.theirCloud, filepath.Join(s.t.TempDir(), "cloud"), s.kube)
	s.must(err)
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("the end of the log of KubeEdge's cloudcore:\n%s", daemon.Tail(c.Log(), 40))
		}
		s.must(c.Stop(context.Background()))
	})
	token, err = c.Start(s.t.Context())
	s.must(err)
	return c, token
}

// startCloud starts our cloud; hub are more keys of its modules.cloudHub.
func (s *site) startCloud(hub map[string]any) (c *cloud.Cloud, token string) {
	s.t.Helper()
	c = cloud.Install(s.t, s.kube, cloud.InstallOptions{Binary: built.Cloud, Hub: hub})
	token, err := c.Token(s.t.Context())
	s.must(err)
	return c, token
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// until waits until a check is content, and says how long that took.
func (s *site) until(what string, check func() error) {
	s.t.Helper()
	began := time.Now()
	testenv.Poll(s.t, patience, func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
	s.t.Logf("%s: after %v", what, time.Since(began).Round(10*time.Millisecond))
}

func (s *site) nodeReady() error {
	n, err := s.api.CoreV1().Nodes().Get(s.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady && c.Status == v1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("node %s is not Ready: %+v", node, n.Status.Conditions)
}

func (s *site) apply(manifest string) {
	s.t.Helper()
	s.must(s.kube.Apply(s.t.Context(), manifest))
}

// forever is a script that ends at once when it is told to.
const forever = "trap 'exit 0' TERM; while true; do sleep 1 & wait; done"

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
`, name, node, images.Demo, forever)
}

func (s *site) pod(name string) (*v1.Pod, error) {
	return s.api.CoreV1().Pods("default").Get(s.t.Context(), name, metav1.GetOptions{})
}

// is tells whether the API says of a pod's readiness what is wanted.
func (s *site) is(name string, ready bool) func() error {
	return func() error {
		p, err := s.pod(name)
		if err != nil {
			return err
		}
		s.made[filepath.Join("/var/log/pods", p.Namespace+"_"+name+"_"+string(p.UID))] = true
		got := slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
		if p.Status.Phase != v1.PodRunning || got != ready {
			return fmt.Errorf("pod %s is %s, ready: %v, want %v: %+v", name, p.Status.Phase, got, ready, p.Status.ContainerStatuses)
		}
		return nil
	}
}

func (s *site) gone(name string) func() error {
	return func() error {
		if _, err := s.pod(name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod %s is still there (%v)", name, err)
		}
		return nil
	}
}

// containers are the running ones, by the names of their pods.
func (s *site) containers() map[string]string {
	s.t.Helper()
	list, err := s.cri.ListContainers(s.t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	s.must(err)
	ids := map[string]string{}
	for _, c := range list.Containers {
		ids[c.Labels["io.kubernetes.pod.name"]] = c.Id
	}
	return ids
}

// sees checks what a pod's container prints.
func (s *site) sees(pod, command, want string) func() error {
	return func() error {
		id := s.containers()[pod]
		if id == "" {
			return fmt.Errorf("pod %s runs no container", pod)
		}
		out, err := s.cri.ExecSync(s.t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", command}, Timeout: 10})
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
