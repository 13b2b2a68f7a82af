package kube_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const node = `
apiVersion: v1
kind: Node
metadata: {name: edge-1}
`

const nodeStatus = `{"status":{
	"capacity":{"cpu":"2","memory":"1Gi","pods":"20"}, "allocatable":{"cpu":"2","memory":"1Gi","pods":"20"},
	"conditions":[{"type":"Ready","status":"True","reason":"Test","lastHeartbeatTime":%[1]q,"lastTransitionTime":%[1]q}]}}`

const workload = `
apiVersion: v1
kind: Namespace
metadata: {name: plant}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: pump, namespace: plant}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: pump, namespace: plant}
spec:
  replicas: 1
  selector: {matchLabels: {app: pump}}
  template:
    metadata: {labels: {app: pump}}
    spec:
      serviceAccountName: pump
      containers: [{name: pump, image: example.com/pump:1}]
`

// timing prints how long each step of a test took.
type timing struct {
	t    *testing.T
	last time.Time
}

func (s *timing) step(what string) {
	s.t.Logf("%-44s %7.2f s", what, time.Since(s.last).Seconds())
	s.last = time.Now()
}

// A Deployment becomes a pod on a node that only the API knows, and all of it is there after
// kube-apiserver has ended in its own way, has been killed, and has hung.
func TestClusterRunsADeployment(t *testing.T) {
	t.Parallel()
	steps := &timing{t: t, last: time.Now()}
	c := kube.Start(t, kube.Options{ControllerManager: true, Scheduler: true,
		NodeMonitorGracePeriod: 30 * time.Minute}) // the node is silent
	steps.step("etcd, apiserver, controller-manager, scheduler")
	kubectl := kubectlOf(t, c)
	apply(t, c, node)
	kubectl("patch", "node", "edge-1", "--subresource=status", "-p",
		fmt.Sprintf(nodeStatus, time.Now().UTC().Format(time.RFC3339)))
	steps.step("a Ready node by kubectl")
	apply(t, c, workload)
	pod := boundPod(t, c)
	steps.step("a Deployment by kubectl, its pod bound")
	if pod.Spec.ServiceAccountName != "pump" {
		t.Errorf("the pod's service account is %q, want pump", pod.Spec.ServiceAccountName)
	}
	for _, again := range []struct {
		how string
		do  func(context.Context) error
	}{
		{"kube-apiserver restarted", c.APIServer.Restart},
		{"kube-apiserver killed and started", func(ctx context.Context) error {
			return errors.Join(c.APIServer.Kill9(ctx), c.APIServer.Start(ctx))
		}},
		{"kube-apiserver paused and resumed", func(ctx context.Context) error { return pause(t, c) }},
		{"etcd killed and started", func(ctx context.Context) error {
			return errors.Join(c.Etcd.Kill9(ctx), c.Etcd.Start(ctx))
		}},
	} {
		url := c.URL()
		if err := again.do(t.Context()); err != nil {
			t.Fatal(err)
		}
		steps.step(again.how)
		if c.URL() != url {
			t.Errorf("%s: URL = %s, want %s", again.how, c.URL(), url)
		}
		if after := boundPod(t, c); after.UID != pod.UID {
			t.Errorf("%s: UID of the pod = %s, want %s", again.how, after.UID, pod.UID)
		}
	}
	// The controller manager and the scheduler have found the new apiserver.
	kubectl("-n", "plant", "delete", "pod", pod.Name, "--grace-period=0", "--force")
	wait.Until(t, "another pod", func() error {
		if next := boundPod(t, c); next.UID == pod.UID {
			return errors.New("the deleted pod is there")
		}
		return nil
	})
	steps.step("the pod deleted, another one bound")
	for _, p := range []*kube.Component{c.Etcd, c.APIServer, c.ControllerManager, c.Scheduler} {
		t.Logf("%-24s %4d MB resident", p.Name, residentMB(t, p.PID()))
	}
}

