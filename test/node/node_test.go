// Package node shows what the cloud is reported of a node, and how pods fare while the runtime has no network or is
// away: on a real API server, cloudcore, edgecore and containerd.
package node

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const name = "edge-1"

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// fixture is a cluster with a cloudcore, and one node whose runtime has a network or not.
type fixture struct {
	*env.Cluster
	t    *testing.T
	ctrd *containerd.Instance
	cri  *cri.Client
	node *env.Node
	// network is the configuration of the runtime's network.
	network []byte
}

// start starts all of it, with a runtime that has no network.
func start(t *testing.T) *fixture {
	t.Helper()
	cluster := env.StartCluster(t, built, env.ClusterOptions{})
	f := &fixture{Cluster: cluster, t: t, ctrd: testenv.StartContainerd(t, testenv.Options{})}
	f.cri = testenv.Dial(t, f.ctrd)
	f.disconnect()
	f.node = env.StartNodeOn(t, built, f.ctrd, agent.Options{
		NodeName: name,
		EdgeHub:  f.Cloud.EdgeHub(t),
		Kubelet: map[string]any{
			"nodeStatusUpdateFrequency": "1s", "nodeStatusMaxImages": 50,
			"systemReserved":     map[string]any{"memory": "100Mi"},
			"registerWithTaints": []any{map[string]any{"key": "example.com/roof", "effect": "NoSchedule"}},
		},
	})
	return f
}

// with returns the same fixture for a subtest.
func (f *fixture) with(t *testing.T) *fixture {
	sub := *f
	sub.t, sub.Cluster, sub.node = t, f.Cluster.With(t), f.node.With(t)
	return &sub
}

// connect gives the runtime its network back.
func (f *fixture) connect() {
	f.t.Helper()
	env.Must(f.t, os.WriteFile(f.ctrd.CNIConfig(), f.network, 0o644))
}

// disconnect takes the runtime's network away.
func (f *fixture) disconnect() {
	f.t.Helper()
	var err error
	f.network, err = os.ReadFile(f.ctrd.CNIConfig())
	env.Must(f.t, err)
	env.Must(f.t, os.Remove(f.ctrd.CNIConfig()))
	wait.Until(f.t, "the runtime to notice that it has no network", func() error {
		st, err := f.cri.Status(f.t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		for _, c := range st.GetStatus().GetConditions() {
			if c.GetType() == runtimeapi.NetworkReady && c.GetStatus() {
				return fmt.Errorf("conditions are %+v, want no NetworkReady", st.GetStatus().GetConditions())
			}
		}
		return nil
	})
}

// limited is more YAML of a container with a memory limit.
const limited = "    resources: {limits: {memory: 32Mi}}\n"

// condition waits until the Node has a condition, as the API server has it.
func (f *fixture) condition(kind v1.NodeConditionType, status v1.ConditionStatus, message string) {
	f.t.Helper()
	f.NodeUntil(name, fmt.Sprintf("to be %s %s", kind, status), func(n *v1.Node) error {
		return env.NodeCondition(n, kind, status, message)
	})
}

// event waits until the API server has an event of a kind of object.
func (f *fixture) event(kind, reason, message string) {
	f.t.Helper()
	wait.Until(f.t, "an event "+reason+" of a "+kind, func() error {
		list, err := f.API.CoreV1().Events("default").List(f.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var have []string
		for _, e := range list.Items {
			if e.InvolvedObject.Kind == kind && e.Reason == reason && strings.Contains(e.Message, message) {
				return nil
			}
			have = append(have, e.InvolvedObject.Kind+" "+e.Reason+": "+e.Message)
		}
		return fmt.Errorf("events are %q, want one with %q", have, message)
	})
}

const noNetwork = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady"

// TestNode follows a node through what may become of its runtime. Each step begins where the one before has ended.
func TestNode(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.node.Manifest("host", env.Pod("host", env.Forever, "  hostNetwork: true")+limited)
	f.node.Manifest("net", env.Pod("net", env.Forever)+limited)
	for _, step := range []struct {
		name string
		run  func(*fixture)
	}{
		{"without a network", withoutNetwork}, {"a network comes", networkComes},
		{"the status is complete", completeStatus},
		{"the network goes", networkGoes}, {"the runtime goes", runtimeGoes}, {"a reboot", reboot},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(f.with(t)) }) {
			break
		}
	}
}

