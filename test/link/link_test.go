// Package link shows the promises of the link on real parts: a Kubernetes cluster, a cloudcore, a cable that can be
// pulled, a containerd and an edgecore, each of a test's own.
package link

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
)

// patience bounds every wait: these machines are shared.
const patience = 90 * time.Second

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// site is all of it: the cluster with its cloudcore, and one edge at the end of a cable.
type site struct {
	t     *testing.T
	kube  *kube.Cluster
	api   kubernetes.Interface
	cloud *cloud.Cloud
	cable *proxy.Proxy
	edge  *agent.Agent
	ctrd  *containerd.Instance
	cri   *cri.Client
}

// node is the edge's name.
const node = "edge-1"

// siteOptions say what a test wants otherwise.
type siteOptions struct {
	kube kube.Options
	hub  map[string]any
	// edgeHub are more keys of the edge's modules.edgeHub.
	edgeHub map[string]any
	// noEdge leaves the edge to the test.
	noEdge bool
}

// newSite starts everything, and waits until the node is Ready.
func newSite(t *testing.T, opts siteOptions) *site {
	t.Helper()
	opts.kube.ControllerManager, opts.kube.Scheduler = true, true
	s := &site{t: t, kube: kube.Start(t, opts.kube)}
	s.api = s.kube.Client()
	s.install()
	s.startCloud(opts.hub)
	if opts.noEdge {
		return s
	}
	s.startEdge(opts.edgeHub)
	s.until("the node is Ready", s.nodeReady)
	return s
}

// install applies the manifests of deploy/cloudcore that a cluster needs, but the Deployment: cloudcore runs beside it.
func (s *site) install() {
	s.t.Helper()
	s.must(s.kube.Apply(s.t.Context(), "apiVersion: v1\nkind: Namespace\nmetadata: {name: kubeedge}\n"))
	for _, what := range [][2]string{{"-f", "rbac.yaml"}, {"-k", "crds"}} { // the rules first: they take effect a moment later
		if out, err := s.kube.Kubectl(s.t.Context(), "apply", what[0], filepath.Join("..", "..", "deploy", "cloudcore", what[1])); err != nil {
			s.t.Fatal(out, err)
		}
	}
	s.until("the default service account", func() error {
		_, err := s.api.CoreV1().ServiceAccounts("default").Get(s.t.Context(), "default", metav1.GetOptions{})
		return err
	})
}

func (s *site) startCloud(hub map[string]any) {
	s.t.Helper()
	kubeconfig, err := s.kube.AddServiceAccount(s.t.Context(), "kubeedge", "cloudcore")
	if err != nil {
		s.t.Fatal(err)
	}
	if s.cloud, err = cloud.New(cloud.Options{Binary: built.Cloud, Dir: filepath.Join(s.t.TempDir(), "cloud"), Kubeconfig: kubeconfig, Hub: hub}); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("the end of cloudcore's log:\n%s", daemon.Tail(s.cloud.Log(), 60))
		}
		s.must(s.cloud.Stop(context.Background()))
		s.checkLog(s.cloud.Log())
	})
	s.must(s.cloud.Start(s.t.Context()))
	if s.cable, err = proxy.Start(net.JoinHostPort("127.0.0.1", strconv.Itoa(s.cloud.Link))); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.must(s.cable.Close()) })
}

// startEdge starts a containerd and an edgecore that joins through the cable.
func (s *site) startEdge(more map[string]any) {
	s.t.Helper()
	token, err := s.cloud.Token(s.t.Context())
	s.must(err)
	hub := map[string]any{
		"enable": true, "heartbeat": 2, "token": token,
		"httpServer": "https://127.0.0.1:" + strconv.Itoa(s.cloud.Bootstrap),
		"websocket":  map[string]any{"enable": true, "server": s.cable.Addr()},
	}
	for k, v := range more {
		hub[k] = v
	}
	s.ctrd = testenv.StartContainerd(s.t, testenv.Options{})
	s.edge = testenv.StartAgent(s.t, s.ctrd, agent.Options{
		Binary: built.Edge, NodeName: node, EdgeHub: hub, Kubelet: map[string]any{"nodeStatusUpdateFrequency": "2s", "syncFrequency": "5s"},
	})
	s.t.Cleanup(func() { s.checkLog(s.edge.Log()) })
	s.cri = testenv.Dial(s.t, s.ctrd)
}