// pause makes the apiserver hang, sees that a client waits in vain, and lets it go on.
func pause(t *testing.T, c *kube.Cluster) error {
	if err := c.APIServer.Pause(t.Context()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.Client().CoreV1().Nodes().Get(ctx, "edge-1", metav1.GetOptions{}); err == nil {
		t.Error("Get from a paused API server = nil, want an error")
	}
	return c.APIServer.Resume()
}

// boundPod waits until the Deployment has one pod with a node.
func boundPod(t *testing.T, c *kube.Cluster) *v1.Pod {
	t.Helper()
	var found *v1.Pod
	wait.Until(t, "a pod with a node", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // a call that hangs is made again
		defer cancel()
		pods, err := c.Client().CoreV1().Pods("plant").List(ctx, metav1.ListOptions{LabelSelector: "app=pump"})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].Spec.NodeName != "edge-1" {
			return fmt.Errorf("want one pod, on edge-1; there are %d", len(pods.Items))
		}
		found = &pods.Items[0]
		return nil
	})
	return found
}

// Two clusters know nothing of each other, and the end of one leaves the other as it was.
func TestClustersDoNotMeet(t *testing.T) {
	t.Parallel()
	first, err := kube.Launch(t.Context(), kube.Options{})
	if err != nil {
		t.Fatal(err)
	}
	second := kube.Start(t, kube.Options{})
	apply(t, first, node)
	if _, err := second.Client().CoreV1().Nodes().Get(t.Context(), "edge-1",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get of the first cluster's node from the second: %v, want that it is not found", err)
	}
	processes := []*kube.Component{first.Etcd, first.APIServer}
	if err := useCertificateOf(t, first, second); !apierrors.IsUnauthorized(err) {
		t.Errorf("the second cluster, asked by the first one's admin: %v, want Unauthorized", err)
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if p.Running() {
			t.Errorf("%s: Running() after Stop = true, want false", p.Name)
		}
	}
	if _, err := os.Stat(filepath.Dir(first.Kubeconfig(kube.AdminUser))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of the stopped cluster: %v, want that it is gone", err)
	}
	apply(t, second, node)
}

// useCertificateOf asks a cluster for its nodes with the certificate of another's admin.
func useCertificateOf(t *testing.T, other, asked *kube.Cluster) error {
	t.Helper()
	config, err := asked.ConfigFor(kube.AdminUser)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := other.ConfigFor(kube.AdminUser)
	if err != nil {
		t.Fatal(err)
	}
	config.CertData, config.KeyData = theirs.CertData, theirs.KeyData
	connection, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer utilnet.CloseIdleConnectionsFor(connection.Transport)
	client, err := kubernetes.NewForConfigAndClient(config, connection)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	return err
}

// The users are who they say, with the rights that RBAC and the node authorizer give them.
func TestUsers(t *testing.T) {
	t.Parallel()
	c := kube.Start(t, kube.Options{})
	kubectl := kubectlOf(t, c)
	apply(t, c, node)
	cloudcore := clientOf(t, c, kube.CloudCoreUser)
	if _, err := cloudcore.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("cloudcore lists nodes without a role: %v, want that it is forbidden", err)
	}
	kubectl("create", "clusterrole", "reader", "--verb=list", "--resource=pods")
	kubectl("create", "clusterrolebinding", "cloudcore", "--clusterrole=reader", "--user="+kube.CloudCoreUser)
	wait.Until(t, "cloudcore's role", func() error {
		_, err := cloudcore.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		return err
	})

	if _, err := c.AddUser("system:node:edge-1", "system:nodes"); err != nil {
		t.Fatal(err)
	}
	edge := clientOf(t, c, "system:node:edge-1")
	label := func(name string) error {
		_, err := edge.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType,
			[]byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
		return err
	}
	wait.Until(t, "the node's right to update itself", func() error { return label("edge-1") })
	apply(t, c, strings.ReplaceAll(node, "edge-1", "edge-2"))
	if err := label("edge-2"); !apierrors.IsForbidden(err) {
		t.Errorf("edge-1 updates edge-2: %v, want that it is forbidden", err)
	}

	kubectl("create", "serviceaccount", "cloudcore", "-n", "kube-system")
	if _, err := c.AddServiceAccount(t.Context(), "kube-system", "cloudcore"); err != nil {
		t.Fatal(err)
	}
	kubectl("create", "clusterrolebinding", "account", "--clusterrole=reader", "--serviceaccount=kube-system:cloudcore")
	account := clientOf(t, c, "kube-system:cloudcore")
	wait.Until(t, "the role of the service account", func() error {
		_, err := account.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		return err
	})
}

