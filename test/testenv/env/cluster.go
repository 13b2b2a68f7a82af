package env

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// Cluster is a Kubernetes control plane with a cloudcore, which runs with the rights of deploy/cloudcore and no others.
// Tests that share one take nodes and namespaces of their own.
type Cluster struct {
	T     testing.TB
	Kube  *kube.Cluster
	API   kubernetes.Interface
	Cloud *cloud.Cloud

	built             *programs.Set
	controllerManager bool // which creates service accounts
}

// ClusterOptions say which cluster a test wants. The zero value is etcd and kube-apiserver with a cloudcore.
type ClusterOptions struct {
	Kube kube.Options
	// Address is where nodes reach cloudcore; empty is 127.0.0.1.
	Address string
	// Hub are more keys of cloudcore's modules.cloudHub, Modules those of its modules.
	Hub, Modules map[string]any
	// Manifests is the folder of cloudcore's manifests; empty is the project's, from the folder of a suite.
	Manifests string
}

// StartCluster starts a control plane and a cloudcore, and waits until both are ready.
func StartCluster(t *testing.T, built *programs.Set, opts ClusterOptions) *Cluster {
	t.Helper()
	c := &Cluster{T: t, Kube: kube.Start(t, opts.Kube), built: built, controllerManager: opts.Kube.ControllerManager}
	c.API = c.Kube.Client()
	c.Cloud = cloud.Install(t, c.Kube, cloud.InstallOptions{
		Binary: built.Cloud, Manifests: opts.Manifests, Hub: opts.Hub, Modules: opts.Modules,
		Address: opts.Address,
	})
	c.serviceAccount("default")
	return c
}

// With returns the same cluster for a subtest, which fails instead of the test that started the cluster.
func (c *Cluster) With(t testing.TB) *Cluster {
	sub := *c
	sub.T = t
	return &sub
}

// WithCloud returns the same cluster with another cloudcore, which has the same CA and runs until the test ends.
func (c *Cluster) WithCloud(t testing.TB) *Cluster {
	t.Helper()
	return c.WithCloudOf(t, nil)
}

// WithCloudOf does so with keys of modules.cloudStream that differ.
func (c *Cluster) WithCloudOf(t testing.TB, stream map[string]any) *Cluster {
	t.Helper()
	modules := c.Cloud.Modules
	if stream != nil {
		same, _ := modules["cloudStream"].(map[string]any)
		modules = merged(modules, map[string]any{"cloudStream": merged(same, stream)})
	}
	sub := c.With(t)
	var err error
	sub.Cloud, err = cloud.New(cloud.Options{
		Binary:     c.built.Cloud,
		Dir:        filepath.Join(t.TempDir(), "cloudcore"),
		Kubeconfig: c.Cloud.Kubeconfig,
		Address:    c.Cloud.Address,
		Hub:        c.Cloud.Hub,
		Modules:    modules,
	})
	Must(t, err)
	t.Cleanup(func() {
		if err := sub.Cloud.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		CheckLog(t, sub.Cloud.Log())
		if t.Failed() {
			t.Logf("the end of the log of another cloudcore:\n%s", daemon.Tail(sub.Cloud.Log(), 30))
		}
	})
	Must(t, sub.Cloud.Start(t.Context()))
	return sub
}

// Cable starts a proxy in front of cloudcore's link that a test can cut.
func (c *Cluster) Cable() *proxy.Proxy {
	c.T.Helper()
	cable, err := proxy.Start(net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Cloud.Link)))
	Must(c.T, err)
	c.T.Cleanup(func() { Must(c.T, cable.Close()) })
	return cable
}

// Namespace creates a namespace and waits until pods can be created in it.
func (c *Cluster) Namespace(name string) {
	c.T.Helper()
	c.Apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n")
	c.serviceAccount(name)
}

// serviceAccount waits for the default service account of a namespace, which pods there need.
func (c *Cluster) serviceAccount(namespace string) {
	c.T.Helper()
	if !c.controllerManager {
		c.Apply("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default, namespace: " + namespace + "}\n")
	}
	wait.Until(c.T, "the default service account of "+namespace, func() error {
		_, err := c.API.CoreV1().ServiceAccounts(namespace).Get(c.T.Context(), "default", metav1.GetOptions{})
		return err
	})
}

