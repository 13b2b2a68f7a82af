package differential

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/edged/podstate/restart"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/test/testenv/crirecord"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// Until waits until the pod in the API satisfies a check.
func Until(what string, check func(*v1.Pod) error) Step {
	return Step{Name: what, Do: func(ctx context.Context, s *Subject) error {
		return s.until(ctx, func() error {
			pod, err := s.history.latest(s.Pod.UID)
			if err != nil {
				return err
			}
			return check(pod)
		})
	}}
}

// Running waits until the pod is Ready.
func Running() Step {
	return Until("running", func(p *v1.Pod) error {
		ready := slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
		})
		if p.Status.Phase != v1.PodRunning || !ready {
			return fmt.Errorf("phase is %s, Ready is %v, want Running and true", p.Status.Phase, ready)
		}
		return nil
	})
}

// Phase waits until the pod has a phase.
func Phase(want v1.PodPhase) Step {
	return Until("phase-"+string(want), func(p *v1.Pod) error {
		if p.Status.Phase != want {
			return fmt.Errorf("phase is %s, want %s", p.Status.Phase, want)
		}
		return nil
	})
}

// Ended waits until the pod has a terminal phase.
func Ended() Step {
	return Until("ended", func(p *v1.Pod) error {
		if p.Status.Phase != v1.PodSucceeded && p.Status.Phase != v1.PodFailed {
			return fmt.Errorf("phase is %s, want Succeeded or Failed", p.Status.Phase)
		}
		return nil
	})
}

// Waiting waits until a container waits for a reason.
func Waiting(container, reason string) Step {
	return Until(container+"-waiting-"+reason, func(p *v1.Pod) error {
		c, err := containerStatus(p, container)
		if err == nil && (c.State.Waiting == nil || c.State.Waiting.Reason != reason) {
			err = fmt.Errorf("state of %s is %+v, want waiting for %s", container, c.State, reason)
		}
		return err
	})
}

// Terminated waits until a container has ended.
func Terminated(container string) Step {
	return Until(container+"-terminated", func(p *v1.Pod) error {
		c, err := containerStatus(p, container)
		if err == nil && c.State.Terminated == nil {
			err = fmt.Errorf("state of %s is %+v, want terminated", container, c.State)
		}
		return err
	})
}

// Started waits until a container runs.
func Started(container string) Step { return Restarted(container, 0) }

// Restarted waits until a container runs with at least a number of restarts.
func Restarted(container string, times int32) Step {
	return Until(fmt.Sprintf("%s-restarted-%d", container, times), func(p *v1.Pod) error {
		c, err := containerStatus(p, container)
		if err == nil && (c.RestartCount < times || c.State.Running == nil) {
			err = fmt.Errorf("state of %s is %+v after %d restarts, want running after %d", container, c.State,
				c.RestartCount, times)
		}
		return err
	})
}

// Aged waits until a container has run for so long that a restart of the kubelet leaves its pod ready.
func Aged(container string) Step {
	const age = 12 * time.Second
	return Until(container+"-aged", func(p *v1.Pod) error {
		c, err := containerStatus(p, container)
		if err == nil && (c.State.Running == nil || time.Since(c.State.Running.StartedAt.Time) < age) {
			err = fmt.Errorf("state of %s is %+v, want that it has run for %v", container, c.State, age)
		}
		return err
	})
}

// Condition waits until the pod has a condition with a reason.
func Condition(kind v1.PodConditionType, reason string) Step {
	return Until(string(kind)+"-"+reason, func(p *v1.Pod) error {
		for _, c := range p.Status.Conditions {
			if c.Type == kind && c.Status == v1.ConditionTrue && c.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("conditions are %v, want %s for %q", p.Status.Conditions, kind, reason)
	})
}

// Shows waits until a file in a container has a text.
func Shows(container, file, text string) Step {
	return Step{
		Name: container + "-shows", Do: func(ctx context.Context, s *Subject) error {
			id, err := s.container(ctx, container)
			if err != nil {
				return err
			}
			return s.until(ctx, func() error {
				out, err := s.CRI.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"cat", file},
					Timeout: 60})
				if err == nil && !strings.Contains(string(out.GetStdout()), text) {
					err = fmt.Errorf("%s of %s is %q, want %q in it", file, container, out.GetStdout(), text)
				}
				return err
			})
		},
	}
}