// checkLog fails the test when a program has panicked, or raced (where it was built to tell).
func (s *site) checkLog(path string) {
	data, err := os.ReadFile(path)
	if err != nil {
		s.t.Error(err)
	}
	for _, bad := range []string{"DATA RACE", "panic", "goroutine 1 ["} {
		if i := strings.Index(string(data), bad); i >= 0 {
			s.t.Errorf("%s has %q:\n%.3000s", path, bad, data[max(0, i-200):])
		}
	}
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// until waits until a check is content.
func (s *site) until(what string, check func() error) {
	s.t.Helper()
	testenv.Poll(s.t, patience, func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

func (s *site) nodeReady() error {
	n, err := s.api.CoreV1().Nodes().Get(s.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			if c.Status == v1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("node is %s: %s", c.Status, c.Message)
		}
	}
	return fmt.Errorf("node has no condition Ready")
}

// apply does kubectl apply.
func (s *site) apply(manifest string) {
	s.t.Helper()
	s.must(s.kube.Apply(s.t.Context(), manifest))
}

func (s *site) kubectl(args ...string) string {
	s.t.Helper()
	out, err := s.kube.Kubectl(s.t.Context(), args...)
	if err != nil {
		s.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (s *site) pod(name string) (*v1.Pod, error) {
	return s.api.CoreV1().Pods("default").Get(s.t.Context(), name, metav1.GetOptions{})
}

// running checks that pods are Ready, as the API server has them.
func (s *site) running(names ...string) func() error {
	return func() error {
		for _, name := range names {
			p, err := s.pod(name)
			if err != nil {
				return err
			}
			if !ready(p) {
				return fmt.Errorf("pod %s is %s: %v", name, p.Status.Phase, p.Status.ContainerStatuses)
			}
		}
		return nil
	}
}

func ready(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodRunning && slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

func (s *site) gone(names ...string) func() error {
	return func() error {
		for _, name := range names {
			if _, err := s.pod(name); !apierrors.IsNotFound(err) {
				return fmt.Errorf("pod %s is still there (%v)", name, err)
			}
		}
		return nil
	}
}

// lives are the running containers of pods, by id, with their start times.
func (s *site) lives() map[string]int64 {
	s.t.Helper()
	list, err := s.cri.ListContainers(s.t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	s.must(err)
	lives := map[string]int64{}
	for _, c := range list.Containers {
		st, err := s.cri.ContainerStatus(s.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.Id})
		if status.Code(err) == codes.NotFound {
			continue // it was removed meanwhile
		}
		s.must(err)
		lives[c.Id] = st.Status.StartedAt
	}
	return lives
}

// exec runs a command in the container of a pod, and returns what it prints.
func (s *site) exec(pod string, command ...string) (string, error) {
	list, err := s.cri.ListContainers(s.t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{"io.kubernetes.pod.name": pod},
	}})
	if err != nil || len(list.Containers) == 0 {
		return "", fmt.Errorf("pod %s runs no container: %w", pod, err)
	}
	out, err := s.cri.ExecSync(s.t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: list.Containers[0].Id, Cmd: command, Timeout: 10})
	if err != nil {
		return "", err
	}
	return string(out.Stdout) + string(out.Stderr), nil
}

// forever is a script that ends at once when it is told to.
const forever = "trap 'exit 0' TERM; while true; do sleep 1 & wait; done"

// podOn is the manifest of a pod bound to the edge by its nodeName.
func podOn(name, script, more string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
%s
  containers:
  - name: main
    image: edgecore.local/demo:1
    imagePullPolicy: IfNotPresent
    command: [sh, -c, %q]
`, name, node, more, script)
}

// cloudLogs checks that cloudcore has logged something.
func (s *site) cloudLogs(text string) {
	s.t.Helper()
	data, err := os.ReadFile(s.cloud.Log())
	s.must(err)
	if !strings.Contains(string(data), text) {
		s.t.Errorf("cloudcore did not log %s:\n%s", text, daemon.Tail(s.cloud.Log(), 10))
	}
}
