// Package kubectl shows that kubectl works with pods on an edge node as with any other: through a real kube-apiserver,
// to edgecore's own port, on both runtimes.
package kubectl

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

// patience bounds every wait: these machines are shared.
const patience = 2 * time.Minute

var built = programs.Flags()

var manifests = flag.String("manifests", filepath.Join("..", "..", "deploy", "cloudcore"), "the folder of cloudcore's manifests")

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// site is a cluster and its cloudcore.
type site struct {
	kube  *kube.Cluster
	api   kubernetes.Interface
	cloud *cloud.Cloud
	// stopping is held while the cloudcore is stopped, which each of the nodes may ask for.
	stopping sync.Mutex
}

func (s *site) stopCloud(ctx context.Context) error {
	s.stopping.Lock()
	defer s.stopping.Unlock()
	return s.cloud.Stop(ctx)
}

// node is one edgecore, in whose namespace of the same name its pods are.
type node struct {
	*agent.Agent
	*site
	t *testing.T
}

func newSite(t *testing.T) *site {
	t.Helper()
	// The name of a node is no name that can be looked up.
	s := &site{kube: kube.Start(t, kube.Options{ControllerManager: true, Aggregation: true, APIServerFlags: []string{"--kubelet-preferred-address-types=InternalIP", "--feature-gates=PodLogsQuerySplitStreams=true"}})}
	s.api = s.kube.Client()
	s.cloud = cloud.Install(t, s.kube, cloud.InstallOptions{Binary: built.Cloud, Manifests: *manifests})
	return s
}

// startNode starts a runtime and an edgecore that joins, with nothing set of the kubelet's API but its port.
func (s *site) startNode(t *testing.T, name string, runtime testenv.Options) *node {
	t.Helper()
	n := &node{site: s, t: t}
	n.Agent = testenv.StartAgent(t, testenv.StartContainerd(t, runtime), agent.Options{
		Binary: built.Edge, NodeName: name,
		EdgeHub: s.cloud.EdgeHub(t),
		Kubelet: map[string]any{"nodeStatusUpdateFrequency": "5s"},
	})
	must(t, s.kube.Apply(t.Context(), "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+name+"}\n"))
	until(t, "the default service account", func() error {
		_, err := s.api.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	until(t, "the node is ready, and has its port", func() error {
		obj, err := s.api.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if port := obj.Status.DaemonEndpoints.KubeletEndpoint.Port; port != int32(n.KubeletPort) {
			return fmt.Errorf("port %d, want %d", port, n.KubeletPort)
		}
		if !slices.ContainsFunc(obj.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue }) {
			return fmt.Errorf("not ready: %+v", obj.Status.Conditions)
		}
		return nil
	})
	return n
}

// pod makes a pod of one container that runs a shell script.
func (n *node) pod(name, script string, change ...func(*v1.Pod)) {
	n.t.Helper()
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.NodeName, Name: name}, Spec: v1.PodSpec{
		NodeName: n.NodeName, TerminationGracePeriodSeconds: new(int64(1)),
		Containers: []v1.Container{{Name: "main", Image: "edgecore.local/demo:1", Command: []string{"sh", "-c", script}}},
	}}
	for _, c := range change {
		c(p)
	}
	_, err := n.api.CoreV1().Pods(n.NodeName).Create(n.t.Context(), p, metav1.CreateOptions{})
	must(n.t, err)
}

// until waits for a pod to be as a check wants it.
func (n *node) until(t *testing.T, name string, check func(p *v1.Pod) bool) {
	t.Helper()
	until(t, name, func() error {
		p, err := n.api.CoreV1().Pods(n.NodeName).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !check(p) {
			err = fmt.Errorf("pod %s is %s: %+v", name, p.Status.Phase, p.Status.ContainerStatuses)
		}
		return err
	})
}

func running(p *v1.Pod) bool { return p.Status.Phase == v1.PodRunning }

// call is a kubectl.
type call struct {
	*exec.Cmd
	out, errOut bytes.Buffer
}

// kubectl prepares a kubectl of the admin in the node's namespace. It is ended when it takes too long.
func (n *node) kubectl(t *testing.T, args ...string) *call {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), daemon.Scaled(patience))
	t.Cleanup(cancel)
	c := &call{Cmd: exec.CommandContext(ctx, n.kube.KubectlPath(), append([]string{
		"--kubeconfig", n.kube.Kubeconfig(kube.AdminUser), "--cache-dir", filepath.Join(n.Dir, "kubectl-cache"), "-n", n.NodeName}, args...)...)}
	c.Stdout, c.Stderr = &c.out, &c.errOut
	c.WaitDelay = 5 * time.Second
	return c
}

// input gives a kubectl its input.
func (c *call) input(in io.Reader) *call { c.Stdin = in; return c }

// env has a kubectl speak another protocol.
func (c *call) env(more ...string) *call { c.Env = append(os.Environ(), more...); return c }

// want runs a kubectl that has to succeed and print just this.
func (c *call) want(t *testing.T, out string) {
	t.Helper()
	if err := c.Run(); err != nil || c.out.String() != out {
		t.Errorf("%s: %v\nprinted %.2000q, want %.2000q\n%s", strings.Join(c.Args[7:], " "), err, c.out.String(), out, c.errOut.String())
	}
}

// untilPrints runs a kubectl again and again until it prints just this.
func (n *node) untilPrints(t *testing.T, out string, args ...string) {
	t.Helper()
	until(t, strings.Join(args, " "), func() error {
		c := n.kubectl(t, args...)
		if err := c.Run(); err != nil || c.out.String() != out {
			return fmt.Errorf("%w: %q %s", err, c.out.String(), c.errOut.String())
		}
		return nil
	})
}

// fails runs a kubectl that has to fail with a code and a complaint.
func (c *call) fails(t *testing.T, code int, complaint string) {
	t.Helper()
	if err := c.Run(); err == nil || c.ProcessState.ExitCode() != code || !strings.Contains(c.errOut.String(), complaint) {
		t.Errorf("%s: %v (%q), want %d and %q", strings.Join(c.Args[7:], " "), err, c.errOut.String(), code, complaint)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits until a check is content.
func until(t testing.TB, what string, check func() error) {
	t.Helper()
	testenv.Poll(t, patience, func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}