// StartNode starts a runtime and an edgecore that joins as name, and waits until the API server has it as Ready. Keys
// of opts.Agent.EdgeHub replace those of the link's configuration: "websocket" that of the address to dial, say.
func (c *Cluster) StartNode(t *testing.T, name string, opts NodeOptions) *Node {
	t.Helper()
	opts.Agent.NodeName = name
	opts.Agent.EdgeHub = merged(c.Cloud.EdgeHub(t), opts.Agent.EdgeHub)
	opts.Agent.Kubelet = merged(map[string]any{"nodeStatusUpdateFrequency": "5s"}, opts.Agent.Kubelet)
	n := StartNode(t, c.built, opts)
	c.With(t).NodeUntil(name, "to be Ready", Ready)
	return n
}

// NodeUntil waits until a Node of the API satisfies a check, and returns it.
func (c *Cluster) NodeUntil(name, what string, check func(*v1.Node) error) (node *v1.Node) {
	c.T.Helper()
	wait.Until(c.T, "node "+name+" "+what, func() (err error) {
		if node, err = c.API.CoreV1().Nodes().Get(c.T.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		return check(node)
	})
	return node
}

// Ready checks that a Node has the condition Ready.
func Ready(n *v1.Node) error { return NodeCondition(n, v1.NodeReady, v1.ConditionTrue, "") }

// NodeCondition checks that a Node has a condition with a status, whose message contains a text.
func NodeCondition(n *v1.Node, kind v1.NodeConditionType, status v1.ConditionStatus, message string) error {
	for _, c := range n.Status.Conditions {
		if c.Type == kind && c.Status == status && strings.Contains(c.Message, message) {
			return nil
		}
	}
	return fmt.Errorf("node %s: conditions are %+v, want %s %s with %q", n.Name, n.Status.Conditions, kind, status,
		message)
}

// PodUntil waits until a pod of the API satisfies a check, and returns it.
func (c *Cluster) PodUntil(namespace, name, what string, check func(*v1.Pod) error) (pod *v1.Pod) {
	c.T.Helper()
	wait.Until(c.T, "pod "+namespace+"/"+name+" "+what, func() (err error) {
		if pod, err = c.API.CoreV1().Pods(namespace).Get(c.T.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		return check(pod)
	})
	return pod
}

// PodsRunning waits until the API server has pods of a namespace as running and ready.
func (c *Cluster) PodsRunning(namespace string, names ...string) {
	c.T.Helper()
	for _, name := range names {
		c.PodUntil(namespace, name, "to be ready", RunningPod)
	}
}

// PodsGone waits until the API server has no such pods.
func (c *Cluster) PodsGone(namespace string, names ...string) {
	c.T.Helper()
	for _, name := range names {
		wait.Until(c.T, "pod "+namespace+"/"+name+" to be gone", func() error {
			p, err := c.API.CoreV1().Pods(namespace).Get(c.T.Context(), name, metav1.GetOptions{})
			if err == nil {
				return fmt.Errorf("it is %s, deleted at %v", p.Status.Phase, p.DeletionTimestamp)
			}
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
}

// EventsUntil waits until the API server has an event with a reason, whose "KIND/NAME: MESSAGE" begins with a text.
func (c *Cluster) EventsUntil(reason, begin string) {
	c.T.Helper()
	wait.Until(c.T, "an event "+reason, func() error {
		list, err := c.API.CoreV1().Events("").List(c.T.Context(),
			metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			return err
		}
		all := []string{fmt.Sprintf("none of %d begins with %q", len(list.Items), begin)}
		for _, e := range list.Items {
			text := e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name + ": " + e.Message
			if strings.HasPrefix(text, begin) {
				return nil
			}
			all = append(all, text)
		}
		return errors.New(strings.Join(all, "; "))
	})
}

// Apply does what kubectl apply does.
func (c *Cluster) Apply(manifest string) {
	c.T.Helper()
	Must(c.T, c.Kube.Apply(c.T.Context(), manifest))
}

// Kubectl runs a kubectl of the administrator that must succeed, and returns what it prints.
func (c *Cluster) Kubectl(args ...string) string {
	c.T.Helper()
	out, err := c.Kube.Kubectl(c.T.Context(), args...)
	if err != nil {
		c.T.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// StopCloud stops cloudcore in good order.
func (c *Cluster) StopCloud() {
	c.T.Helper()
	Must(c.T, c.Cloud.Stop(context.WithoutCancel(c.T.Context())))
}