// withoutNetwork: pods on the node's network run, the others wait and say why, and so does the node.
func withoutNetwork(f *fixture) {
	f.node.Running("host")
	f.condition(v1.NodeReady, v1.ConditionFalse, noNetwork)
	f.event("Pod", "NetworkNotReady", "network is not ready: "+noNetwork)
	pods, err := f.node.Pods(f.t.Context())
	env.Must(f.t, err)
	if got := pods["net"].Status.Phase; got != v1.PodPending {
		f.t.Errorf("phase of a pod that needs an address = %s, want %s", got, v1.PodPending)
	}
	wait.Until(f.t, "edgecore status to report the network", func() error {
		if out, err := f.node.Run(f.t.Context(), "status"); err == nil ||
			!strings.Contains(out, "RuntimeNetworkNotReady") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	out, err := f.node.Run(f.t.Context(), "preflight")
	for _, want := range []string{
		"[ok]      container runtime: containerd 1.", "cgroups: cgroup v",
		"[warning] pod network: there is no CNI configuration in " + filepath.Dir(f.ctrd.CNIConfig()) +
			": pods with hostNetwork run",
		"port of the read-only server: 127.0.0.1:" + strconv.Itoa(f.node.Port) + " is the agent's, which runs",
		"[ok]      cloud: 127.0.0.1:",
	} {
		if !strings.Contains(out, want) {
			f.t.Errorf("preflight (%v) does not say %q:\n%s", err, want, out)
		}
	}
}

// networkComes: it is noticed, and nobody has to do anything.
func networkComes(f *fixture) {
	f.connect()
	f.node.Running("net")
	f.condition(v1.NodeReady, v1.ConditionTrue, "kubelet is posting ready status")
	f.event("Node", "NodeReady", "Node edge-1 status is now: NodeReady")
}

// completeStatus: what kubectl describe node and the scheduler look at.
func completeStatus(f *fixture) {
	n := f.NodeUntil(name, "to list its images", func(n *v1.Node) error {
		if !slices.ContainsFunc(n.Status.Images, func(i v1.ContainerImage) bool {
			return slices.Contains(i.Names, "edgecore.local/demo:1") && i.SizeBytes > 0
		}) {
			return fmt.Errorf("images are %v, want the demo image among them", n.Status.Images)
		}
		return nil
	})
	st := &n.Status
	kinds := map[v1.NodeAddressType]string{}
	for _, a := range st.Addresses {
		kinds[a.Type] = a.Address
	}
	if kinds[v1.NodeInternalIP] == "" || kinds[v1.NodeHostName] != name {
		f.t.Errorf("addresses = %v, want an InternalIP and the host name %s", st.Addresses, name)
	}
	for _, r := range []v1.ResourceName{
		v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods, v1.ResourceEphemeralStorage,
	} {
		all, free := st.Capacity[r], st.Allocatable[r]
		if all.Sign() <= 0 || free.Sign() <= 0 || free.Cmp(all) > 0 {
			f.t.Errorf("allocatable %s = %s, want more than 0 and at most the capacity %s", r, free.String(),
				all.String())
		}
	}
	if all, free := st.Capacity.Memory(), st.Allocatable.Memory(); all.Value()-free.Value() < 100<<20 {
		f.t.Errorf("allocatable memory = %s of %s, want 100Mi less at least", free, all)
	}
	i := st.NodeInfo
	for what, text := range map[string]string{
		"bootID": i.BootID, "kernelVersion": i.KernelVersion, "osImage": i.OSImage, "kubeletVersion": i.KubeletVersion,
		"architecture": i.Architecture,
	} {
		if text == "" {
			f.t.Errorf("nodeInfo = %+v, want a %s", i, what)
		}
	}
	if !strings.HasPrefix(i.ContainerRuntimeVersion, "containerd://1.") {
		f.t.Errorf("containerRuntimeVersion = %q, want containerd://1.", i.ContainerRuntimeVersion)
	}
	if st.Features == nil || len(st.RuntimeHandlers) == 0 {
		f.t.Errorf("features = %v, runtimeHandlers = %v, want both", st.Features, st.RuntimeHandlers)
	}
	for _, kind := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		if !slices.ContainsFunc(st.Conditions, func(c v1.NodeCondition) bool {
			return c.Type == kind && c.Reason != ""
		}) {
			f.t.Errorf("conditions = %+v, want %s with a reason", st.Conditions, kind)
		}
	}
	if !slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == "example.com/roof" }) {
		f.t.Errorf("taints = %v, want example.com/roof", n.Spec.Taints)
	}
	if st.DaemonEndpoints.KubeletEndpoint.Port == 0 {
		f.t.Errorf("daemon endpoints = %+v, want the port of the kubelet's API", st.DaemonEndpoints)
	}
	wait.Until(f.t, "the lease to be renewed", func() error {
		lease, err := f.API.CoordinationV1().Leases("kube-node-lease").Get(f.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		// The API server keeps whole seconds of the creation.
		if created := lease.CreationTimestamp; !lease.Spec.RenewTime.After(created.Add(2 * time.Second)) {
			return fmt.Errorf("it was created at %v and renewed at %v, want later", created, lease.Spec.RenewTime)
		}
		return nil
	})
}