// BackedOff waits until a container that crashes waits for its next attempt, after a number of restarts at least. The
// kubelet says so only at its next look at the pod: a new label makes it look.
func BackedOff(container string, times int32) Step {
	ended := Until("", func(p *v1.Pod) error {
		c, err := containerStatus(p, container)
		if err == nil && (c.RestartCount < times || c.State.Running != nil) {
			err = fmt.Errorf("state of %s is %+v after %d restarts, want that it has ended after %d", container,
				c.State, c.RestartCount, times)
		}
		return err
	})
	return Step{
		Name: container + "-backed-off", Do: func(ctx context.Context, s *Subject) error {
			for _, step := range []Step{
				ended, Patch("metadata: {labels: {look: again}}"), Waiting(container, "CrashLoopBackOff"),
			} {
				if err := step.Do(ctx, s); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// containerStatus finds the status of a container of any kind.
func containerStatus(p *v1.Pod, name string) (v1.ContainerStatus, error) {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses,
		p.Status.EphemeralContainerStatuses) {
		if c.Name == name {
			return c, nil
		}
	}
	return v1.ContainerStatus{}, fmt.Errorf("the pod has no status of container %s", name)
}

// settleLimit is how long Settled waits for a pod that neither becomes ready nor fails, once no other container of it
// has been started for the first time.
const settleLimit = 20 * time.Second

// Settled waits until the containers are ready, the pod has ended, or a container waits for something that needs a
// change while the others are ready. It goes on after settleLimit, since some pods do none of this.
func Settled() Step {
	return Step{Name: "settled", Do: func(ctx context.Context, s *Subject) error {
		started, since := 0, time.Now()
		return s.until(ctx, func() error {
			if n := startedContainers(s.Calls.Calls(string(s.Pod.UID))); n > started {
				started, since = n, time.Now()
			}
			if time.Since(since) > daemon.Scaled(settleLimit) {
				return nil
			}
			pod, err := s.history.latest(s.Pod.UID)
			if err == nil && !settled(pod) {
				err = errors.New("it has not settled")
			}
			return err
		})
	}}
}

// startedContainers returns how many containers have been started at least once.
func startedContainers(calls []crirecord.Call) int {
	names := map[string]bool{}
	for _, call := range calls {
		if call.Method == "StartContainer" {
			names[call.Container] = true
		}
	}
	return len(names)
}

func settled(pod *v1.Pod) bool {
	if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
		return true
	}
	if slices.ContainsFunc(pod.Status.InitContainerStatuses, stands) {
		return true // nothing else starts
	}
	for _, c := range pod.Status.InitContainerStatuses {
		if isSidecar(pod, c.Name) && !c.Ready {
			return false
		}
	}
	for i, c := range pod.Status.ContainerStatuses {
		end := c.State.Terminated
		ended := end != nil && restart.After(pod, &pod.Spec.Containers[i], end.ExitCode) == restart.Stay
		if !c.Ready && !ended && !stands(c) {
			return false
		}
	}
	return len(pod.Status.ContainerStatuses) > 0
}

func isSidecar(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool {
		return c.Name == name && restart.IsSidecar(&c)
	})
}

// stands reports whether a container waits for something else than its start.
func stands(c v1.ContainerStatus) bool {
	return c.State.Waiting != nil && !status.IsStarting(c.State.Waiting)
}

// Event waits until the pod has an event with a reason.
func Event(reason string) Step {
	return Step{Name: "event-" + reason, Do: func(ctx context.Context, s *Subject) error {
		return s.until(ctx, func() error {
			var reasons []string
			for _, e := range s.history.eventsOf(s.Pod.UID) {
				if e.Reason == reason {
					return nil
				}
				reasons = append(reasons, e.Reason)
			}
			return fmt.Errorf("events are %v, want %s", reasons, reason)
		})
	}}
}

// Logged waits until the log of a container has a text.
func Logged(container, text string) Step {
	return Step{Name: container + "-logged", Do: func(ctx context.Context, s *Subject) error {
		return s.until(ctx, func() error {
			files, err := filepath.Glob(filepath.Join(s.Logs, "*_"+string(s.Pod.UID), container, "*.log"))
			if err != nil {
				return err
			}
			var all []byte
			for _, file := range files {
				data, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				all = append(all, data...)
			}
			if !strings.Contains(string(all), text) {
				return fmt.Errorf("log of %s is %q, want %q in it", container, all, text)
			}
			return nil
		})
	}}
}

// Called waits until the runtime has answered a call that is about a container.
func Called(method, container string) Step {
	return Step{Name: container + "-" + method, Do: func(ctx context.Context, s *Subject) error {
		return s.until(ctx, func() error {
			for _, call := range s.Calls.Calls(string(s.Pod.UID)) {
				if call.Method == method && call.Container == container {
					return nil
				}
			}
			return fmt.Errorf("the runtime has answered no %s of %s, want one", method, container)
		})
	}}
}

// Inspect adds what the processes of all running containers see.
func Inspect() Step {
	return Step{Name: "inspect", Do: func(ctx context.Context, s *Subject) error {
		return s.addInside(ctx, s.Trace, stepName(ctx), s.Pod, s.own())
	}}
}

func stepName(ctx context.Context) string {
	name, ok := ctx.Value(stepKey{}).(string)
	if !ok {
		return "step"
	}
	return name
}

// Exec runs a shell script in a container and adds its output.
func Exec(container, script string) Step {
	return Step{
		Name: "exec", Do: func(ctx context.Context, s *Subject) error {
			id, err := s.container(ctx, container)
			if err != nil {
				return err
			}
			out, err := s.CRI.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
				ContainerId: id, Cmd: []string{"sh", "-c", script}, Timeout: 60,
			})
			if err != nil {
				return err
			}
			text := fmt.Sprintf("exit code %d: %s%s", out.GetExitCode(), out.GetStdout(), out.GetStderr())
			s.Trace.Add("inside/"+stepName(ctx)+"/"+container+"/exec "+script, s.own().Replace(text))
			return nil
		},
	}
}

