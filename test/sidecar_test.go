package test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// grace is the grace period of the pods with sidecars, in seconds.
const grace = 3600

// sidecars is a pod of two sidecars and a container with a hook, which all end at once when they are told to. Its grace
// period is longer than any wait.
func sidecars(uid types.UID) *v1.Pod {
	container := func(name string) v1.Container {
		return v1.Container{Name: name, Image: images.Demo, Command: []string{
			"sh", "-c", "trap 'exit 0' TERM; touch /tmp/ready; while true; do sleep 1 & wait $!; done",
		}}
	}
	first, second, main := container("first"), container("second"), container("main")
	first.RestartPolicy, second.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways),
		ptr.To(v1.ContainerRestartPolicyAlways)
	main.Lifecycle = &v1.Lifecycle{
		PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"sleep", "0.5"}}},
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "sidecars", Namespace: "shop", UID: uid},
		Spec: v1.PodSpec{
			RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: ptr.To[int64](grace),
			InitContainers: []v1.Container{first, second}, Containers: []v1.Container{main},
		},
	}
}

// obedient starts a pod of sidecars, and returns when all of its containers do what a signal says.
func obedient(t testing.TB, n *node, pod *v1.Pod) *observed.Pod {
	t.Helper()
	obs := n.until(pod, runs("main", 0))
	for _, name := range []string{"first", "second", "main"} {
		test := &runtimeapi.ExecSyncRequest{
			ContainerId: obs.Container(name).ID, Cmd: []string{"test", "-e", "/tmp/ready"},
		}
		wait.Until(t, "container "+name+" to be ready", func() error {
			res, err := n.client.ExecSync(t.Context(), test)
			if err == nil && res.ExitCode != 0 {
				err = fmt.Errorf("exit code %d, want 0", res.ExitCode)
			}
			return err
		})
	}
	return obs
}

// sidecarsEnd: a pod with sidecars and a hook ends in order, and waits for no grace period when its containers do as
// they are told. BenchmarkSidecarsEnd measures how long that takes.
func sidecarsEnd(t *testing.T, n *node) {
	pod := sidecars("sidecars-uid")
	obs := obedient(t, n, pod)
	if err := n.KillPod(wait.Context(t), pod.UID, pod, obs, nil); err != nil {
		t.Fatal(err)
	}
	order(t, n, pod)
	n.end(pod)
}

// BenchmarkSidecarsEnd measures how long a pod with sidecars and a hook takes to end, beside the bare calls for it,
// which are made for a twin.
func BenchmarkSidecarsEnd(b *testing.B) {
	n := newNode(b)
	var ours, bare time.Duration
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		bare += bareEnd(b, n, sidecars(types.UID(fmt.Sprint("twin-uid-", i))))
		pod := sidecars(types.UID(fmt.Sprint("sidecars-uid-", i)))
		obs := obedient(b, n, pod)
		b.StartTimer()
		began := time.Now()
		err := n.KillPod(b.Context(), pod.UID, pod, obs, nil)
		ours += time.Since(began)
		b.StopTimer()
		if err != nil {
			b.Fatal(err)
		}
		n.end(pod)
		b.StartTimer()
	}
	b.ReportMetric(float64(ours.Milliseconds())/float64(b.N), "ms/pod")
	b.ReportMetric(float64(bare.Milliseconds())/float64(b.N), "bare-ms/pod")
}

// order checks that the containers ended one after another: the container, the second sidecar, the first.
func order(t testing.TB, n *node, pod *v1.Pod) {
	t.Helper()
	obs, err := n.GetPod(t.Context(), pod.UID, nil)
	if err != nil {
		t.Fatal(err)
	}
	var before *observed.Container
	for _, name := range []string{"main", "second", "first"} {
		c := obs.Container(name)
		if !c.Exited() || c.ExitCode != 0 {
			t.Errorf("container %s is %+v, want exit code 0", name, c)
		}
		if before != nil && c.FinishedAt.Before(before.FinishedAt) {
			t.Errorf("%s ended at %v, want it after %s at %v", name, c.FinishedAt, before.Name, before.FinishedAt)
		}
		before = c
	}
}

// bareEnd does by hand what ends a pod, and returns how long it took.
func bareEnd(t testing.TB, n *node, pod *v1.Pod) time.Duration {
	t.Helper()
	obs := obedient(t, n, pod)
	defer n.end(pod)
	ctx := context.WithoutCancel(t.Context())
	began := time.Now()
	_, hook := n.client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: obs.Container("main").ID,
		Cmd:         pod.Spec.Containers[0].Lifecycle.PreStop.Exec.Command,
	})
	errs := []error{hook}
	for _, name := range []string{"main", "second", "first"} {
		_, err := n.client.StopContainer(ctx, &runtimeapi.StopContainerRequest{
			ContainerId: obs.Container(name).ID,
			Timeout:     grace,
		})
		errs = append(errs, err)
	}
	_, err := n.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: obs.Sandbox().ID})
	took := time.Since(began)
	if err := errors.Join(append(errs, err)...); err != nil {
		t.Fatal(err)
	}
	return took
}