// networkGoes: the node says so, and what runs is left alone.
func networkGoes(f *fixture) {
	before := f.node.RunningContainers()
	f.disconnect()
	f.condition(v1.NodeReady, v1.ConditionFalse, noNetwork)
	f.event("Node", "NodeNotReady", "NodeNotReady")
	pods, err := f.node.Pods(f.t.Context())
	env.Must(f.t, err)
	if err := env.Running("host", "net")(pods); err != nil {
		f.t.Error(err)
	}
	f.connect()
	f.condition(v1.NodeReady, v1.ConditionTrue, "")
	if after := f.node.RunningContainers(); !maps.Equal(before, after) {
		f.t.Errorf("running containers = %v, want %v as before", after, before)
	}
}

// runtimeGoes: the node says so, and is Ready again when it is back.
func runtimeGoes(f *fixture) {
	before := f.node.RunningContainers()
	env.Must(f.t, f.ctrd.Terminate(f.t.Context()))
	f.condition(v1.NodeReady, v1.ConditionFalse, "container runtime is down")
	env.Must(f.t, f.ctrd.Run(f.t.Context()))
	f.condition(v1.NodeReady, v1.ConditionTrue, "")
	if after := f.node.RunningContainers(); !maps.Equal(before, after) {
		f.t.Errorf("running containers = %v, want %v as before", after, before)
	}
}

// reboot: a Node of another boot gets its event, and earlier conditions are reported to be over.
func reboot(f *fixture) {
	env.Must(f.t, f.node.Stop(f.t.Context()))
	wait.Until(f.t, "cloudcore to have done all that the agent asked for", func() error {
		text, err := f.Cloud.Get(f.t.Context(), "/metrics")
		if err == nil && !strings.Contains(text, "\ncloudcore_cloudhub_connected_nodes 0\n") {
			err = errors.New("the node is connected")
		}
		return err
	})
	patch := `{"status":{"nodeInfo":{"bootID":"another"},"conditions":[{"type":"ClockNotSet","status":"True","reason":"ClockNotSet"}]}}`
	_, err := f.API.CoreV1().Nodes().Patch(f.t.Context(), name, types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{}, "status")
	env.Must(f.t, err)
	env.Must(f.t, f.node.Start(f.t.Context()))
	f.event("Node", "Starting", "Starting kubelet.")
	f.event("Node", "Rebooted", "Node edge-1 has been rebooted, boot id: ")
	f.condition("ClockNotSet", v1.ConditionFalse, "over")
	f.condition(v1.NodeReady, v1.ConditionTrue, "")
}
