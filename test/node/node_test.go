// Package node shows what the cloud is told of a node, and how pods fare while the runtime has no network or is away: on a real
// API server, cloudcore, edgecore and containerd.
package node

import (
	"errors"
	"fmt"
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
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

// patience bounds every wait: these machines are shared.
const patience = 90 * time.Second

const name = "edge-1"

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// site is a cluster with a cloudcore, and one edge.
type site struct {
	t     *testing.T
	api   kubernetes.Interface
	cloud *cloud.Cloud
	ctrd  *containerd.Instance
	cri   *cri.Client
	edge  *agent.Agent
	// hidden is where the network's configuration is while there is none.
	hidden string
}

// newSite starts all of it, with a runtime that has no network.
func newSite(t *testing.T) *site {
	t.Helper()
	cluster := kube.Start(t, kube.Options{})
	s := &site{t: t, api: cluster.Client(), hidden: filepath.Join(t.TempDir(), "network")}
	s.cloud = cloud.Install(t, cluster, cloud.InstallOptions{Binary: built.Cloud})
	s.ctrd = testenv.StartContainerd(t, testenv.Options{})
	s.cri = testenv.Dial(t, s.ctrd)
	s.network(false)
	s.edge = testenv.StartAgent(t, s.ctrd, agent.Options{
		Binary: built.Edge, NodeName: name,
		EdgeHub: s.cloud.EdgeHub(t),
		Kubelet: map[string]any{
			"nodeStatusUpdateFrequency": "1s", "nodeStatusMaxImages": 50, "systemReserved": map[string]any{"memory": "100Mi"},
			"registerWithTaints": []any{map[string]any{"key": "example.com/roof", "effect": "NoSchedule"}},
		},
	})
	return s
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// network gives the runtime a network, or takes it away.
func (s *site) network(on bool) {
	s.t.Helper()
	file := s.ctrd.CNIConfig()
	if on {
		data, err := os.ReadFile(s.hidden)
		s.must(err)
		s.must(os.WriteFile(file, data, 0o644))
		return
	}
	data, err := os.ReadFile(file)
	s.must(err)
	s.must(os.WriteFile(s.hidden, data, 0o644))
	s.must(os.Remove(file))
	testenv.Poll(s.t, patience, func() error { // it looks into the folder by itself
		st, err := s.cri.Status(s.t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		for _, c := range st.GetStatus().GetConditions() {
			if c.GetType() == runtimeapi.NetworkReady && c.GetStatus() {
				return fmt.Errorf("the runtime has a network without its configuration")
			}
		}
		return nil
	})
}

func (s *site) pod(name, more string) {
	s.t.Helper()
	s.must(s.edge.WriteManifest(name+".yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
%s
  containers:
  - name: main
    image: edgecore.local/demo:1
    command: [sh, -c, "trap 'exit 0' TERM; while true; do sleep 1 & wait; done"]
    resources: {limits: {memory: 32Mi}}
`, name, more)))
}

func (s *site) until(what string, check func() error) {
	s.t.Helper()
	testenv.Poll(s.t, patience, func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

// running checks that pods of the device run.
func (s *site) running(names ...string) func() error {
	return func() error {
		pods, err := s.edge.Pods(s.t.Context())
		for _, name := range names {
			if p := pods[name]; err == nil && (p == nil || p.Status.Phase != v1.PodRunning || len(p.Status.ContainerStatuses) == 0 || !p.Status.ContainerStatuses[0].Ready) {
				err = fmt.Errorf("pod %s does not run: %+v", name, p)
			}
		}
		return err
	}
}

func (s *site) node() (*v1.Node, error) {
	return s.api.CoreV1().Nodes().Get(s.t.Context(), name, metav1.GetOptions{})
}

// condition checks a condition of the Node, as the API server has it.
func (s *site) condition(kind v1.NodeConditionType, status v1.ConditionStatus, message string) func() error {
	return func() error {
		n, err := s.node()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == kind })
		if i < 0 || n.Status.Conditions[i].Status != status || !strings.Contains(n.Status.Conditions[i].Message, message) {
			return fmt.Errorf("want %s %s with %q, have %+v", kind, status, message, n.Status.Conditions)
		}
		return nil
	}
}

// event checks that the API server has an event.
func (s *site) event(kind, reason, message string) func() error {
	return func() error {
		list, err := s.api.CoreV1().Events("default").List(s.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var have []string
		for _, e := range list.Items {
			if e.InvolvedObject.Kind == kind && e.Reason == reason && strings.Contains(e.Message, message) {
				return nil
			}
			have = append(have, e.InvolvedObject.Kind+" "+e.Reason)
		}
		return fmt.Errorf("no event %s of a %s with %q, but %v", reason, kind, message, have)
	}
}

const noNetwork = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady"

// TestNode follows a node through what may become of its runtime.
func TestNode(t *testing.T) {
	s := newSite(t)
	s.pod("host", "  hostNetwork: true")
	s.pod("net", "")
	for _, step := range []struct {
		what string
		run  func(*site)
	}{
		{"without a network", withoutNetwork}, {"a network comes", networkComes}, {"the status is whole", wholeStatus}, {"the network goes", networkGoes},
		{"the runtime goes", runtimeGoes}, {"a reboot", reboot},
	} {
		if !t.Run(step.what, func(t *testing.T) {
			inner := *s
			inner.t = t
			step.run(&inner)
			*s = inner
			s.t = t
		}) {
			break
		}
	}
	s.t = t
}

// withoutNetwork: pods on the node's network run, the others wait and say why, and so does the node.
func withoutNetwork(s *site) {
	s.until("a pod on the node's network", s.running("host"))
	s.until("the node", s.condition(v1.NodeReady, v1.ConditionFalse, noNetwork))
	s.until("the pod's event", s.event("Pod", "NetworkNotReady", "network is not ready: "+noNetwork))
	pods, err := s.edge.Pods(s.t.Context())
	s.must(err)
	if p := pods["net"]; p.Status.Phase != v1.PodPending {
		s.t.Errorf("a pod that needs an address is %s", p.Status.Phase)
	}
	s.until("edgecore status", func() error {
		if out, err := s.edge.Run(s.t.Context(), "status"); err == nil || !strings.Contains(out, "RuntimeNetworkNotReady") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	out, err := s.edge.Run(s.t.Context(), "preflight")
	for _, want := range []string{
		"[ok]      container runtime: containerd 1.", "cgroups: cgroup v", "[warning] pod network: there is no CNI configuration in " + filepath.Dir(s.ctrd.CNIConfig()) + ": pods with hostNetwork run",
		"port of the read-only server: 127.0.0.1:" + strconv.Itoa(s.edge.Port) + " is the agent's, which runs", "[ok]      cloud: 127.0.0.1:",
	} {
		if !strings.Contains(out, want) {
			s.t.Errorf("preflight (%v) does not say %q:\n%s", err, want, out)
		}
	}
}

// networkComes: it is noticed, and nobody has to do anything.
func networkComes(s *site) {
	s.network(true)
	s.until("the pod", s.running("net"))
	s.until("the node", s.condition(v1.NodeReady, v1.ConditionTrue, "kubelet is posting ready status"))
	s.until("the node's event", s.event("Node", "NodeReady", "Node edge-1 status is now: NodeReady"))
}

// wholeStatus: what kubectl describe node and the scheduler look at.
func wholeStatus(s *site) {
	s.until("images", func() error {
		n, err := s.node()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(n.Status.Images, func(i v1.ContainerImage) bool {
			return slices.Contains(i.Names, "edgecore.local/demo:1") && i.SizeBytes > 0
		}) {
			return fmt.Errorf("the demo image is not among %v", n.Status.Images)
		}
		return nil
	})
	n, err := s.node()
	s.must(err)
	st := &n.Status
	kinds := map[v1.NodeAddressType]string{}
	for _, a := range st.Addresses {
		kinds[a.Type] = a.Address
	}
	if kinds[v1.NodeInternalIP] == "" || kinds[v1.NodeHostName] != name {
		s.t.Errorf("addresses %v", st.Addresses)
	}
	for _, r := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods, v1.ResourceEphemeralStorage} {
		all, free := st.Capacity[r], st.Allocatable[r]
		if all.Sign() <= 0 || free.Sign() <= 0 || free.Cmp(all) > 0 {
			s.t.Errorf("%s: %s of %s", r, free.String(), all.String())
		}
	}
	if all, free := st.Capacity.Memory(), st.Allocatable.Memory(); all.Value()-free.Value() < 100<<20 {
		s.t.Errorf("memory: %s of %s, and 100Mi are reserved", free, all)
	}
	i := st.NodeInfo
	for what, text := range map[string]string{"bootID": i.BootID, "kernelVersion": i.KernelVersion, "osImage": i.OSImage, "kubeletVersion": i.KubeletVersion, "architecture": i.Architecture} {
		if text == "" {
			s.t.Errorf("nodeInfo has no %s", what)
		}
	}
	if !strings.HasPrefix(i.ContainerRuntimeVersion, "containerd://1.") {
		s.t.Errorf("runtime %q", i.ContainerRuntimeVersion)
	}
	if st.Features == nil || len(st.RuntimeHandlers) == 0 {
		s.t.Errorf("features %v, handlers %v", st.Features, st.RuntimeHandlers)
	}
	for _, kind := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		if !slices.ContainsFunc(st.Conditions, func(c v1.NodeCondition) bool { return c.Type == kind && c.Reason != "" }) {
			s.t.Errorf("no condition %s", kind)
		}
	}
	if !slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == "example.com/roof" }) {
		s.t.Errorf("taints %v", n.Spec.Taints)
	}
	if st.DaemonEndpoints.KubeletEndpoint.Port == 0 {
		s.t.Error("no port of the kubelet's API")
	}
	s.until("the lease", func() error {
		lease, err := s.api.CoordinationV1().Leases("kube-node-lease").Get(s.t.Context(), name, metav1.GetOptions{})
		if err == nil && time.Since(lease.Spec.RenewTime.Time) > time.Minute {
			err = fmt.Errorf("it was renewed at %v", lease.Spec.RenewTime)
		}
		return err
	})
}

// ids are the running containers.
func (s *site) ids() []string {
	list, err := s.cri.ListContainers(s.t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	s.must(err)
	var ids []string
	for _, c := range list.GetContainers() {
		ids = append(ids, c.GetId())
	}
	slices.Sort(ids)
	return ids
}

// networkGoes: the node says so, and what runs is left alone.
func networkGoes(s *site) {
	before := s.ids()
	s.network(false)
	s.until("the node", s.condition(v1.NodeReady, v1.ConditionFalse, noNetwork))
	s.until("the node's event", s.event("Node", "NodeNotReady", "NodeNotReady"))
	s.must(s.running("host", "net")())
	s.network(true)
	s.until("the node", s.condition(v1.NodeReady, v1.ConditionTrue, ""))
	if after := s.ids(); !slices.Equal(before, after) {
		s.t.Errorf("containers %v, and before %v", after, before)
	}
}

// runtimeGoes: the node says so, and is Ready again when it is back.
func runtimeGoes(s *site) {
	before := s.ids()
	s.must(s.ctrd.Terminate(s.t.Context()))
	s.until("the node", s.condition(v1.NodeReady, v1.ConditionFalse, "container runtime is down"))
	s.must(s.ctrd.Run(s.t.Context()))
	s.until("the node", s.condition(v1.NodeReady, v1.ConditionTrue, ""))
	if after := s.ids(); !slices.Equal(before, after) {
		s.t.Errorf("containers %v, and before %v", after, before)
	}
}

// reboot: a Node of another boot gets its event, and conditions of before are told to be over.
func reboot(s *site) {
	s.must(s.edge.Stop(s.t.Context()))
	s.until("cloudcore has done all that the agent asked for", func() error {
		text, err := s.cloud.Get(s.t.Context(), "/metrics")
		if err == nil && !strings.Contains(text, "\ncloudcore_cloudhub_connected_nodes 0\n") {
			err = errors.New("the node is connected")
		}
		return err
	})
	patch := `{"status":{"nodeInfo":{"bootID":"another"},"conditions":[{"type":"ClockNotSet","status":"True","reason":"ClockNotSet"}]}}`
	_, err := s.api.CoreV1().Nodes().Patch(s.t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	s.must(err)
	s.must(s.edge.Start(s.t.Context()))
	s.until("the agent's event", s.event("Node", "Starting", "Starting kubelet."))
	s.until("the node's event", s.event("Node", "Rebooted", "Node edge-1 has been rebooted, boot id: "))
	s.until("the condition", s.condition("ClockNotSet", v1.ConditionFalse, "over"))
	s.until("the node", s.condition(v1.NodeReady, v1.ConditionTrue, ""))
}