// container returns the ID of a running container.
func (s *Subject) container(ctx context.Context, name string) (string, error) {
	list, err := s.CRI.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{
			"io.kubernetes.pod.uid":        string(s.Pod.UID),
			"io.kubernetes.container.name": name,
		},
	}})
	if err != nil {
		return "", err
	}
	if len(list.GetContainers()) != 1 {
		return "", fmt.Errorf("%d containers %s run, want 1", len(list.GetContainers()), name)
	}
	return list.GetContainers()[0].GetId(), nil
}

// KillProcess kills the first process of a container.
func KillProcess(container string) Step {
	return Step{Name: "kill-" + container, Do: func(ctx context.Context, s *Subject) error {
		id, err := s.container(ctx, container)
		if err != nil {
			return err
		}
		return s.kill(ctx, id)
	}}
}

// Lose removes a container from the runtime.
func Lose(container string) Step {
	return Step{
		Name: "lose-" + container, Do: func(ctx context.Context, s *Subject) error {
			list, err := s.CRI.ListContainers(ctx, &runtimeapi.ListContainersRequest{
				Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{
					"io.kubernetes.pod.uid":        string(s.Pod.UID),
					"io.kubernetes.container.name": container,
				}},
			})
			if err != nil {
				return err
			}
			for _, c := range list.GetContainers() {
				if _, err := s.CRI.StopContainer(ctx, &runtimeapi.StopContainerRequest{
					ContainerId: c.GetId(),
				}); err != nil {
					return err
				}
				if _, err := s.CRI.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{
					ContainerId: c.GetId(),
				}); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// KillSandbox kills the first process of the pod's sandbox.
func KillSandbox() Step {
	return Step{
		Name: "kill-sandbox", Do: func(ctx context.Context, s *Subject) error {
			list, err := s.CRI.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
				Filter: &runtimeapi.PodSandboxFilter{
					State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
					LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(s.Pod.UID)},
				},
			})
			if err != nil {
				return err
			}
			if len(list.GetItems()) != 1 {
				return fmt.Errorf("%d sandboxes are ready, want 1", len(list.GetItems()))
			}
			status, err := s.CRI.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{
				PodSandboxId: list.GetItems()[0].GetId(), Verbose: true,
			})
			if err != nil {
				return err
			}
			return killInfo(status.GetInfo())
		},
	}
}

func (s *Subject) kill(ctx context.Context, container string) error {
	status, err := s.CRI.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: container, Verbose: true})
	if err != nil {
		return err
	}
	return killInfo(status.GetInfo())
}

// killInfo kills the process that the runtime's verbose information names.
func killInfo(verbose map[string]string) error {
	var info struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(verbose["info"]), &info); err != nil {
		return err
	}
	if info.PID <= 1 {
		return errors.New("the runtime names no process, want one: " + strconv.Itoa(info.PID))
	}
	return syscall.Kill(info.PID, syscall.SIGKILL)
}

