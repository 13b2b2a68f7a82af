package conformance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// patience bounds every wait: many rows run at once, on machines that are shared.
const patience = 3 * time.Minute

// soon is long enough for what is to end after some seconds, on a machine that is busy; what is not cut short takes longer.
const soon = 2 * time.Minute

// The runtimes, which are also the names of the nodes and of their namespaces.
const (
	containerd1 = "containerd1"
	containerd2 = "containerd2"
)

// site is a cluster and its cloudcore.
type site struct {
	kube  *kube.Cluster
	api   kubernetes.Interface
	cloud *cloud.Cloud
}

// node is one edgecore and the runtime under it.
type node struct {
	*agent.Agent
	*site
	t *testing.T
	// name is the node's, and that of the namespace of its pods.
	name string
	ctrd *containerd.Instance
	cri  *cri.Client
}

// newSite starts a cluster and a cloudcore.
func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{kube: kube.Start(t, kube.Options{ControllerManager: true, APIServerFlags: []string{
		"--feature-gates=ContainerStopSignals=true,ImageVolumeWithDigest=true,ClusterTrustBundle=true,ClusterTrustBundleProjection=true",
		"--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true"}})}
	s.api = s.kube.Client()
	s.cloud = cloud.Install(t, s.kube, cloud.InstallOptions{Binary: built.Cloud, Manifests: *manifests})
	return s
}

// startNode starts a containerd and an edgecore that joins, and waits until the node is Ready.
func (s *site) startNode(t *testing.T, name string) *node {
	t.Helper()
	n := &node{site: s, t: t, name: name}
	n.ctrd = testenv.StartContainerd(t, testenv.Options{Containerd2: name == containerd2, OwnUsers: name == containerd2})
	n.Agent = testenv.StartAgent(t, n.ctrd, agent.Options{
		Binary: built.Edge, NodeName: name,
		EdgeHub: s.cloud.EdgeHub(t),
		Kubelet: map[string]any{"nodeStatusUpdateFrequency": "5s", "maxPods": 500,
			"allowedUnsafeSysctls": []string{"net.core.somaxconn", "kernel.msg*"}, "clusterDNS": []string{"10.96.0.10"}, "clusterDomain": "cluster.local"},
	})
	t.Cleanup(func() { checkLog(t, n.Log()) })
	n.cri = testenv.Dial(t, n.ctrd)
	must(t, s.kube.Apply(t.Context(), "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+name+"}\n"))
	until(t, "the default service account", func() error {
		_, err := s.api.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	until(t, "the node is Ready", n.ready)
	return n
}

func (n *node) ready() error {
	obj, err := n.api.CoreV1().Nodes().Get(n.t.Context(), n.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range obj.Status.Conditions {
		if c.Type == v1.NodeReady && c.Status == v1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("node %s is not Ready: %+v", n.name, obj.Status.Conditions)
}

// nothingLeft checks that no folder, mount, log, cgroup or sandbox of any pod is there. What else a runtime may
// leave (processes, network namespaces) is checked when it ends.
func (n *node) nothingLeft() {
	n.t.Helper()
	until(n.t, "nothing is left", func() error {
		for _, dir := range []string{filepath.Join(n.Dir, "root", "pods"), n.PodLogs()} {
			entries, err := os.ReadDir(dir)
			if err != nil && !os.IsNotExist(err) {
				return err
			}
			if len(entries) > 0 {
				tree, err := exec.Command("find", filepath.Join(dir, entries[0].Name()), "-ls").CombinedOutput()
				return fmt.Errorf("%s is left (%v):\n%s", entries[0].Name(), err, tree)
			}
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return err
		}
		if i := strings.Index(string(mounts), filepath.Join(n.Dir, "root")+"/"); i >= 0 {
			line, _, _ := strings.Cut(string(mounts[i:]), "\n")
			return fmt.Errorf("still mounted: %s", line)
		}
		if groups, err := n.ctrd.PodCgroups(); err != nil || len(groups) > 0 {
			return fmt.Errorf("cgroups left: %v, %w", groups, err)
		}
		boxes, err := n.cri.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{})
		if err == nil && len(boxes.Items) > 0 {
			err = fmt.Errorf("%d sandboxes are left", len(boxes.Items))
		}
		return err
	})
}

// checkLog fails the test when a program has panicked, or raced (where it was built to tell).
func checkLog(t *testing.T, path string) {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"DATA RACE", "panic", "goroutine 1 ["} {
		if i := strings.Index(string(data), bad); i >= 0 {
			t.Errorf("%s has %q:\n%.3000s", path, bad, data[max(0, i-200):])
		}
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
