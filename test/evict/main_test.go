// Package evict shows on real parts that a node which runs out of memory, disk, inodes or processes ends the pods that
// take them, in order, and no others; that what is reserved is enforced; and that the cluster learns of it.
package evict

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// node is an agent whose pods wait, all but the quiet ones, until they are told to begin.
type node struct {
	*env.Node
	// signals is a folder that each pod has as /signals.
	signals string
	late    *int // how many pods came late
}

// with returns the same node for a subtest.
func (n *node) with(t *testing.T) *node { return &node{n.Node.With(t), n.signals, n.late} }

// small mounts a small file system in memory, which goes with the test, and returns a folder on it.
func small(t *testing.T, options string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "small")
	env.Must(t, os.Mkdir(dir, 0o755))
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("mount a tmpfs with %s: %v, want no error", options, err)
	}
	t.Cleanup(func() {
		if err := agent.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	// what unmounts all below it leaves the file system there, with the agent's log
	folder := filepath.Join(dir, "node")
	env.Must(t, os.Mkdir(folder, 0o755))
	return folder
}

// newNode starts an agent with pods in its store, as if a cloud had sent them.
func newNode(t *testing.T, opts env.NodeOptions, signals string, pods ...*v1.Pod) *node {
	t.Helper()
	if opts.Agent.Dir == "" {
		opts.Agent.Dir = t.TempDir()
	}
	file := filepath.Join(opts.Agent.Dir, "db", "edgecore.db")
	env.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	s, recovery, err := store.Open(t.Context(), file, store.Options{})
	if err != nil || recovery != nil {
		t.Fatalf("open a new store: %v, recovery %v, want no error, no recovery", err, recovery)
	}
	for _, p := range pods {
		data, err := json.Marshal(p)
		env.Must(t, err)
		env.Must(t,
			s.Apply(t.Context(), store.Upsert(store.Meta{Key: "default/pod/" + p.Name, Type: "pod", Value: data})))
	}
	env.Must(t, s.Close())
	n := &node{Node: env.StartNode(t, built, opts), signals: signals, late: new(int)}
	if n.Store() != file {
		t.Fatalf("the agent's store is %s, want %s", n.Store(), file)
	}
	return n
}

// pod is a pod of one container, whose script begins when the test says go with the pod's name. It has an emptyDir at
// /data.
func pod(signals, name, script string, more ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name:              name,
			Namespace:         "default",
			UID:               types.UID("0b2b1a52-7d2c-4b0e-8d19-" + name),
			ResourceVersion:   "10",
			CreationTimestamp: metav1.Now(),
		},
		Spec: v1.PodSpec{
			NodeName:                      "node1",
			RestartPolicy:                 v1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: ptr.To[int64](30),
			DNSPolicy:                     v1.DNSDefault,
			EnableServiceLinks:            ptr.To(false),
			AutomountServiceAccountToken:  ptr.To(false),
			Volumes: []v1.Volume{
				{Name: "signals", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: signals}}},
				{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			},
			Containers: []v1.Container{
				{
					Name:            "main",
					Image:           "edgecore.local/demo:1",
					ImagePullPolicy: v1.PullIfNotPresent,
					Command: []string{
						"sh", "-c",
						fmt.Sprintf("trap 'exit 0' TERM; while [ ! -e /signals/%s ]; do sleep 0.1; done\n%s\n"+
							"while true; do sleep 1 & wait $!; done", name, script),
					},
					VolumeMounts: []v1.VolumeMount{
						{Name: "signals", MountPath: "/signals"}, {Name: "data", MountPath: "/data"},
					},
				},
			},
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

// grace is a pod's own time to end, in seconds.
func grace(seconds int64) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
}

// writes is a script of a pod that writes so many megabytes into /data, and says so.
func writes(pod string, megabytes int) string {
	return fmt.Sprintf("dd if=/dev/zero of=/data/f bs=1M count=%d 2>/dev/null; touch /signals/%s.written", megabytes,
		pod)
}

// fills is a script that writes into a folder until its disk has so many megabytes left.
func fills(folder string, leave int) string {
	return fmt.Sprintf("dd if=/dev/zero of=%[1]s/f bs=1M count=$(( $(df -kP %[1]s | tail -n 1 | awk '{print $4}') / "+
		"1024 - %[2]d )) 2>/dev/null",
		folder, leave)
}

// takesInodes is a script that creates more files in /data than there may be.
const takesInodes = "i=0; while [ $i -lt 20000 ]; do : > /data/$i; i=$((i+1)); done"

// tell has a pod begin.
func (n *node) tell(name string) {
	n.T.Helper()
	env.Must(n.T, os.WriteFile(filepath.Join(n.signals, name), nil, 0o644))
}

// written waits until a pod's script has ended.
func (n *node) written(name string) {
	n.T.Helper()
	wait.Until(n.T, "pod "+name+" to write", func() error {
		_, err := os.Stat(filepath.Join(n.signals, name+".written"))
		return err
	})
}

// unharmed checks that pods are ready and never restarted.
func unharmed(names ...string) env.Check {
	return func(pods map[string]*v1.Pod) error {
		if err := env.Running(names...)(pods); err != nil {
			return err
		}
		for _, name := range names {
			if statuses := pods[name].Status.ContainerStatuses; statuses[0].RestartCount > 0 {
				return fmt.Errorf("pod %s was restarted: %+v", name, statuses)
			}
		}
		return nil
	}
}

// evicted checks that a pod was evicted with a message, and that others run on.
func evicted(name, message string, others ...string) env.Check {
	return func(pods map[string]*v1.Pod) error {
		p := pods[name]
		if p == nil {
			return fmt.Errorf("no pod %s", name)
		}
		if p.Status.Phase != v1.PodFailed || p.Status.Reason != "Evicted" ||
			!strings.HasPrefix(p.Status.Message, message) {
			return fmt.Errorf("pod %s is %s %s %q, want it evicted with %q", name, p.Status.Phase, p.Status.Reason,
				p.Status.Message, message)
		}
		if err := disrupted(p); err != nil {
			return err
		}
		return unharmed(others...)(pods)
	}
}

// disrupted checks that a pod's conditions say that the node ended it.
func disrupted(p *v1.Pod) error {
	if !slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue &&
			c.Reason == v1.PodReasonTerminationByKubelet
	}) {
		return fmt.Errorf("pod %s: conditions are %+v, want %s by %s", p.Name, p.Status.Conditions, v1.DisruptionTarget,
			v1.PodReasonTerminationByKubelet)
	}
	return nil
}

// works checks that the node does its work: it answers, nothing hangs, and a new static pod starts.
func (n *node) works() {
	n.T.Helper()
	wait.Until(n.T, "the node to be healthy", func() error {
		_, err := n.Get(n.T.Context(), "/healthz")
		return err
	})
	*n.late++
	// a manifest that comes back while its pod ends takes over what is left of it
	late := fmt.Sprintf("late-%d", *n.late)
	n.Manifest("late", env.Pod(late, env.Forever))
	n.Until("a new pod", unharmed(late))
	n.Remove("late")
	n.Gone(late)
}

// evictions checks how many pods were evicted for a signal.
func (n *node) evictions(signal, want string) {
	n.T.Helper()
	if got := n.Metric(`kubelet_evictions{eviction_signal="` + signal + `"}`); got != want {
		n.T.Errorf("evictions for %s = %q, want %q", signal, got, want)
	}
}
