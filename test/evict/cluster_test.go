package evict

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// edge is the node's name in the cluster.
const edge = "edge-1"

// site is a cluster with a cloudcore, and an edge with a small disk.
type site struct {
	t     *testing.T
	kube  *kube.Cluster
	api   kubernetes.Interface
	agent *agent.Agent
}

func newSite(t *testing.T, dir string, kubelet map[string]any) *site {
	t.Helper()
	s := &site{t: t, kube: kube.Start(t, kube.Options{ControllerManager: true})}
	s.api = s.kube.Client()
	c := cloud.Install(t, s.kube, cloud.InstallOptions{Binary: built.Cloud})
	s.agent = testenv.StartAgent(t, testenv.StartContainerd(t, testenv.Options{}), agent.Options{
		Binary: built.Edge, NodeName: edge, Dir: dir, Kubelet: kubelet,
		EdgeHub: c.EdgeHub(t),
	})
	return s
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// node waits for the Node to be as a check wants it.
func (s *site) node(what string, check func(*v1.Node) error) {
	s.t.Helper()
	testenv.Poll(s.t, patience, func() error {
		n, err := s.api.CoreV1().Nodes().Get(s.t.Context(), edge, metav1.GetOptions{})
		if err == nil {
			err = check(n)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", what, err)
		}
		return err
	})
}

// conditioned checks the conditions of a Node, all of which are False but Ready and those that are named with their reasons,
// and that it has the taints of those.
func conditioned(reasons map[v1.NodeConditionType]string) func(*v1.Node) error {
	return func(n *v1.Node) error {
		for _, kind := range []v1.NodeConditionType{v1.NodeReady, v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
			i := slices.IndexFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == kind })
			if i < 0 {
				return fmt.Errorf("no condition %s", kind)
			}
			c := n.Status.Conditions[i]
			reason, want := reasons[kind]
			if (c.Status == v1.ConditionTrue) != (want || kind == v1.NodeReady) || want && c.Reason != reason {
				return fmt.Errorf("%s is %s: %s %s", kind, c.Status, c.Reason, c.Message)
			}
		}
		tainted := slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool {
			return t.Key == v1.TaintNodeDiskPressure && t.Effect == v1.TaintEffectNoSchedule
		})
		if _, want := reasons[v1.NodeDiskPressure]; tainted != want {
			return fmt.Errorf("taints: %+v", n.Spec.Taints)
		}
		return nil
	}
}

// run has a pod run on the edge, whatever its taints.
func (s *site) run(name string) {
	s.t.Helper()
	s.must(s.kube.Apply(s.t.Context(), fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers: [{name: main, image: "edgecore.local/demo:1", command: [sleep, "100000"]}]
`, name, edge)))
}

// pod waits for a pod to be as a check wants it.
func (s *site) pod(name string, check func(*v1.Pod) error) {
	s.t.Helper()
	testenv.Poll(s.t, patience, func() error {
		p, err := s.api.CoreV1().Pods("default").Get(s.t.Context(), name, metav1.GetOptions{})
		if err == nil {
			err = check(p)
		}
		if err != nil {
			err = fmt.Errorf("pod %s: %w", name, err)
		}
		return err
	})
}

func runs(p *v1.Pod) error {
	if p.Status.Phase != v1.PodRunning {
		return fmt.Errorf("it is %s %s %s", p.Status.Phase, p.Status.Reason, p.Status.Message)
	}
	return nil
}

// TestTheClusterLearns: while the disk of the edge is full, by a pod that nobody may end, its Node has the condition and the
// taint; pods that may end have ended and say why, and others are not taken. When there is room again, all of it is over.
func TestTheClusterLearns(t *testing.T) {
	t.Parallel()
	s := newSite(t, small(t, "size=96m"), map[string]any{
		"evictionHard": map[string]any{"memory.available": "10Mi", "nodefs.available": "30Mi"}, "evictionPressureTransitionPeriod": "5s",
		"systemReserved": map[string]any{"memory": "50Mi"},
	})
	s.node("at first", conditioned(nil))
	s.node("what is reserved", func(n *v1.Node) error {
		capacity, allocatable := n.Status.Capacity, n.Status.Allocatable
		if kept := capacity.Memory().Value() - allocatable.Memory().Value(); kept != 60<<20 {
			return fmt.Errorf("%d bytes of memory are kept from pods, want 60Mi: what is reserved, and the threshold", kept)
		}
		disk, forPods := capacity[v1.ResourceEphemeralStorage], allocatable[v1.ResourceEphemeralStorage]
		if disk.Value()-forPods.Value() != 30<<20 {
			return fmt.Errorf("of %s of the disk pods may have %s", disk.String(), forPods.String())
		}
		return nil
	})
	s.run("before")
	s.pod("before", runs)

	s.must(s.agent.WriteManifest("holds.yaml", `apiVersion: v1
kind: Pod
metadata: {name: holds}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: data, emptyDir: {}}]
  containers:
  - name: main
    image: edgecore.local/demo:1
    command: [sh, -c, "dd if=/dev/zero of=/data/f bs=1M count=70; exec sleep 100000"]
    volumeMounts: [{name: data, mountPath: /data}]
`))
	pressed := conditioned(map[v1.NodeConditionType]string{v1.NodeDiskPressure: "KubeletHasDiskPressure"})
	s.node("the disk is full", pressed)
	s.pod("before", func(p *v1.Pod) error {
		at := slices.IndexFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.DisruptionTarget && c.Reason == v1.PodReasonTerminationByKubelet && c.Status == v1.ConditionTrue
		})
		if p.Status.Phase != v1.PodFailed || p.Status.Reason != "Evicted" || at < 0 {
			return fmt.Errorf("it is %s %s, conditions %+v", p.Status.Phase, p.Status.Reason, p.Status.Conditions)
		}
		return nil
	})
	s.run("meanwhile")
	s.pod("meanwhile", func(p *v1.Pod) error {
		if p.Status.Phase != v1.PodFailed || p.Status.Reason != "Evicted" || p.Status.Message != "Pod was rejected: The node had condition: [DiskPressure]. " {
			return fmt.Errorf("it is %s %s %q", p.Status.Phase, p.Status.Reason, p.Status.Message)
		}
		return nil
	})
	s.events("Evicted", "Pod/before: The node was low on resource: ephemeral-storage.")
	s.events("NodeHasDiskPressure", "Node/"+edge+": Node "+edge+" status is now: NodeHasDiskPressure")
	s.node("the disk is still full", pressed)

	s.must(s.agent.RemoveManifest("holds.yaml"))
	s.node("there is room again", conditioned(nil))
	s.run("after")
	s.pod("after", runs)
}

// events waits for an event of a reason that begins like this.
func (s *site) events(reason, text string) {
	s.t.Helper()
	testenv.Poll(s.t, patience, func() error {
		list, err := s.api.CoreV1().Events("").List(s.t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			return err
		}
		var all []string
		for _, e := range list.Items {
			said := e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name + ": " + e.Message
			if strings.HasPrefix(said, text) {
				return nil
			}
			all = append(all, said)
		}
		return errors.New("events of " + reason + ": " + strings.Join(all, "; "))
	})
}
