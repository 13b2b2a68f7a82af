package vm_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/test/differential"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/kubelet"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
	"github.com/edgecore-io/edgecore/test/vm"
)

// gateway is the loopback of the machine that qemu runs on, in the machine that it runs.
const gateway = "10.0.2.2"

// commonConfig are the keys of KubeletConfiguration that both agents have.
func commonConfig() map[string]any {
	evictionHard := map[string]any{"memory.available": "20Mi", "nodefs.available": "1%", "imagefs.available": "1%"}
	return map[string]any{
		"cgroupDriver":                "systemd",
		"failSwapOn":                  false,
		"memorySwap":                  map[string]any{"swapBehavior": "LimitedSwap"},
		"kubeReserved":                map[string]any{"cpu": "100m", "memory": "64Mi"},
		"podPidsLimit":                300,
		"evictionHard":                evictionHard,
		"imageGCHighThresholdPercent": 100,
		"readOnlyPort":                10255,
	}
}

// limitCluster is a cluster on this machine for a node in a booted one. Its pods are in a namespace for each agent.
type limitCluster struct {
	*kube.Cluster
	cloud *cloud.Cloud
	t     *testing.T
}

func startLimitCluster(t *testing.T) *limitCluster {
	t.Helper()
	binary, err := cloud.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := &limitCluster{Cluster: kube.Start(t, kube.Options{}), t: t}
	c.cloud = cloud.Install(t, c.Cluster, cloud.InstallOptions{
		Binary: binary,
		Hub:    map[string]any{"advertiseAddress": []string{"127.0.0.1", gateway}},
	})
	return c
}

