package node

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestDeclaredFeatures: what the node declares is what a scheduler and the API server ask of it: a pod with a rule to
// restart all containers is bound to it, and pods and init containers can be resized there.
func TestDeclaredFeatures(t *testing.T) {
	t.Parallel()
	c := env.StartCluster(t, built, env.ClusterOptions{Kube: kube.Options{ControllerManager: true, Scheduler: true}})
	node := c.StartNode(t, "edge-features", env.NodeOptions{})
	exec := func(command ...string) string {
		t.Helper()
		out, err := node.ExecIn("sized", command...)
		env.Must(t, err)
		return strings.TrimSpace(out)
	}
	c.NodeUntil("edge-features", "to declare features", func(n *v1.Node) error {
		if len(n.Status.DeclaredFeatures) != 3 {
			return fmt.Errorf("declared features are %q, want 3", n.Status.DeclaredFeatures)
		}
		return env.Ready(n)
	})
	c.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: again, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  volumes: [{name: log, emptyDir: {}}]
  containers:
  - name: main
    image: edgecore.local/demo:1
    command: [sh, -c, "echo >>/log/runs; test $(wc -l </log/runs) -ge 2 && exec sleep 3600; exit 88"]
    volumeMounts: [{name: log, mountPath: /log}]
    restartPolicy: Never
    restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [88]}}]
`)
	c.PodUntil("default", "again", "to be bound and restarted", func(p *v1.Pod) error {
		s := p.Status.ContainerStatuses
		if p.Spec.NodeName != "edge-features" || len(s) != 1 || s[0].RestartCount != 1 || s[0].State.Running == nil {
			return fmt.Errorf("node %q, status %+v, want one restart on edge-features", p.Spec.NodeName, p.Status)
		}
		return nil
	})
	c.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: sized, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  resources: {requests: {cpu: 20m, memory: 32Mi}, limits: {cpu: 200m, memory: 128Mi}}
  volumes: [{name: flag, emptyDir: {}}]
  initContainers:
  - name: init
    image: edgecore.local/demo:1
    command: [sh, -c, "until test -e /flag/go; do sleep 0.2; done"]
    volumeMounts: [{name: flag, mountPath: /flag}]
    resources: {requests: {cpu: 10m}, limits: {cpu: 100m}}
  containers:
  - name: main
    image: edgecore.local/demo:1
    command: [sh, -c, "dd if=/dev/zero of=/dev/shm/x bs=1M count=40 2>/dev/null; exec sleep 3600"]
`)
	resize := func(patch string) {
		t.Helper()
		_, err := c.API.CoreV1().Pods("default").Patch(t.Context(), "sized", types.StrategicMergePatchType,
			[]byte(patch),
			metav1.PatchOptions{}, "resize")
		env.Must(t, err)
	}
	initRuns := func(limit string) func(*v1.Pod) error {
		return func(p *v1.Pod) error {
			s := p.Status.InitContainerStatuses
			if len(s) != 1 || s[0].State.Running == nil || s[0].Resources == nil ||
				s[0].Resources.Limits.Cpu().String() != limit {
				return fmt.Errorf("init containers are %+v, want one that runs with cpu %s", s, limit)
			}
			return nil
		}
	}
	c.PodUntil("default", "sized", "to run its init container", initRuns("100m"))
	resize(`{"spec":{"initContainers":[{"name":"init","resources":{"limits":{"cpu":"150m"}}}]}}`)
	c.PodUntil("default", "sized", "to have its init container resized", initRuns("150m"))
	exec("touch", "/flag/go")
	runsWith := func(memory string, more func(*v1.Pod) error) func(*v1.Pod) error {
		return func(p *v1.Pod) error {
			r := p.Status.Resources
			if p.Status.Phase != v1.PodRunning || r == nil || r.Limits.Memory().String() != memory {
				return fmt.Errorf("phase %s, resources %+v, want Running with %s", p.Status.Phase, r, memory)
			}
			return more(p)
		}
	}
	quiet := func(p *v1.Pod) error {
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodResizeInProgress || c.Type == v1.PodResizePending {
				return fmt.Errorf("condition %+v, want none of a resize", c)
			}
		}
		return nil
	}
	c.PodUntil("default", "sized", "to run", runsWith("128Mi", quiet))
	resize(`{"spec":{"resources":{"limits":{"memory":"160Mi"}}}}`)
	c.PodUntil("default", "sized", "to be larger", runsWith("160Mi", quiet))
	wait.Until(t, "the pod to use 40 MiB", func() error {
		if out := exec("stat", "-c", "%s", "/dev/shm/x"); out != "41943040" {
			return fmt.Errorf("it uses %q, want 41943040", out)
		}
		return nil
	})
	// Less than it uses is refused, and nothing is killed.
	resize(`{"spec":{"resources":{"requests":{"memory":"16Mi"},"limits":{"memory":"32Mi"}}}}`)
	refused := c.PodUntil("default", "sized", "to keep its memory", runsWith("160Mi", func(p *v1.Pod) error {
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodResizeInProgress && c.Reason == v1.PodReasonError &&
				strings.Contains(c.Message, "attempting to set pod memory limit (33554432) below current usage (") {
				return nil
			}
		}
		return fmt.Errorf("conditions are %+v, want PodResizeInProgress with the reason Error", p.Status.Conditions)
	}))
	if got := refused.Status.ContainerStatuses[0].RestartCount; got != 0 {
		t.Errorf("restarts = %d, want 0", got)
	}
	exec("rm", "/dev/shm/x")
	c.PodUntil("default", "sized", "to be smaller once it uses less", runsWith("32Mi", quiet))
}
