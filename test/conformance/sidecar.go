package conformance

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// lastWords is a script that writes down in which order containers were told to end, and how many had been by then.
const lastWords = `trap 'echo %s >>/shared/order; cat /shared/order >/dev/termination-log; exit %d' TERM; while true; do sleep 1 & wait $!; done`

// sidecarRows are about init containers that keep running.
func sidecarRows() []row {
	last := func(name string, code int) string { return fmt.Sprintf(lastWords, name, code) }
	return []row{
		{
			name: "sidecar-start-order",
			spec: `
volumes: [{name: shared, emptyDir: {}}]
initContainers:
- {name: first, image: "edgecore.local/demo:1", command: [sh, -c, "echo first >>/shared/order"], volumeMounts: [{name: shared, mountPath: /shared}]}
- name: probed
  image: edgecore.local/demo:1
  restartPolicy: Always
  command: [sh, -c, "sleep 2; echo probed >>/shared/order; trap 'exit 0' TERM; while true; do sleep 1 & wait $!; done"]
  startupProbe: {exec: {command: [grep, probed, /shared/order]}, periodSeconds: 1, failureThreshold: 60}
  volumeMounts: [{name: shared, mountPath: /shared}]
- name: hooked
  restartPolicy: Always
  lifecycle: {postStart: {exec: {command: [sh, -c, "sleep 1; echo hooked >>/shared/order"]}}}
  volumeMounts: [{name: shared, mountPath: /shared}]
- {name: last, image: "edgecore.local/demo:1", command: [sh, -c, "echo last >>/shared/order"], volumeMounts: [{name: shared, mountPath: /shared}]}
containers: [{name: main, volumeMounts: [{name: shared, mountPath: /shared}]}]
`,
			check: func(p *pod) {
				s := p.running().Status
				if got := p.exec("main", "tr '\n' ' ' </shared/order"); got != "first probed hooked last " {
					p.Errorf("order = %q, want \"first probed hooked last \"", got)
				}
				for _, name := range []string{"probed", "hooked"} {
					if c := containerStatus(&s, name); !c.Ready || !ptr.Deref(c.Started, false) ||
						c.State.Running == nil {
						p.Errorf("sidecar %s = %+v, want ready, started, running", name, c)
					}
				}
			},
		},
		{
			name: "sidecar-job",
			spec: `
restartPolicy: Never
terminationGracePeriodSeconds: 86400
volumes: [{name: shared, emptyDir: {}}]
initContainers:
- {name: one, image: "edgecore.local/demo:1", restartPolicy: Always, command: [sh, -c, "` + last("one", 7) +
				`"], volumeMounts: [{name: shared, mountPath: /shared}]}
- {name: two, image: "edgecore.local/demo:1", restartPolicy: Always, command: [sh, -c, "` + last("two", 0) +
				`"], volumeMounts: [{name: shared, mountPath: /shared}]}
containers:
- {name: main, image: "edgecore.local/demo:1", command: [sh, -c, "sleep 1; echo main >>/shared/order"], volumeMounts: [{name: shared, mountPath: /shared}]}
`,
			check: func(p *pod) {
				s := p.phase(v1.PodSucceeded).Status
				p.status("the sidecars have ended", func(now *v1.PodStatus) error {
					s = *now
					return ended(now, "one", "two")
				})
				if one := containerStatus(&s, "one").State.Terminated; one.ExitCode != 7 ||
					one.Message != "main\ntwo\none\n" {
					p.Errorf("the first sidecar's end = %+v, want it the last one, exit code 7", one)
				}
				if s.Phase != v1.PodSucceeded {
					p.Errorf("phase = %s, want Succeeded", s.Phase)
				}
			},
		},
		{
			name: "sidecar-failed-job",
			spec: `
restartPolicy: Never
initContainers: [{name: side, restartPolicy: Always}]
containers: [{name: main, image: "edgecore.local/demo:1", command: [sh, -c, "exit 3"]}]
`,
			check: func(p *pod) {
				if c := containerStatus(&p.phase(v1.PodFailed).Status, "main").State.Terminated; c == nil ||
					c.ExitCode != 3 {
					p.Errorf("main ended with %+v, want exit code 3", c)
				}
			},
		},
		{
			name: "sidecar-termination-order",
			spec: `
terminationGracePeriodSeconds: 86400
volumes: [{name: shared, emptyDir: {}}]
initContainers:
- {name: one, image: "edgecore.local/demo:1", restartPolicy: Always, command: [sh, -c, "` + last("one", 0) +
				`"], volumeMounts: [{name: shared, mountPath: /shared}]}
- name: two
  image: edgecore.local/demo:1
  restartPolicy: Always
  command: [sh, -c, "` + last("two", 0) + `"]
  lifecycle: {preStop: {exec: {command: [sh, -c, "echo hook >>/shared/order"]}}}
  volumeMounts: [{name: shared, mountPath: /shared}]
containers:
- name: main
  image: edgecore.local/demo:1
  command:
  - sh
  - -c
  - |
    trap 'until grep -qs hook /shared/order; do sleep 0.1; done; sleep 1; echo main >>/shared/order; exit 0' TERM
    touch /tmp/trap
    while true; do sleep 1 & wait $!; done
  readinessProbe: {exec: {command: [test, -e, /tmp/trap]}, periodSeconds: 1}
  volumeMounts: [{name: shared, mountPath: /shared}]
`,
			check: func(p *pod) {
				p.running()
				s := p.end(nil)
				if one := containerStatus(s, "one").State.Terminated; one == nil ||
					one.Message != "hook\nmain\ntwo\none\n" {
					p.Errorf("the first sidecar ended with %+v, want the message hook, main, two, one", one)
				}
			},
		},
		{
			name: "sidecar-grace-budget",
			spec: `
terminationGracePeriodSeconds: 20
volumes: [{name: shared, emptyDir: {}}]
initContainers:
- name: deaf
  image: edgecore.local/demo:1
  restartPolicy: Always
  command: [sh, -c, "trap 'cat /shared/order >/dev/termination-log' TERM; while true; do sleep 1 & wait $!; done"]
  volumeMounts: [{name: shared, mountPath: /shared}]
containers:
- name: main
  image: edgecore.local/demo:1
  command:
  - sh
  - -c
  - |
    trap 'sleep 1; echo main >/shared/order; exit 0' TERM
    touch /tmp/trap
    while true; do sleep 1 & wait $!; done
  readinessProbe: {exec: {command: [test, -e, /tmp/trap]}, periodSeconds: 1}
  volumeMounts: [{name: shared, mountPath: /shared}]
`,
			check: func(p *pod) {
				p.running()
				s := p.end(nil)
				main, deaf := containerStatus(s, "main").State.Terminated, containerStatus(s, "deaf").State.Terminated
				if main.ExitCode != 0 {
					p.Errorf("main ended with %+v, want exit code 0", main)
				}
				// It is told to stop once main has ended, and killed when what is left of the grace period is over.
				if deaf.ExitCode != 137 || deaf.Message != "main\n" {
					p.Errorf("the sidecar ended with %+v, want exit code 137 and the message main", deaf)
				}
			},
		},
		{
			name: "sidecar-restarts",
			spec: `
restartPolicy: Never
initContainers: [{name: side, image: "edgecore.local/demo:1", restartPolicy: Always, command: [sh, -c, "sleep 2; exit 0"]}]
containers: [{name: main}]
`,
			check: func(p *pod) {
				p.status("the sidecar was restarted", func(s *v1.PodStatus) error {
					side, main := containerStatus(s, "side"), containerStatus(s, "main")
					if side == nil || side.RestartCount < 1 || main == nil || main.State.Running == nil ||
						main.RestartCount > 0 {
						return fmt.Errorf("containers %s", states(s))
					}
					return nil
				})
				p.status("a sidecar that exited with 0 is Completed until it is restarted",
					func(s *v1.PodStatus) error {
						if side := containerStatus(s, "side"); side.State.Terminated == nil ||
							side.State.Terminated.Reason != "Completed" {
							return fmt.Errorf("containers %s, want side to be Completed", states(s))
						}
						return nil
					})
			},
		},
	}
}