// assign creates the pods on a node, in a namespace with the name of the node.
func (c *limitCluster) assign(node string) {
	c.t.Helper()
	const namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: %[1]s}\n---\n" +
		"apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default, namespace: %[1]s}\n"
	if err := c.Apply(c.t.Context(), fmt.Sprintf(namespace, node)); err != nil {
		c.t.Fatal(err)
	}
	for _, p := range limitPods {
		pod, err := p.pod(node, node)
		if err == nil {
			_, err = c.Client().CoreV1().Pods(node).Create(c.t.Context(), pod, metav1.CreateOptions{})
		}
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

// pods waits until all pods run, and returns the names of their IDs.
func (c *limitCluster) pods(node string) map[string]string {
	c.t.Helper()
	began := time.Now()
	names := map[string]string{}
	wait.Until(c.t, node+": the pods to run", func() error {
		list, err := c.Client().CoreV1().Pods(node).List(c.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != len(limitPods) {
			return fmt.Errorf("%s: %d pods, want %d", node, len(list.Items), len(limitPods))
		}
		clear(names)
		for i := range list.Items {
			p := &list.Items[i]
			if err := allReady(p); err != nil {
				return fmt.Errorf("%s: pod %s: %w", node, p.Name, err)
			}
			addNames(names, p)
		}
		return nil
	})
	c.t.Logf("%s: %d pods run, after %v", node, len(limitPods), time.Since(began).Round(time.Second))
	return names
}

func allReady(p *v1.Pod) error {
	if p.Status.Phase != v1.PodRunning {
		return fmt.Errorf("phase %s: %s, %+v", p.Status.Phase, p.Status.Message, p.Status.ContainerStatuses)
	}
	all := slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
	if len(all) != len(p.Spec.InitContainers)+len(p.Spec.Containers) {
		return errors.New("it has no status of each container")
	}
	for _, c := range all {
		if c.State.Running == nil && c.State.Terminated == nil {
			return fmt.Errorf("container %s: %+v", c.Name, c.State)
		}
	}
	return nil
}

// resize changes the resources of pods that run, waits until the node has done or refused it, and returns the event of
// each pod that says so.
func (c *limitCluster) resize(node string) map[string]string {
	c.t.Helper()
	began := time.Now()
	want := map[string]bool{}
	for _, p := range limitPods {
		if p.resize == "" {
			continue
		}
		want[p.name] = true
		patch, err := yaml.YAMLToJSON([]byte(p.resize))
		if err == nil {
			_, err = c.Client().CoreV1().Pods(node).Patch(c.t.Context(), p.name, types.StrategicMergePatchType, patch,
				metav1.PatchOptions{}, "resize")
		}
		if err != nil {
			c.t.Fatalf("resize %s: %v", p.name, err)
		}
	}
	got := map[string]string{}
	wait.Until(c.t, node+": the pods to be resized", func() error {
		events, err := c.Client().CoreV1().Events(node).List(c.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			switch e.Reason {
			case "ResizeCompleted", "ResizeInfeasible", "ResizeDeferred", "ResizeError":
				got[e.InvolvedObject.Name] = e.Reason + ": " + e.Message
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("%s: resized are %v, want %v", node, got, slices.Sorted(maps.Keys(want)))
		}
		return nil
	})
	c.t.Logf("%s: resized, after %v", node, time.Since(began).Round(time.Second))
	return got
}

// classWeight is the file with the weight of all Burstable pods.
const classWeight = "kubepods.slice/kubepods-burstable.slice/cpu.weight"

// limits assigns the pods to a node, and reads what limits them when they run, and when they are resized. It waits
// until the weight of all Burstable pods has followed: until it is weight, or, if that is "", until it has changed.
func (d *device) limits(c *limitCluster, node, weight string) differential.Trace {
	d.t.Helper()
	c.assign(node)
	names := c.pods(node)
	trace := differential.Trace{}
	read := func(when string) {
		for where, values := range parseLimits(d.sh(readLimits), names) {
			trace[when+"/"+where] = values
		}
	}
	read("started")
	const readWeight = "cat /sys/fs/cgroup/" + classWeight
	before := d.sh(readWeight)
	for pod, event := range c.resize(node) {
		trace["resized/event/"+pod] = []string{event}
	}
	// The kubelet brings the cgroups of the classes in line once a minute.
	wait.Until(d.t, node+": the weight of all Burstable pods to follow", func() error {
		now := d.sh(readWeight)
		switch {
		case weight == "" && now == before:
			return fmt.Errorf("%s: the weight is still %s, want another", node, now)
		case weight != "" && now != weight:
			return fmt.Errorf("%s: the weight is %s, want %s", node, now, weight)
		}
		return nil
	})
	read("resized")
	return trace
}

// unlistedLimits are the differences between the limits of two nodes that are not there on purpose.
func unlistedLimits(left, right differential.Trace) []differential.Difference {
	found := differential.Compare([]differential.Trace{left}, []differential.Trace{right})
	return differential.Unlisted("cgroup2", found, differential.Known())
}

// edgecoreFiles are those of an agent that joins.
func (c *limitCluster) edgecoreFiles(node string) map[string]string {
	c.t.Helper()
	hub := c.cloud.EdgeHub(c.t)
	hub["httpServer"] = "https://" + gateway + ":" + strconv.Itoa(c.cloud.Bootstrap)
	hub["websocket"] = map[string]any{"enable": true, "server": gateway + ":" + strconv.Itoa(c.cloud.Link)}
	config, err := yaml.Marshal(map[string]any{
		"apiVersion": "edgecore.config.kubeedge.io/v1alpha2", "kind": "EdgeCore",
		"database": map[string]any{"dataSource": storeFile},
		"modules": map[string]any{
			"edgeHub": hub,
			"edged": map[string]any{
				"hostnameOverride":      node,
				"rootDirectory":         "/var/lib/kubelet",
				"tailoredKubeletConfig": commonConfig(),
			},
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return map[string]string{configFile: string(config)}
}

// kubeletFiles are those of a kubelet.
func (c *limitCluster) kubeletFiles(node string) map[string]string {
	c.t.Helper()
	path, err := c.AddUser("system:node:"+node, "system:nodes")
	if err != nil {
		c.t.Fatal(err)
	}
	access, err := clientcmd.LoadFromFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, server := range access.Clusters {
		server.Server = strings.Replace(server.Server, "127.0.0.1", gateway, 1)
		server.TLSServerName = "127.0.0.1"
	}
	kubeconfig, err := clientcmd.Write(*access)
	if err != nil {
		c.t.Fatal(err)
	}
	config := commonConfig()
	config["apiVersion"], config["kind"] = "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"
	config["containerRuntimeEndpoint"] = "unix:///run/containerd/containerd.sock"
	config["authentication"] = map[string]any{
		"anonymous": map[string]any{"enabled": true},
		"webhook":   map[string]any{"enabled": false},
	}
	config["authorization"] = map[string]any{"mode": "AlwaysAllow"}
	config["makeIPTablesUtilChains"] = false
	text, err := yaml.Marshal(config)
	if err != nil {
		c.t.Fatal(err)
	}
	return map[string]string{"/root/kubelet.yaml": string(text), "/root/kubeconfig": string(kubeconfig)}
}

// TestKubelet: the limits of pods on cgroup v2, with swap, when they start and when they are resized, are those that a
// real kubelet makes of the same pods on the same containerd, with systemd as the driver of both.
func TestKubelet(t *testing.T) {
	binary, err := kubelet.Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	c := startLimitCluster(t)
	payload := packaged(t, vm.AMD64)
	payload["kubelet"] = binary
	const right, left = "edgecore", "kubelet"
	options := vm.Options{Payload: payload, MemoryMB: 2048, Append: "hugepages=16", Network: true}
	d := install(t, options, c.edgecoreFiles(right))
	d.sh("fallocate -l 256M /swap; chmod 600 /swap; mkswap /swap; swapon /swap; systemctl restart edgecore")
	ours := d.limits(c, right, "")

	d.sh("systemctl disable --now edgecore; edgecore end-pods; rm -rf /var/lib/kubelet; mkdir /var/lib/kubelet")
	if out := d.sh("ls -d /sys/fs/cgroup/kubepods.slice 2>/dev/null || true; ctr -n k8s.io tasks ls -q"); out != "" {
		t.Errorf("left by edgecore = %q, want nothing", out)
	}
	d.write(c.kubeletFiles(left))
	d.sh("systemd-run --unit=kubelet /payload/kubelet --config=/root/kubelet.yaml --kubeconfig=/root/kubeconfig" +
		" --hostname-override=" + left + " --root-dir=/var/lib/kubelet -v=2 2>&1")
	t.Cleanup(func() {
		if t.Failed() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			out, err := d.Shell(ctx, "journalctl --no-pager -n 200 -u kubelet")
			t.Logf("the end of the kubelet's log: %v\n%s", err, out)
		}
	})
	theirs := d.limits(c, left, strings.Join(ours["resized/cgroup/"+classWeight], ""))
	t.Logf("%d values of the kubelet and %d of edgecore", len(theirs), len(ours))
	for _, difference := range unlistedLimits(theirs, ours) {
		t.Errorf("differs: %s", difference)
	}
}
