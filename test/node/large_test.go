package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/bench/process"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/peer"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// withMemory runs a program in mounts of its own, in which the machine has 512 MB of memory.
const withMemory = `#!/bin/sh
exec unshare --mount --propagation private sh -c '
set -e
mount --bind %[1]s/meminfo /proc/meminfo
exec %[2]s "$@"' edgecore "$@"
`

const (
	largePods, largeMaps = 200, 200
	largeBytes           = 1_000_000
	// largePeak is the most memory that the agent may take meanwhile.
	largePeak = 200 << 20
)

// TestLargeObjects: a cloud without limits sends a device of 512 MB more large pods and ConfigMaps than it can hold.
// The agent's memory stays limited, other pods run, also over a restart, and the large ones can be deleted.
func TestLargeObjects(t *testing.T) {
	dir := t.TempDir()
	meminfo, err := os.ReadFile("/proc/meminfo")
	env.Must(t, err)
	small := regexp.MustCompile(`(?m)^MemTotal: .*`).ReplaceAll(meminfo, []byte("MemTotal:         524288 kB"))
	env.Must(t, os.WriteFile(filepath.Join(dir, "meminfo"), small, 0o644))
	program := filepath.Join(dir, "edgecore")
	env.Must(t, os.WriteFile(program, fmt.Appendf(nil, withMemory, dir, built.Edge), 0o755))

	ca := wiretest.NewCA(t)
	cloud, err := peer.Listen(ca.ServerTLS(t, "localhost"), "127.0.0.1:0", "node1")
	env.Must(t, err)
	t.Cleanup(func() { env.Must(t, cloud.Close()) })
	files := ca.Write(t, t.TempDir(), ca.Node(t, "node1", time.Now().Add(time.Hour)))
	n := env.StartNode(t, &programs.Set{Edge: program}, env.NodeOptions{Agent: agent.Options{EdgeHub: map[string]any{
		"enable":            true,
		"tlsCaFile":         files.CA,
		"tlsCertFile":       files.Cert,
		"tlsPrivateKeyFile": files.Key,
		"websocket":         map[string]any{"enable": true, "server": fmt.Sprintf("localhost:%d", cloud.Port())},
		"httpServer":        "https://localhost:1",
	}}})

	put := func(obj metav1.Object) {
		t.Helper()
		_, err := cloud.Put(obj)
		env.Must(t, err)
	}
	for i := range largePods {
		pod := largePod(fmt.Sprint("tenant-", i%3), fmt.Sprint("large-", i))
		pod.Annotations = map[string]string{"fill": strings.Repeat("x", largeBytes)}
		put(pod)
	}
	for i := range largeMaps {
		put(largeMap(fmt.Sprint("tenant-", i%3), fmt.Sprint("large-", i)))
	}
	for i := range 3 { // of which the namespace gets two
		wait.Until(t, "everything to be acknowledged", cloud.AllAcked) // what is sent at once is stored in any order
		put(largeMap("other", fmt.Sprint("own-", i)))
	}
	lacking := largePod("other", "lacking")
	lacking.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: "own-2"},
	}}}}
	lacking.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	put(runs(lacking))
	put(runs(largePod("other", "other")))
	wait.Until(t, "everything to be acknowledged", cloud.AllAcked)
	n.Running("other")
	last := fmt.Sprintf("tenant-%d/pod/large-%d", (largePods-1)%3, largePods-1)
	refused := func() error {
		if s := cloud.Status(last); s.Phase != v1.PodFailed || s.Reason != "OutOfPodBytes" {
			return fmt.Errorf("status of %s is %s, %s %q; want Failed, OutOfPodBytes", last, s.Phase,
				s.Reason, s.Message)
		}
		return nil
	}
	wait.Until(t, "the last pod to be refused", refused)
	n.Condition(health.ObjectTooLarge, true)
	wait.Until(t, "an event that names the configmap", func() error {
		for _, text := range n.Events("FailedMount") {
			if strings.Contains(text, "is too large: it takes 100") {
				return nil
			}
		}
		return fmt.Errorf("events FailedMount = %q, want one with the size of the configmap", n.Events("FailedMount"))
	})
	checkPeak(t, n, "while they came")

	env.Must(t, n.Kill9(context.Background()))
	env.Must(t, n.Start(context.Background()))
	n.Running("other")
	wait.Until(t, "the link to be there again", func() error {
		if !cloud.Connected() {
			return fmt.Errorf("connected = false, want true")
		}
		return nil
	})
	for i := range largePods {
		env.Must(t, cloud.Delete(fmt.Sprintf("tenant-%d/pod/large-%d", i%3, i)))
	}
	wait.Until(t, "the large pods to be deleted", func() error {
		for name, e := range cloud.Journal() {
			if strings.Contains(name, "/pod/large-") && (!e.Deleted || !e.DeleteAcked) {
				return fmt.Errorf("%s = %+v, want it deleted", name, e)
			}
		}
		return nil
	})
	n.Running("other")
	checkPeak(t, n, "after the restart")
	another := largePod("tenant-2", "another")
	another.Annotations = map[string]string{"fill": strings.Repeat("x", largeBytes)}
	put(runs(another))
	n.Running("other", "another")
}

func largeMap(namespace, name string) *v1.ConfigMap {
	return &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string]string{"fill": strings.Repeat("x", largeBytes)},
	}
}

// runs returns a pod that runs on any node.
func runs(pod *v1.Pod) *v1.Pod {
	pod.Spec.NodeSelector = nil
	return pod
}

func checkPeak(t *testing.T, n *env.Node, when string) {
	t.Helper()
	peak, err := process.Peak(n.PID())
	env.Must(t, err)
	t.Logf("peak of the agent's memory %s: %d MiB", when, peak>>20)
	if peak > largePeak {
		t.Errorf("peak of the agent's memory %s = %d MiB, want at most %d", when, peak>>20, largePeak>>20)
	}
}

// largePod is a pod that runs nowhere: the node does not have the label that it asks for, so that large pods cost what
// the agent has of them, and no sandbox.
func largePod(namespace, name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.Now()},
		Spec: v1.PodSpec{
			NodeSelector:                  map[string]string{"kubernetes.io/os": "none"},
			RestartPolicy:                 v1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			DNSPolicy:                     v1.DNSDefault,
			EnableServiceLinks:            ptr.To(false),
			Containers: []v1.Container{{
				Name: "main", Image: images.Demo, Command: []string{"sh", "-c", env.Forever},
				ImagePullPolicy: v1.PullIfNotPresent,
			}},
		},
	}
}