// ended returns an error while one of the containers has not ended.
func ended(s *v1.PodStatus, names ...string) error {
	for _, name := range names {
		if c := containerStatus(s, name); c == nil || c.State.Terminated == nil {
			return fmt.Errorf("containers %s, want %s ended", states(s), strings.Join(names, " and "))
		}
	}
	return nil
}

// end deletes the pod with a grace period (nil: its own) and holds it by a finalizer. It waits until every container
// has ended, and returns the status then.
func (p *pod) end(grace *int64) *v1.PodStatus {
	p.Helper()
	p.patch("metadata: {finalizers: [edgecore.local/look]}")
	pods := p.node.api.CoreV1().Pods(p.node.name)
	env.Must(p, pods.Delete(p.Context(), p.name, metav1.DeleteOptions{GracePeriodSeconds: grace}))
	last := p.waitEnded()
	p.release()
	return last
}

// waitEnded waits until a pod that was deleted has ended, with every container, and returns the status then.
func (p *pod) waitEnded() *v1.PodStatus {
	p.Helper()
	return &p.status("it has ended", func(s *v1.PodStatus) error {
		for _, list := range [][]v1.ContainerStatus{
			s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses,
		} {
			for _, c := range list {
				if c.State.Terminated == nil {
					return fmt.Errorf("containers %s", states(s))
				}
			}
		}
		if s.Phase != v1.PodSucceeded && s.Phase != v1.PodFailed { // what ends last is reported last
			return fmt.Errorf("phase %s", s.Phase)
		}
		return nil
	}).Status
}

// release takes the finalizer of end away.
func (p *pod) release() {
	p.Helper()
	p.until("the finalizer is gone", func() error {
		_, err := p.node.kube.Kubectl(p.Context(), "patch", "pod", "-n", p.node.name, p.name, "--type=merge", "-p",
			`{"metadata":{"finalizers":null}}`)
		if err == nil {
			return nil
		}
		if _, gone := p.node.api.CoreV1().Pods(p.node.name).Get(p.Context(), p.name,
			metav1.GetOptions{}); apierrors.IsNotFound(gone) {
			return nil
		}
		return err
	})
}