// Patch changes the pod by a strategic merge patch in YAML; subresource may be "resize", "status" or
// "ephemeralcontainers".
func Patch(change string, subresource ...string) Step {
	return Step{
		Name: "patch", Do: func(ctx context.Context, s *Subject) error {
			data, err := yaml.YAMLToJSON([]byte(change))
			if err != nil {
				return err
			}
			_, err = s.API.CoreV1().Pods(s.Name).Patch(ctx, s.Case.Name, types.StrategicMergePatchType, data,
				metav1.PatchOptions{}, subresource...)
			return err
		},
	}
}

// Apply changes other objects.
func Apply(manifests string) Step {
	return Step{Name: "apply", Do: func(ctx context.Context, s *Subject) error { return s.apply(ctx, manifests) }}
}

// Preempt lets a critical pod come that needs all of the node's ephemeral storage, waits until the pod has failed, and
// removes the critical one.
func Preempt() Step {
	return Step{Name: "preempt", Do: func(ctx context.Context, s *Subject) error {
		node, err := s.API.CoreV1().Nodes().Get(ctx, s.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		err = s.apply(ctx, `
apiVersion: v1
kind: Pod
metadata: {name: @NAME@-critical}
spec:
  nodeName: @NODE@
  priorityClassName: system-node-critical
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: edgecore.local/demo:1
    imagePullPolicy: IfNotPresent
    command: [sleep, "1000"]
    resources: {requests: {ephemeral-storage: "`+node.Status.Allocatable.StorageEphemeral().String()+`"}}
`)
		if err != nil {
			return err
		}
		failed := Phase(v1.PodFailed).Do(ctx, s)
		pods := s.API.CoreV1().Pods(s.Name)
		critical := s.Case.Name + "-critical"
		if err := pods.Delete(ctx, critical, metav1.DeleteOptions{}); err != nil {
			return errors.Join(failed, err)
		}
		return errors.Join(failed, s.until(ctx, func() error {
			_, err := pods.Get(ctx, critical, metav1.GetOptions{})
			switch {
			case err == nil:
				return errors.New("the critical pod is still there")
			case apierrors.IsNotFound(err):
				return nil
			}
			return err
		}))
	}}
}

// Delete deletes the pod with a grace period in seconds; a negative one is the pod's own. It does not wait.
func Delete(grace int64) Step {
	return Step{Name: "delete", Do: func(ctx context.Context, s *Subject) error {
		opts := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.Pod.UID))}
		if grace >= 0 {
			opts.GracePeriodSeconds = ptr.To(grace)
		}
		return s.API.CoreV1().Pods(s.Name).Delete(ctx, s.Case.Name, opts)
	}}
}

// Gone waits until the API server no longer has the pod.
func Gone() Step {
	return Step{Name: "gone", Do: func(ctx context.Context, s *Subject) error {
		return s.until(ctx, s.gone)
	}}
}

// Stopped waits until the runtime has no running container of the pod.
func Stopped() Step {
	return Step{
		Name: "stopped", Do: func(ctx context.Context, s *Subject) error {
			return s.until(ctx, func() error {
				list, err := s.CRI.ListContainers(ctx, &runtimeapi.ListContainersRequest{
					Filter: &runtimeapi.ContainerFilter{
						State: &runtimeapi.ContainerStateValue{
							State: runtimeapi.ContainerState_CONTAINER_RUNNING,
						},
						LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(s.Pod.UID)},
					},
				})
				if err == nil && len(list.GetContainers()) > 0 {
					err = fmt.Errorf("%d containers run, want none", len(list.GetContainers()))
				}
				return err
			})
		},
	}
}

// RestartAgent ends the agent and starts it again.
func RestartAgent() Step {
	return Step{Name: "restart-agent", Do: func(ctx context.Context, s *Subject) error {
		return errors.Join(s.Agent.Stop(ctx), s.Agent.Start(ctx))
	}}
}

// KillAgent kills the agent and starts it again.
func KillAgent() Step {
	return Step{Name: "kill-agent", Do: func(ctx context.Context, s *Subject) error {
		return errors.Join(s.Agent.Kill9(ctx), s.Agent.Start(ctx))
	}}
}

// RestartRuntime restarts the runtime.
func RestartRuntime() Step {
	return Step{Name: "restart-runtime", Do: func(ctx context.Context, s *Subject) error {
		return s.Containerd.Restart(ctx)
	}}
}
