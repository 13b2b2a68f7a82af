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
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/metricsserver"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var built = programs.Flags()

var manifests = flag.String("manifests", filepath.Join("..", "..", "deploy", "cloudcore"),
	"the folder of cloudcore's manifests")

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// fixture is a cluster and its cloudcore.
type fixture struct {
	*env.Cluster
	// stopping is held while the cloudcore is stopped, which each of the nodes may ask for.
	stopping sync.Mutex
	// metricsServer starts metrics-server, unless it runs.
	metricsServer func() error
}

func (f *fixture) stopCloud(ctx context.Context) error {
	f.stopping.Lock()
	defer f.stopping.Unlock()
	return f.Cloud.Stop(ctx)
}

// node is one edgecore, in whose namespace of the same name its pods are.
type node struct {
	*env.Node
	t *testing.T
	*fixture
	kube *kube.Cluster
	api  kubernetes.Interface
}

// start starts a cluster whose nodes are reached directly: no NAT is between them and cloudcore.
func start(t *testing.T) *fixture {
	t.Helper()
	return startWith(t, env.ClusterOptions{
		Address: v1alpha1.HostIP(),
		Modules: map[string]any{"cloudStream": map[string]any{"tunnel": v1alpha1.TunnelAuto}},
	})
}

// startWith starts a cluster, whose manifests and flags of kube-apiserver are set here.
func startWith(t *testing.T, opts env.ClusterOptions) *fixture {
	t.Helper()
	opts.Manifests = *manifests
	opts.Kube.ControllerManager, opts.Kube.Aggregation = true, true
	opts.Kube.APIServerFlags = []string{
		"--kubelet-preferred-address-types=InternalIP", // the name of a node is no name that can be looked up
		"--feature-gates=PodLogsQuerySplitStreams=true",
	}
	cluster := env.StartCluster(t, built, opts)
	return &fixture{Cluster: cluster, metricsServer: metricsserver.Lazy(t, cluster.Kube)}
}

// startNode starts a runtime and an edgecore that joins, with nothing set of the kubelet's API but its port.
func (f *fixture) startNode(t *testing.T, name string, runtime testenv.Options) *node {
	t.Helper()
	n := f.startNodeWith(t, name, env.NodeOptions{Runtime: runtime})
	f.With(t).NodeUntil(name, "to have its port", func(obj *v1.Node) error {
		if port := obj.Status.DaemonEndpoints.KubeletEndpoint.Port; port != int32(n.KubeletPort) {
			return fmt.Errorf("its port is %d, want %d", port, n.KubeletPort)
		}
		return nil
	})
	return n
}

// startNodeWith does so with other options.
func (f *fixture) startNodeWith(t *testing.T, name string, opts env.NodeOptions) *node {
	t.Helper()
	c := f.With(t)
	c.Namespace(name)
	return &node{Node: c.StartNode(t, name, opts), t: t, fixture: f, kube: f.Kube, api: f.API}
}

// pod makes a pod of one container that runs a shell script.
func (n *node) pod(name, script string, change ...func(*v1.Pod)) {
	n.t.Helper()
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.NodeName, Name: name}, Spec: v1.PodSpec{
			NodeName: n.NodeName, TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []v1.Container{
				{Name: "main", Image: "edgecore.local/demo:1", Command: []string{"sh", "-c", script}},
			},
		},
	}
	for _, c := range change {
		c(p)
	}
	_, err := n.api.CoreV1().Pods(n.NodeName).Create(n.t.Context(), p, metav1.CreateOptions{})
	env.Must(n.t, err)
}

// until waits for a pod to be as a check wants it.
func (n *node) until(t *testing.T, name string, check func(p *v1.Pod) bool) {
	t.Helper()
	wait.Until(t, name, func() error {
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
	c := &call{Cmd: exec.CommandContext(wait.Context(t), n.kube.KubectlPath(), append([]string{
		"--kubeconfig", n.kube.Kubeconfig(kube.AdminUser), "--cache-dir", filepath.Join(n.Dir, "kubectl-cache"), "-n",
		n.NodeName}, args...)...)}
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
		t.Errorf("%s: %v\nprinted %.2000q, want %.2000q\n%s", strings.Join(c.Args[7:], " "), err, c.out.String(), out,
			c.errOut.String())
	}
}

// untilPrints runs a kubectl again and again until it prints just this.
func (n *node) untilPrints(t *testing.T, out string, args ...string) {
	t.Helper()
	wait.Until(t, strings.Join(args, " "), func() error {
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
	if err := c.Run(); err == nil || c.ProcessState.ExitCode() != code ||
		!strings.Contains(c.errOut.String(), complaint) {
		t.Errorf("%s: %v (%q), want %d and %q", strings.Join(c.Args[7:], " "), err, c.errOut.String(), code, complaint)
	}
}
