// Package evict shows on real parts that a node which runs out of memory, disk, inodes or processes ends the pods that take
// them, in order, and no others; that what is reserved is enforced; and that the cluster learns of it.
package evict

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
)

// patience bounds every wait: these machines are shared.
const patience = 90 * time.Second

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// node is an agent whose pods wait, all but the quiet ones, until they are told to go.
type node struct {
	*agent.Agent
	t *testing.T
	// signals is a folder that each pod has as /signals.
	signals string
	late    int // how many pods came late
}

// small mounts a small file system in memory, which goes with the agent.
func small(t *testing.T, options string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("mount a tmpfs with %s: %v", options, err)
	}
	t.Cleanup(func() {
		if err := agent.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// newNode starts an agent with pods in its store, as if a cloud had sent them.
func newNode(t *testing.T, opts agent.Options, signals string, pods ...*v1.Pod) *node {
	t.Helper()
	return newNodeOn(t, testenv.Options{}, opts, signals, pods...)
}

// newNodeOn is newNode with a runtime of its own kind.
func newNodeOn(t *testing.T, runtime testenv.Options, opts agent.Options, signals string, pods ...*v1.Pod) *node {
	t.Helper()
	opts.Binary = built.Edge
	ctrd := testenv.StartContainerd(t, runtime)
	n := &node{t: t, signals: signals, Agent: testenv.StartAgent(t, ctrd, opts)}
	if err := n.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, recovery, err := store.Open(t.Context(), n.Store(), store.Options{})
	if err != nil || recovery != nil {
		t.Fatal(recovery, err)
	}
	for _, p := range pods {
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(t.Context(), store.Upsert(store.Meta{Key: "default/pod/" + p.Name, Type: "pod", Value: data})); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

// pod is a pod of one container, whose script begins when the test says go with the pod's name. It has an emptyDir at /data.
func pod(signals, name, script string, more ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("0b2b1a52-7d2c-4b0e-8d19-" + name), ResourceVersion: "10", CreationTimestamp: metav1.Now()},
		Spec: v1.PodSpec{
			NodeName: "node1", RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: ptr.To[int64](30), DNSPolicy: v1.DNSDefault,
			EnableServiceLinks: ptr.To(false), AutomountServiceAccountToken: ptr.To(false),
			Volumes: []v1.Volume{
				{Name: "signals", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: signals}}},
				{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			},
			Containers: []v1.Container{{
				Name: "main", Image: "edgecore.local/demo:1", ImagePullPolicy: v1.PullIfNotPresent,
				Command:      []string{"sh", "-c", fmt.Sprintf("trap 'exit 0' TERM; while [ ! -e /signals/%s ]; do sleep 0.2; done\n%s\nwhile true; do sleep 1 & wait $!; done", name, script)},
				VolumeMounts: []v1.VolumeMount{{Name: "signals", MountPath: "/signals"}, {Name: "data", MountPath: "/data"}},
			}},
		},
	}
	for _, m := range more {
		m(p)
	}
	return p
}

// inMemory has /data lie in memory, where it is the container's.
func inMemory(p *v1.Pod) { p.Spec.Volumes[1].EmptyDir.Medium = v1.StorageMediumMemory }

func requests(name v1.ResourceName, quantity string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{name: resource.MustParse(quantity)}
	}
}

func priority(n int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &n } }

// writes is a script that writes files of so many megabytes into /data, one each fifth of a second.
func writes(megabytes, files int) string {
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do dd if=/dev/zero of=/data/f$i bs=1M count=%d 2>/dev/null; i=$((i+1)); sleep 0.2; done; echo written", files, megabytes)
}