// A cluster whose owner was killed is removed by the next start of any other.
func TestSweep(t *testing.T) {
	if os.Getenv("KUBE_ORPHAN") != "" {
		c, err := kube.Launch(t.Context(), kube.Options{})
		if err != nil {
			t.Fatal(err)
		}
		guest := host(t, c, filepath.Join(os.TempDir(), "guest"))
		fmt.Printf("orphan %s %d %d %d\n", c.Kubeconfig(kube.AdminUser), c.Etcd.PID(), c.APIServer.PID(), guest)
		os.Exit(3)
	}
	t.Setenv("TMPDIR", t.TempDir()) // where nobody else sweeps
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSweep$")
	cmd.Env = append(os.Environ(), "KUBE_ORPHAN=1")
	out, err := cmd.Output()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 3 {
		t.Fatalf("the orphan's owner: %v, want exit code 3\n%s", err, out)
	}
	var path string
	var etcd, apiServer, guest int
	if _, err := fmt.Sscanf(string(out), "orphan %s %d %d %d", &path, &etcd, &apiServer, &guest); err != nil {
		t.Fatalf("output of the orphan's owner = %q: %v, want no error", out, err)
	}
	var left []daemon.Identity
	for _, pid := range []int{etcd, apiServer, guest} {
		id, err := daemon.Identify(pid)
		if err != nil {
			t.Fatalf("Identify(%d) of the orphan: %v, want no error", pid, err)
		}
		left = append(left, id)
	}
	if err := kube.Sweep(); err != nil {
		t.Fatal(err)
	}
	for _, id := range left {
		if id.Alive() {
			t.Errorf("process %d (%s) of the orphan: Alive() = true, want false", id.PID, id.Command())
		}
	}
	for _, dir := range []string{filepath.Dir(path), filepath.Join(os.TempDir(), "guest")} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("folder %s of the orphan: %v, want that it is gone", dir, err)
		}
	}
}

// host starts a program with a mount below its folder as a guest of a cluster, and returns its pid.
func host(t *testing.T, c *kube.Cluster, dir string) int {
	t.Helper()
	volume := filepath.Join(dir, "volume")
	if err := os.MkdirAll(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", volume, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	proc, err := daemon.Start(filepath.Join(dir, "log"), nil, "sleep", "3600")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Host("guest", kube.Guest{Process: proc.Identity, Dir: dir}); err != nil {
		t.Fatal(err)
	}
	return proc.PID
}

// An apiserver that cannot start is reported with its output, and nothing of the cluster is left.
func TestLaunchFails(t *testing.T) {
	before := clusterDirs(t)
	_, err := kube.Launch(t.Context(), kube.Options{APIServerFlags: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "kube-apiserver of cluster") ||
		!strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("error = %v, want one that names kube-apiserver and the flag", err)
	}
	if after := clusterDirs(t); after != before {
		t.Errorf("folders of clusters = %s, want %s", after, before)
	}
}

// clusterDirs are the folders of the clusters that this process owns.
func clusterDirs(t *testing.T) string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), "edgecore-kube-????????"))
	if err != nil {
		t.Fatal(err)
	}
	var own []string
	for _, dir := range dirs {
		data, err := os.ReadFile(filepath.Join(dir, "cluster.json"))
		if err == nil && strings.Contains(string(data), fmt.Sprintf(`"pid": %d,`, os.Getpid())) {
			own = append(own, dir)
		}
	}
	return strings.Join(own, " ")
}

func kubectlOf(t *testing.T, c *kube.Cluster) func(args ...string) string {
	return func(args ...string) string {
		t.Helper()
		out, err := c.Kubectl(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

func apply(t *testing.T, c *kube.Cluster, manifests string) {
	t.Helper()
	if err := c.Apply(t.Context(), manifests); err != nil {
		t.Fatal(err)
	}
}

func clientOf(t *testing.T, c *kube.Cluster, user string) kubernetes.Interface {
	t.Helper()
	client, err := c.ClientFor(user)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func residentMB(t *testing.T, pid int) (mb int) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			if _, err := fmt.Sscan(rest, &mb); err != nil {
				t.Fatal(err)
			}
		}
	}
	return mb / 1024
}