// tell has a pod begin.
func (n *node) tell(name string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.signals, name), nil, 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// until waits for the pods to be as a check wants them.
func (n *node) until(what string, check func(pods map[string]*v1.Pod) error) map[string]*v1.Pod {
	n.t.Helper()
	var last map[string]*v1.Pod
	testenv.Poll(n.t, patience, func() error {
		pods, err := n.Pods(n.t.Context())
		if err != nil {
			return err
		}
		last = pods
		if err := check(pods); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
	return last
}

// running checks that pods are ready and never restarted.
func running(names ...string) func(map[string]*v1.Pod) error {
	return func(pods map[string]*v1.Pod) error {
		for _, name := range names {
			p := pods[name]
			if p == nil {
				return fmt.Errorf("no pod %s", name)
			}
			ready := slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
			if p.Status.Phase != v1.PodRunning || !ready || p.Status.ContainerStatuses[0].RestartCount > 0 {
				return fmt.Errorf("pod %s is %s %s: %+v", name, p.Status.Phase, p.Status.Message, p.Status.ContainerStatuses)
			}
		}
		return nil
	}
}

// evicted checks that a pod has ended for want of something, and that others do not suffer.
func evicted(name, message string, others ...string) func(map[string]*v1.Pod) error {
	return func(pods map[string]*v1.Pod) error {
		p := pods[name]
		if p == nil {
			return fmt.Errorf("no pod %s", name)
		}
		if p.Status.Phase != v1.PodFailed || p.Status.Reason != "Evicted" || !strings.HasPrefix(p.Status.Message, message) {
			return fmt.Errorf("pod %s is %s %s %q, want it evicted with %q", name, p.Status.Phase, p.Status.Reason, p.Status.Message, message)
		}
		i := slices.IndexFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.DisruptionTarget })
		if i < 0 || p.Status.Conditions[i].Status != v1.ConditionTrue || p.Status.Conditions[i].Reason != v1.PodReasonTerminationByKubelet {
			return fmt.Errorf("conditions of pod %s: %+v", name, p.Status.Conditions)
		}
		return running(others...)(pods)
	}
}

// conditions waits until the agent has, or has not, a condition.
func (n *node) condition(code health.Code, want bool) {
	n.t.Helper()
	testenv.Poll(n.t, patience, func() error {
		text, err := n.Get(n.t.Context(), "/status")
		if err != nil {
			return err
		}
		var info struct {
			Conditions []health.Condition `json:"conditions"`
		}
		if err := json.Unmarshal([]byte(text), &info); err != nil {
			return err
		}
		if has := slices.ContainsFunc(info.Conditions, func(c health.Condition) bool { return c.Code == code }); has != want {
			return fmt.Errorf("condition %s: %v, want %v; there are %+v", code, has, want, info.Conditions)
		}
		return nil
	})
}

// well checks that the node does its work: it answers, nothing stands still, and a new static pod starts.
func (n *node) well() {
	n.t.Helper()
	testenv.Poll(n.t, patience, func() error {
		_, err := n.Get(n.t.Context(), "/healthz")
		return err
	})
	n.late++
	late := fmt.Sprintf("late-%d", n.late) // a manifest that comes back while its pod ends takes over what is left of it
	manifest := "{apiVersion: v1, kind: Pod, metadata: {name: " + late + "}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: edgecore.local/demo:1, command: [sleep, '1000']}]}}"
	if err := n.WriteManifest("late.yaml", manifest); err != nil {
		n.t.Fatal(err)
	}
	n.until("a new pod", running(late))
	if err := n.RemoveManifest("late.yaml"); err != nil {
		n.t.Fatal(err)
	}
	n.until("the new pod goes", func(pods map[string]*v1.Pod) error {
		if pods[late] != nil {
			return fmt.Errorf("it is %s", pods[late].Status.Phase)
		}
		return nil
	})
}

// metric is the value of a line of /metrics, "" where there is none.
func (n *node) metric(name string) string {
	n.t.Helper()
	text, err := n.Get(n.t.Context(), "/metrics")
	if err != nil {
		n.t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// events are the messages of the events of a reason.
func (n *node) events(reason string) []string {
	n.t.Helper()
	text, err := n.Get(n.t.Context(), "/events")
	if err != nil {
		n.t.Fatal(err)
	}
	var list v1.EventList
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		n.t.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		if e.Reason == reason {
			out = append(out, e.InvolvedObject.Name+": "+e.Message)
		}
	}
	return out
}
